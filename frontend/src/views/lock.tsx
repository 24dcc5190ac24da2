import { useState } from "preact/hooks";
import { unlock } from "../connection";
import { Mark } from "./icons";

/** Without the key, nothing is told. */
export function Lock({ wrong }: { wrong: boolean }) {
  const [text, setText] = useState("");
  return (
    <main class="lock">
      <Mark />
      <h1>This page needs the job's key</h1>
      <p>
        {wrong ? "The key does not fit. The agent may have been started again. " : ""}
        Open the link that the agent printed at its start (<code>holdfast: dashboard: http://…</code>), or paste it here.
      </p>
      <form onSubmit={(event) => { event.preventDefault(); unlock(text); }}>
        <input
          aria-label="The link or the key" type="password" autoComplete="off" spellcheck={false}
          value={text} onInput={(event) => setText(event.currentTarget.value)}
        />
        <button class="plain" disabled={!text.trim()}>Open</button>
      </form>
    </main>
  );
}

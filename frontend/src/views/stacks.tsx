import { useState } from "preact/hooks";
import { askJson, Refused } from "../connection";
import type { StackGroup } from "../model";
import { go, useRoute } from "../route";
import { counted, parseRanks, rankRange } from "../words";

/** Where workers are in their code; those at the same place together, the fewest first. */
export function Stacks() {
  const { ranks } = useRoute();
  const wanted = parseRanks(ranks);
  const [groups, setGroups] = useState<StackGroup[] | null>(null);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const take = async () => {
    setBusy(true);
    setProblem("");
    try {
      const answer = await askJson<{ groups: StackGroup[]; words: string }>(`api/stacks?${new URLSearchParams({ ranks })}`);
      setGroups(answer.groups);
      setProblem(answer.words);
    } catch (why) {
      setProblem(why instanceof Refused ? why.message : "The agent could not be reached.");
    }
    setBusy(false);
  };
  return (
    <section class="card stacks" aria-labelledby="stacks-title">
      <div class="head">
        <h2 id="stacks-title">Stacks</h2>
        <label class="field">
          <span>Ranks</span>
          <input class="short" placeholder="all" value={ranks} aria-invalid={wanted === null} onInput={(event) => go("stacks", event.currentTarget.value)} />
        </label>
        <button class="plain" disabled={busy || wanted === null} onClick={take}>{busy ? "Asking …" : "Take stacks"}</button>
      </div>
      {problem && <p class="problem">{problem}</p>}
      {groups === null && !problem && (
        <p class="empty">Each worker is asked where it is in its code, and goes on. Those at the same place are shown together; who stands alone comes first.</p>
      )}
      {groups?.map((group) => (
        <details key={group.text} open={groups.length < 6} data-test="stack">
          <summary><b>{counted(group.ranks.length, "worker")}</b> {group.title} <span class="more">rank {rankRange(group.ranks)}</span></summary>
          <pre tabIndex={0}>{group.text}</pre>
        </details>
      ))}
    </section>
  );
}

import { useEffect, useRef, useState } from "preact/hooks";
import { filesOf, openJournals } from "../opening";
import { useStore } from "../store";

/** Files may be dropped anywhere on the page. */
export function DropArea() {
  const { opens } = useStore("connection");
  const [over, setOver] = useState(false);
  useEffect(() => {
    let inside = 0;
    const enter = (event: DragEvent) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      inside += event.type === "dragenter" ? 1 : 0;
      setOver(true);
    };
    const leave = () => {
      inside = Math.max(0, inside - 1);
      if (!inside) setOver(false);
    };
    // Without this, the browser would leave the page for the file.
    const drop = (event: DragEvent) => {
      event.preventDefault();
      inside = 0;
      setOver(false);
      if (event.dataTransfer) void filesOf(event.dataTransfer).then(openJournals);
    };
    const listeners = { dragenter: enter, dragover: enter, dragleave: leave, drop } as const;
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener as EventListener);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) removeEventListener(name, listener as EventListener);
    };
  }, []);
  if (!over) return null;
  return (
    <div class="drop" aria-hidden="true">
      <p>{opens ? "Drop journals of one job here" : "This page shows a job that runs"}</p>
    </div>
  );
}

export function OpenButton({ main = false }: { main?: boolean }) {
  const { opens } = useStore("connection");
  const input = useRef<HTMLInputElement>(null);
  if (!opens) return null;
  const chosen = () => {
    const files = [...(input.current?.files ?? [])];
    input.current!.value = "";
    void openJournals(files);
  };
  return (
    <>
      <input ref={input} type="file" multiple hidden onChange={chosen} data-test="files" />
      <button class={main ? "button" : "plain small"} onClick={() => input.current?.click()}>
        {main ? "Choose journals …" : "Open …"}
      </button>
    </>
  );
}

/** A page that was opened without any. */
export function NoJournal() {
  return (
    <section class="none" aria-labelledby="none-title" data-test="none">
      <h2 id="none-title">Drop the journals of a job here</h2>
      <p>
        Each node has one: <code>journal.jsonl</code> in its log folder. Those of several nodes become one story; a
        folder may be dropped as a whole. They go to the program that serves this page, and nowhere else.
      </p>
      <OpenButton main />
    </section>
  );
}

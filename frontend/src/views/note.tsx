import { useEffect } from "preact/hooks";
import { store, useStore } from "../store";

const SHOWN_MS = 8000;

/** What came of what the reader wanted. */
export function Note() {
  const { note } = useStore("note");
  useEffect(() => {
    if (!note || note.bad) return;
    const timer = setTimeout(() => store.say(""), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [note]);
  return (
    <div class="notes" role="status" aria-live="polite">
      {note && (
        <p class={note.bad ? "note bad" : "note"}>
          {note.words}
          <button class="quiet" onClick={() => store.say("")} aria-label="Close this note">×</button>
        </p>
      )}
    </div>
  );
}

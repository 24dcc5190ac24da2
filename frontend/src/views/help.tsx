import type { RefObject } from "preact";
import { WORKER_STATES } from "../model";
import { STATE_WORDS, Swatch } from "./legend";

const KEYS: [string, string][] = [
  ["1 … 5", "overview, speed, logs, stacks, nodes"],
  ["Tab", "to the next thing that can be used"],
  ["← → ↑ ↓", "in the grid: from worker to worker"],
  ["n, p", "in the grid: to the next, the previous worker that needs a look"],
  ["Enter", "in the grid: that worker's logs"],
  ["Home, End", "in the grid: the first, the last worker"],
  ["/", "to the filter of the logs"],
  ["t", "colours: as the system, light, dark"],
  ["?", "this help; Escape closes it"],
];

export function Help({ dialog }: { dialog: RefObject<HTMLDialogElement | null> }) {
  return (
    <dialog ref={dialog} aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <dl class="keys">
        {KEYS.map(([key, words]) => (
          <div key={key}><dt>{key.split(", ").map((one) => <kbd key={one}>{one}</kbd>)}</dt><dd>{words}</dd></div>
        ))}
      </dl>
      <h2>Signs in the grid</h2>
      <ul class="signs">
        {WORKER_STATES.map((state) => (
          <li key={state}><Swatch state={state} /><b>{STATE_WORDS[state].name}</b> {STATE_WORDS[state].words}</li>
        ))}
      </ul>
      <form method="dialog"><button class="plain">Close</button></form>
    </dialog>
  );
}

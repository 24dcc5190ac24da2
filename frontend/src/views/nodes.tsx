import { useRef, useState } from "preact/hooks";
import { want } from "../connection";
import type { Job, Node } from "../model";
import { store, useStore } from "../store";
import { bytes, counted, duration } from "../words";
import { Icon } from "./icons";

const SHOWN = 200;

interface Wish {
  action: string;
  title: string;
  words: string;
  subject: Record<string, unknown>;
}

const OF_THE_JOB: { action: string; name: string; words: string }[] = [
  { action: "save", name: "Save now", words: "All workers that ask holdfast.draining() save at one step. The job goes on." },
  { action: "scale", name: "Scale …", words: "The job has between so many nodes from now on. With too many, the round ends and the next begins with fewer; the others stand by." },
  { action: "restart", name: "Restart the round", words: "All workers are stopped and a new round begins. It is not counted as a failure." },
  { action: "stop", name: "Stop the job", words: "All workers are stopped on all nodes, and the job ends." },
];

export function Nodes() {
  const { nodes, job: told, isFresh } = useStore("nodes", "job", "ranks", "connection");
  // Who cannot be asked how it is cannot be told to do something.
  const job = told && !isFresh ? { ...told, actions: [] } : told;
  const [words, setWords] = useState("");
  const [wish, setWish] = useState<Wish | null>(null);
  const [least, setLeast] = useState(1);
  const [most, setMost] = useState(1);
  const dialog = useRef<HTMLDialogElement>(null);
  const confirm = (next: Wish) => {
    setWish(next);
    setLeast(job?.least_nodes ?? 1);
    setMost(job?.most_nodes ?? 1);
    dialog.current?.showModal();
  };
  const known = nodes.filter(Boolean);
  const fitting = known.filter((node) => `${node.name} ${node.state} ${node.words}`.toLowerCase().includes(words.toLowerCase()));
  return (
    <section class="card nodes" aria-labelledby="nodes-title">
      <div class="head">
        <h2 id="nodes-title">Nodes</h2>
        <label class="field wide">
          <span>Filter</span>
          <input data-filter type="search" placeholder="name, state" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        </label>
        <span class="more">{counted(fitting.length, "node")}</span>
        <span class="grow" />
        <JobActions job={job} confirm={confirm} />
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of nodes">
        <table data-test="nodes">
          <thead><tr><th>Node</th><th>State</th><th>Ranks</th><th class="spare">Slowest step</th><th class="spare">CPU</th><th class="spare">Memory</th><th><span class="hidden">Actions</span></th></tr></thead>
          <tbody>{fitting.slice(0, SHOWN).map((node) => <Row key={node.name} node={node} job={job} confirm={confirm} />)}</tbody>
        </table>
      </div>
      {fitting.length > SHOWN && <p class="more">The first {SHOWN} are shown. The filter finds the others.</p>}
      <dialog ref={dialog} aria-labelledby="wish-title">
        <h2 id="wish-title">{wish?.title}</h2>
        <p>{wish?.words}</p>
        {wish?.action === "scale" && (
          <p class="choices">
            <NodeCount name="least" value={least} change={setLeast} />
            <NodeCount name="most" value={most} change={setMost} />
          </p>
        )}
        <form method="dialog">
          <button class="plain">Cancel</button>
          <button class="danger" data-test="confirm" onClick={() => wish && void want(wish.action, wish.action === "scale" ? { least, most } : wish.subject)}>
            {wish?.title.replace(" …", "")}
          </button>
        </form>
      </dialog>
    </section>
  );
}

function NodeCount({ name, value, change }: { name: string; value: number; change: (value: number) => void }) {
  return (
    <label class="field">
      <span>{name === "least" ? "at least" : "at most"}</span>
      <input class="short" type="number" min={1} value={value} data-test={name} onInput={(event) => change(Number(event.currentTarget.value) || 0)} />
    </label>
  );
}

function JobActions({ job, confirm }: { job: Job | null; confirm: (wish: Wish) => void }) {
  const offered = OF_THE_JOB.filter(({ action }) => job?.actions.includes(action));
  return (
    <div class="choices">
      {offered.map(({ action, name, words }) => (
        <button key={action} class="plain" onClick={() => confirm({ action, title: name, words, subject: {} })}>{name}</button>
      ))}
    </div>
  );
}

function Row({ node, job, confirm }: { node: Node; job: Job | null; confirm: (wish: Wish) => void }) {
  const last = node.first_rank === null ? null : node.first_rank + node.slots - 1;
  const ranks = node.first_rank === null ? "–" : last === node.first_rank ? `${last}` : `${node.first_rank}–${last}`;
  const used = store.workers.sums(node.first_rank ?? 0, node.first_rank === null ? 0 : node.slots);
  const drain: Wish = {
    action: "drain",
    title: `Drain ${node.name}`,
    words: "Its workers may save first. Then the node leaves, and the others go on without it if they are enough.",
    subject: { node: node.name },
  };
  return (
    <tr class={`node-${node.state.replaceAll(" ", "-")}`}>
      <th scope="row"><span class="name"><Icon name="node" />{node.name}</span>{node.coordinator && <span class="tag">coordinator</span>}{node.name === job?.served_by && <span class="tag">serves this page</span>}</th>
      <td class="state"><b>{node.state}</b>{node.words && <span class="more"> {node.words}</span>}</td>
      <td class="number">{ranks}</td>
      <td class="number spare">{used.pace === null ? "–" : duration(used.pace / 1000)}</td>
      <td class="number spare">{used.cpu === null ? "–" : `${Math.round(used.cpu)} %`}</td>
      <td class="number spare">{used.memory === null ? "–" : bytes(used.memory)}</td>
      <td>{job?.actions.includes("drain") && node.state !== "leaving" && <button class="plain small" onClick={() => confirm(drain)}>Drain …</button>}</td>
    </tr>
  );
}

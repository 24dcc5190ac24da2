import { store, useStore } from "../store";
import { bytes, count, duration } from "../words";
import { STATE_WORDS, Swatch } from "./legend";

/** All that is known of one worker. */
export function WorkerCard({ rank }: { rank: number }) {
  const { workers, nodes } = useStore("ranks", "nodes");
  const worker = workers.worker(rank);
  const node = nodes.find((one) => one && one.first_rank !== null && rank >= one.first_rank && rank < one.first_rank + one.slots);
  const middle = workers.paces()?.middle;
  const slower = worker.pace_ms !== null && middle ? worker.pace_ms / middle : null;
  return (
    <aside class="worker" aria-label={`Rank ${rank}`} aria-live="polite" data-test="worker">
      <p class="who">
        <Swatch state={worker.state} /><b>Rank {rank}</b> {STATE_WORDS[worker.state].name}{worker.note && ` (${worker.note})`}
        <span class="more">{node ? `${node.name}, local rank ${rank - node.first_rank!}` : "on no node"}{worker.pid ? `, process ${worker.pid}` : ""}</span>
      </p>
      <dl>
        <Fact name="step" value={worker.step === null ? null : count(worker.step)} />
        <Fact name="last step" value={worker.stepped === null ? null : `${duration(store.now() - worker.stepped)} ago`} />
        <Fact name="a step takes" value={worker.pace_ms === null ? null : duration(worker.pace_ms / 1000)}
          more={slower !== null && slower > 1.05 ? `${slower.toFixed(1)}× the middle one` : ""} />
        <Fact name="CPU" value={worker.cpu === null ? null : `${Math.round(worker.cpu)} %`} />
        <Fact name="memory" value={worker.memory_mb === null ? null : bytes(worker.memory_mb)} />
      </dl>
      <div class="choices">
        <a class="button" href={`#logs?ranks=${rank}`}>Logs</a>
        <a class="button" href={`#stacks?ranks=${rank}`}>Stack</a>
        <button class="quiet" onClick={() => store.choose(null)} aria-label="Close">×</button>
      </div>
    </aside>
  );
}

function Fact({ name, value, more = "" }: { name: string; value: string | null; more?: string }) {
  if (value === null) return null;
  return <div><dt>{name}</dt><dd>{value}{more && <span class="more"> {more}</span>}</dd></div>;
}

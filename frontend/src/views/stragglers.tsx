import { store, useStore } from "../store";
import { go } from "../route";
import { count, duration } from "../words";
import { STATE_WORDS, Swatch } from "./legend";

const SHOWN = 10;

/** The slowest workers, beside the middle one. */
export function Stragglers() {
  const { workers } = useStore("ranks");
  const paces = workers.paces();
  const pace = workers.column("pace_ms");
  const slowest = [...pace.keys()]
    .filter((rank) => pace[rank]! > 0)
    .sort((a, b) => pace[b]! - pace[a]!)
    .slice(0, SHOWN);
  const choose = (rank: number) => {
    store.choose(rank);
    go("overview");
  };
  return (
    <section class="card stragglers" aria-labelledby="stragglers-title">
      <div class="head"><h2 id="stragglers-title">Slowest workers</h2><span class="more">{paces ? `the middle one takes ${duration(paces.middle / 1000)}` : ""}</span></div>
      {!paces && <p class="empty">No worker's pace is known.</p>}
      <ol class="bars">
        {slowest.map((rank) => {
          const worker = workers.worker(rank);
          return (
            <li key={rank}>
              <p>
                <button class="link" onClick={() => choose(rank)}>rank {rank}</button>
                <span class="words"><Swatch state={worker.state} />{STATE_WORDS[worker.state].name}{worker.step !== null && `, step ${count(worker.step)}`}</span>
                <b>{duration(worker.pace_ms! / 1000)}</b>
              </p>
              <div class="stack" style={{ width: `${Math.max(2, (worker.pace_ms! / paces!.slowest) * 100)}%` }}>
                <i class={worker.state === "slow" ? "part part-slow" : "part part-useful"} style={{ flexGrow: 1 }} />
              </div>
            </li>
          );
        })}
      </ol>
    </section>
  );
}

import { partClass } from "../parts";
import { store, useStore } from "../store";
import { duration, moment } from "../words";

const SHOWN = 20;

/** How long each recovery took, and what took it. */
export function Recoveries() {
  const { incidents } = useStore("story");
  const done = incidents.filter((incident) => incident.recovered_s !== null).slice(-SHOWN).reverse();
  const longest = Math.max(...done.map((incident) => incident.recovered_s!), 0.001);
  const names = [...new Map(done.flatMap((incident) => incident.phases.map((phase) => [phase.name, phase.words]))).entries()];
  return (
    <section class="card recoveries" aria-labelledby="recoveries-title">
      <div class="head"><h2 id="recoveries-title">Recoveries</h2><span class="more">from the failure to the next step</span></div>
      {!done.length && <p class="empty">Nothing had to be recovered so far.</p>}
      <ul class="key">
        {names.map(([name, words]) => <li key={name}><i class={partClass(name)} aria-hidden="true" />{words}</li>)}
      </ul>
      <ol class="bars" data-test="recoveries">
        {done.map((incident) => (
          <li key={incident.number} title={incident.phases.map((phase) => `${phase.words}: ${duration(phase.seconds)}`).join("\n")}>
            <p><time>{moment(incident.at, store.now())}</time><span class="words">{incident.words}</span><b>{duration(incident.recovered_s!)}</b></p>
            <div class="stack" style={{ width: `${Math.max(2, (incident.recovered_s! / longest) * 100)}%` }}>
              {incident.phases.map((phase) => (
                <i key={phase.name} class={partClass(phase.name)} style={{ flexGrow: phase.seconds }} />
              ))}
            </div>
          </li>
        ))}
      </ol>
    </section>
  );
}

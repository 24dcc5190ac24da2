import { useState } from "preact/hooks";
import type { Event, Incident } from "../model";
import { store, useStore } from "../store";
import { duration, moment, rankRange } from "../words";
import { Icon } from "./icons";
import { toneOf } from "./kinds";

const SHOWN = 200;

export function Happened() {
  const { events, incidents } = useStore("events", "story");
  const [what, setWhat] = useState<"incidents" | "all">("incidents");
  return (
    <section class="card happened" aria-labelledby="happened-title">
      <div class="head">
        <h2 id="happened-title">What happened</h2>
        <div class="switch" role="group" aria-label="Which events">
          <button aria-pressed={what === "incidents"} onClick={() => setWhat("incidents")}>Incidents</button>
          <button aria-pressed={what === "all"} onClick={() => setWhat("all")}>Everything</button>
        </div>
      </div>
      {what === "incidents" ? <Incidents incidents={incidents} /> : <Events events={events} />}
    </section>
  );
}

function Incidents({ incidents }: { incidents: Incident[] }) {
  if (!incidents.length) return <p class="empty">Nothing has gone wrong so far.</p>;
  return (
    <ol class="list" data-test="incidents">
      {incidents.slice(-SHOWN).reverse().map((incident) => <IncidentItem key={incident.number} incident={incident} />)}
    </ol>
  );
}

export function IncidentItem({ incident }: { incident: Incident }) {
  const open = incident.recovered_s === null;
  return (
    <li id={`incident-${incident.number}`} class={open ? "incident open" : "incident"}>
      <p class="meta">
        <time>{moment(incident.at, store.now())}</time>
        <span>round {incident.round}</span>
      </p>
      <p class="words"><Icon name="bad" />{incident.words}</p>
      <p class={open ? "result" : "result good"}>
        <Icon name={open ? "waiting" : "good"} />
        {open ? (store.job?.outcome ? "not recovered" : "not over yet") : `recovered in ${duration(incident.recovered_s!)}`}
      </p>
      {incident.decision && <p class="cause">{withoutRepeat(incident.decision, incident.words)}</p>}
      {incident.ranks.length > 0 && !store.job?.is_journal && (
        <p class="cause"><a href={`#logs?ranks=${incident.ranks.slice(0, 8).join(",")}`}>Logs of rank {rankRange(incident.ranks)}</a></p>
      )}
    </li>
  );
}

/** A decision begins with what it is about, which stands above it already. */
function withoutRepeat(decision: string, words: string): string {
  return decision.startsWith(words) ? decision.slice(words.length).replace(/^[;:,\s]+/, "") : decision;
}

function Events({ events }: { events: Event[] }) {
  if (!events.length) return <p class="empty">Nothing has been told yet.</p>;
  return (
    <ol class="list events" data-test="events">
      {events.slice(-SHOWN).reverse().map((event) => {
        const tone = toneOf(event.kind);
        return (
          <li key={`${event.by}:${event.seq}:${event.at}:${event.kind}:${event.words}`} class={`event tone-${tone}`}>
            <Icon name={tone} label={tone === "plain" ? "" : tone} />
            <time>{moment(event.at, store.now())}</time>
            <p>{event.words}</p>
          </li>
        );
      })}
    </ol>
  );
}

import { useRef, useState } from "preact/hooks";
import type { Incident, Lane, Segment } from "../model";
import { partClass } from "../parts";
import { useWidth } from "../size";
import { store, useSeconds, useStore } from "../store";
import { ticks } from "../ticks";
import { clock, counted, duration, moment } from "../words";

const BAND = { top: 24, height: 34 };
const LANE = { height: 12, pitch: 18, top: BAND.top + BAND.height + 10 };
const AXIS = 28;
/** So many nodes have a lane at first. */
const LANES = 8;
/** Room for their names. */
const NAMES = 92;
const SPANS = [
  { name: "All", seconds: Infinity },
  { name: "1 h", seconds: 3600 },
  { name: "10 min", seconds: 600 },
  { name: "1 min", seconds: 60 },
] as const;
/** A shorter job is shown as a whole. */
const SHORTEST_S = 60;
/** What is narrower cannot be seen. */
const LEAST_PX = 0.3;

const SIGNS: Record<Incident["kind"], { path: string; words: string }> = {
  failure: { path: "M0-6L6 5H-6z", words: "a worker failed" },
  loss: { path: "M0-6L6 0L0 6L-6 0z", words: "a node was lost" },
  hang: { path: "M-5-5h3.4v10h-3.4zM1.6-5h3.4v10h-3.4z", words: "all workers stalled" },
};

/** The job's time by its parts, with what went wrong, and where its workers ran. */
export function Timeline() {
  const { incidents, segments, lanes, job } = useStore("story", "job", "events", "connection");
  const [span, setSpan] = useState<number>(Infinity);
  const [all, setAll] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  useSeconds(!job?.outcome && !job?.is_journal);
  if (!job) return null;
  const to = store.ended() ?? store.now();
  const began = store.started();
  const from = Math.max(began, to - span);
  const long = to - began;
  const shown = lanes.length > 1 ? lanes.slice(0, all ? lanes.length : LANES) : [];
  const hidden = lanes.length > 1 ? Math.max(job.nodes, lanes.length) - shown.length : 0;
  return (
    <section class="card timeline" aria-labelledby="timeline-title">
      <div class="head">
        <h2 id="timeline-title">Timeline</h2>
        {long > SHORTEST_S && (
          <div class="switch" role="group" aria-label="How far back">
            {SPANS.filter(({ seconds }) => seconds === Infinity || seconds < long).map(({ name, seconds }) => (
              <button key={name} aria-pressed={span === seconds} onClick={() => setSpan(seconds)}>{name}</button>
            ))}
          </div>
        )}
      </div>
      <div ref={box} class="strip">
        {width > 0 && <Strip incidents={incidents} segments={segments} lanes={shown} from={from} to={to} whole={width} />}
      </div>
      {hidden > 0 && (
        <p class="more">
          and {counted(hidden, "more node", "more nodes")}
          {shown.length < lanes.length && <> <button class="link" onClick={() => setAll(true)}>Show {lanes.length}</button></>}
        </p>
      )}
      <Key incidents={incidents.filter(({ at }) => at >= from)} segments={segments.filter(({ end }) => end > from)} />
    </section>
  );
}

interface StripProps {
  incidents: Incident[];
  segments: Segment[];
  lanes: Lane[];
  from: number;
  to: number;
  whole: number;
}

function Strip({ incidents, segments, lanes, from, to, whole }: StripProps) {
  const [chosen, setChosen] = useState<number | null>(null);
  const left = lanes.length ? Math.min(NAMES, whole / 4) : 0;
  const width = whole - left;
  const bottom = lanes.length ? LANE.top + lanes.length * LANE.pitch : BAND.top + BAND.height;
  const x = (at: number) => Math.min(1, Math.max(0, (at - from) / Math.max(0.001, to - from))) * width;
  const shown = incidents.filter((incident) => incident.at >= from);
  const told = shown.find((incident) => incident.number === chosen) ?? null;
  const move = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by || !shown.length) return;
    event.preventDefault();
    const k = shown.findIndex((incident) => incident.number === chosen);
    const next = k < 0 ? (by > 0 ? 0 : shown.length - 1) : Math.min(shown.length - 1, Math.max(0, k + by));
    setChosen(shown[next]!.number);
  };
  return (
    <>
      <svg
        width={whole} height={bottom + AXIS} tabIndex={0} role="group" onKeyDown={move}
        aria-label={`${incidents.length} incidents. Arrow keys go from incident to incident.`}
      >
        <defs>
          <pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <rect class="hatch" width="1.6" height="5" />
          </pattern>
        </defs>
        <g transform={`translate(${left} 0)`}>
          <rect x={0} y={BAND.top} width={width} height={BAND.height} fill="url(#hatch)" />
          <Parts segments={segments} to={to} x={x} />
          <RoundNames segments={segments} x={x} />
          {lanes.map((lane, k) => <LaneOf key={`${lane.node} ${k}`} lane={lane} top={LANE.top + k * LANE.pitch} left={left} to={to} x={x} />)}
          <Axis from={from} to={to} width={width} x={x} bottom={bottom} />
          {shown.map((incident) => (
            <g key={incident.number} class={incident.number === chosen ? "sign chosen" : "sign"}
              transform={`translate(${Math.min(width - 7, Math.max(7, x(incident.at)))} 12)`}
              onClick={() => setChosen(incident.number)} onPointerEnter={() => setChosen(incident.number)}>
              <rect x={-8} y={-12} width={16} height={BAND.top + BAND.height} fill="transparent" />
              <path d={SIGNS[incident.kind].path} />
            </g>
          ))}
        </g>
      </svg>
      <p class="told" aria-live="polite">
        {told ? (
          <>
            <time>{moment(told.at, store.now())}</time> {told.words}
            <span class="more">
              {told.recovered_s !== null ? `recovered in ${duration(told.recovered_s)}` : store.job?.outcome ? "not recovered" : "not over yet"}
            </span>
          </>
        ) : (
          <span class="more">{shown.length ? "Point at a sign to read what happened." : "Nothing has gone wrong in this time."}</span>
        )}
      </p>
    </>
  );
}

type Scale = (at: number) => number;

/** Each moment is in one part. What goes on is shown up to now. */
function Parts({ segments, to, x }: { segments: Segment[]; to: number; x: Scale }) {
  const words = new Map(store.ledger?.parts.map((part) => [part.name, part.words]));
  const goesOn = store.job && !store.job.outcome && !store.job.is_journal;
  return (
    <g>
      {segments.map(({ part, start, end, round }, k) => {
        const last = k === segments.length - 1 && goesOn ? Math.max(end, to) : end;
        const width = x(last) - x(start);
        if (width < LEAST_PX) return null;
        return (
          <rect key={k} class={partClass(part)} x={x(start)} y={BAND.top} width={width} height={BAND.height}>
            <title>{`${clock(start)}: ${words.get(part) ?? part}, ${duration(last - start)}, round ${round}`}</title>
          </rect>
        );
      })}
    </g>
  );
}

/** Where the workers of each round stepped. */
function RoundNames({ segments, x }: { segments: Segment[]; x: Scale }) {
  const spans = new Map<number, [number, number]>();
  for (const { part, start, end, round } of segments) {
    if (part === "useful" || part === "lost steps") spans.set(round, [spans.get(round)?.[0] ?? start, end]);
  }
  return (
    <g class="rounds">
      {[...spans].map(([round, [start, end]]) => {
        const width = x(end) - x(start);
        if (width < 24) return null;
        return <text key={round} x={x(start) + width / 2} y={BAND.top + 21}>{width > 70 ? `round ${round}` : round}</text>;
      })}
    </g>
  );
}

/** A thin line while the node is there, and a bar for each round of its workers. */
function LaneOf({ lane, top, left, to, x }: { lane: Lane; top: number; left: number; to: number; x: Scale }) {
  const middle = top + LANE.height / 2;
  return (
    <g class="lane">
      <text x={-left} y={top + LANE.height - 2}>{lane.node.length > 13 ? `${lane.node.slice(0, 12)}…` : lane.node}<title>{lane.node}</title></text>
      <line x1={x(lane.start)} x2={x(lane.end ?? to)} y1={middle} y2={middle} />
      {lane.runs.map(({ round, start, end }) => (
        <rect key={round} x={x(start)} y={top} width={Math.max(0.5, x(end ?? to) - x(start) - 1)} height={LANE.height} rx={2}>
          <title>{`${lane.node}: workers of round ${round}, ${duration((end ?? to) - start)}`}</title>
        </rect>
      ))}
    </g>
  );
}

function Axis({ from, to, width, x, bottom }: { from: number; to: number; width: number; x: Scale; bottom: number }) {
  return (
    <g class="axis">
      {ticks(from, to, Math.max(2, width / 90)).map((at) => {
        const place = x(at);
        return (
          <g key={at} transform={`translate(${place} 0)`}>
            <line y1={bottom + 3} y2={bottom + 8} />
            <text y={bottom + 20} text-anchor={place < 30 ? "start" : place > width - 30 ? "end" : "middle"}>{clock(at)}</text>
          </g>
        );
      })}
    </g>
  );
}

/** Only what is there is explained. */
function Key({ incidents, segments }: { incidents: Incident[]; segments: Segment[] }) {
  const used = new Set(segments.map(({ part }) => part));
  return (
    <ul class="key">
      {store.ledger?.parts.filter((part) => used.has(part.name)).map((part) => (
        <li key={part.name}><i class={partClass(part.name)} aria-hidden="true" />{part.words}</li>
      ))}
      {[...new Set(incidents.map(({ kind }) => kind))].map((kind) => (
        <li key={kind}><svg viewBox="-8 -8 16 16" aria-hidden="true"><path d={SIGNS[kind].path} /></svg>{SIGNS[kind].words}</li>
      ))}
    </ul>
  );
}

import { useRef, useState } from "preact/hooks";
import type { Incident, Round } from "../model";
import { useWidth } from "../size";
import { store, useSeconds, useStore } from "../store";
import { ticks } from "../ticks";
import { clock, duration, moment } from "../words";

const HEIGHT = 86;
const BAND = { top: 24, height: 34 };
const SPANS = [
  { name: "All", seconds: Infinity },
  { name: "1 h", seconds: 3600 },
  { name: "10 min", seconds: 600 },
  { name: "1 min", seconds: 60 },
] as const;
/** A shorter job is shown as a whole. */
const SHORTEST_S = 60;
/** A round is at least this wide, so that it can be seen. */
const LEAST_PX = 1.5;

const ENDINGS: Record<Round["ended_by"], { sign: string; words: string }> = {
  "": { sign: "", words: "still running" },
  failure: { sign: "M0-6L6 5H-6z", words: "a worker failed" },
  loss: { sign: "M0-6L6 0L0 6L-6 0z", words: "a node was lost" },
  hang: { sign: "M-5-5h3.4v10h-3.4zM1.6-5h3.4v10h-3.4z", words: "all stood still" },
  change: { sign: "M-1.2-5h2.4v10h-2.4z", words: "nodes came or left" },
  success: { sign: "", words: "all workers were done" },
};

/** The job as a line of rounds, with what ended them. */
export function Timeline() {
  const { rounds, incidents, job } = useStore("story", "job", "events");
  const [span, setSpan] = useState<number>(Infinity);
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  useSeconds(!job?.outcome && !job?.is_journal);
  if (!job) return null;
  const to = store.ended() ?? store.now();
  const began = store.started();
  const from = Math.max(began, to - span);
  const long = to - began;
  return (
    <section class="card timeline" aria-labelledby="timeline-title">
      <div class="head">
        <h2 id="timeline-title">Rounds</h2>
        {long > SHORTEST_S && (
          <div class="switch" role="group" aria-label="How far back">
            {SPANS.filter(({ seconds }) => seconds === Infinity || seconds < long).map(({ name, seconds }) => (
              <button key={name} aria-pressed={span === seconds} onClick={() => setSpan(seconds)}>{name}</button>
            ))}
          </div>
        )}
      </div>
      <div ref={box} class="strip">
        {width > 0 && <Strip rounds={rounds} incidents={incidents} from={from} to={to} width={width} />}
      </div>
      <Key rounds={rounds} />
    </section>
  );
}

interface StripProps {
  rounds: Round[];
  incidents: Incident[];
  from: number;
  to: number;
  width: number;
}

function Strip({ rounds, incidents, from, to, width }: StripProps) {
  const [chosen, setChosen] = useState<number | null>(null);
  const x = (at: number) => ((at - from) / Math.max(0.001, to - from)) * width;
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
        width={width} height={HEIGHT} tabIndex={0} role="group" onKeyDown={move}
        aria-label={`${rounds.length} rounds, ${incidents.length} incidents. Arrow keys go from incident to incident.`}
      >
        <defs>
          <pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <rect class="hatch" width="1.6" height="5" />
          </pattern>
        </defs>
        <rect class="idle" x={0} y={BAND.top} width={width} height={BAND.height} rx={4} fill="url(#hatch)" />
        {rounds.filter((round) => (round.ended ?? to) >= from).map((round) => (
          <Band key={round.number} round={round} left={Math.max(0, x(round.began))} right={Math.min(width, x(round.ended ?? to))} />
        ))}
        {shown.map((incident) => {
          const round = rounds.find((one) => one.number === incident.round);
          const sign = ENDINGS[round?.ended_by || "failure"].sign || ENDINGS.failure.sign;
          return (
            <g key={incident.number} class={incident.number === chosen ? "sign chosen" : "sign"}
              transform={`translate(${Math.min(width - 7, Math.max(7, x(incident.at)))} 12)`}
              onClick={() => setChosen(incident.number)} onPointerEnter={() => setChosen(incident.number)}>
              <rect x={-8} y={-12} width={16} height={HEIGHT - 24} fill="transparent" />
              <path d={sign} />
            </g>
          );
        })}
        <Axis from={from} to={to} width={width} x={x} />
      </svg>
      <p class="told" aria-live="polite">
        {told ? (
          <>
            <time>{moment(told.at, store.now())}</time> {told.words}
            <span class="more">
              {told.recovered_s === null ? "not over yet" : `recovered in ${duration(told.recovered_s)}`}
            </span>
          </>
        ) : (
          <span class="more">{shown.length ? "Point at a sign to read what happened." : "Nothing has gone wrong in this time."}</span>
        )}
      </p>
    </>
  );
}

function Band({ round, left, right }: { round: Round; left: number; right: number }) {
  const width = Math.max(LEAST_PX, right - left - (round.ended === null ? 0 : 1));
  return (
    <g class={`band ${round.ended === null ? "current" : ""}`}>
      <rect x={left} y={BAND.top} width={width} height={BAND.height} rx={Math.min(4, width / 3)}>
        <title>
          {`${clock(round.began)}: ${round.words}. ` +
            (round.ended === null ? "It runs." : `It ended after ${duration(round.ended - round.began)}: ${round.ending || ENDINGS[round.ended_by].words}.`)}
        </title>
      </rect>
      {width > 22 && <text x={left + 7} y={BAND.top + 21}>{round.number}</text>}
    </g>
  );
}

function Axis({ from, to, width, x }: { from: number; to: number; width: number; x: (at: number) => number }) {
  return (
    <g class="axis">
      {ticks(from, to, Math.max(2, width / 90)).map((at) => {
        const place = x(at);
        return (
          <g key={at} transform={`translate(${place} 0)`}>
            <line y1={BAND.top + BAND.height + 3} y2={BAND.top + BAND.height + 8} />
            <text y={HEIGHT - 8} text-anchor={place < 30 ? "start" : place > width - 30 ? "end" : "middle"}>{clock(at)}</text>
          </g>
        );
      })}
    </g>
  );
}

/** Only the signs that are there are explained. */
function Key({ rounds }: { rounds: Round[] }) {
  const used = new Map(rounds.filter((round) => ENDINGS[round.ended_by].sign).map((round) => [round.ended_by, 0]));
  return (
    <ul class="key">
      {[...used.keys()].map((name) => (
        <li key={name}><svg viewBox="-8 -8 16 16" aria-hidden="true"><path d={ENDINGS[name].sign} /></svg>{ENDINGS[name].words}</li>
      ))}
      <li><svg viewBox="-8 -8 16 16" aria-hidden="true"><rect x="-8" y="-5" width="16" height="10" fill="url(#hatch)" /></svg>nobody worked</li>
    </ul>
  );
}

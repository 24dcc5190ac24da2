import type { Job } from "../model";
import { store, useSeconds, useStore } from "../store";
import type { Paces } from "../workers";
import { count, counted, duration, percent, rate } from "../words";

/** Whose step takes less than so many times the middle one's is as fast as all. */
const ALIKE = 1.2;

export function Now() {
  const { job, incidents, workers, history, ledger } = useStore("job", "story", "ranks", "connection");
  useSeconds(!job?.outcome && !job?.is_journal);
  if (!job) return null;
  const paces = workers.paces();
  const last = incidents.findLast((incident) => incident.recovered_s !== null);
  const useful = ledger?.parts[0];
  const speed = history.last();
  return (
    <section class="now" aria-label="How the job is">
      <p class={job.state === "late" ? "sentence late" : "sentence"} data-test="sentence">{job.words}</p>
      {job.saving && <p class="more" role="status" data-test="saving">{job.saving}</p>}
      {job.waiting && <Wait words={job.waiting} />}
      {job.outcome && job.outcome.verdict !== "succeeded" && !sameWords(job.outcome.reason, job.words) && (
        <p class={job.state === "failed" ? "reason" : "more"}>{job.outcome.reason}</p>
      )}
      {job.outcome && !job.is_journal && <p class="more">The agent that served this page has ended with the job. <code>holdfast dashboard {job.run}</code> opens it again.</p>}
      {job.notes.map((note) => <p key={note} class="more">Note: {note}.</p>)}
      <dl class="figures">
        {!job.is_journal && <Figure name="Step" value={job.step === null ? "–" : count(job.step)} isLate={job.state === "late"}
          more={job.step === null ? "workers report none" : lastStep(job, speed)} />}
        <Figure name="Workers" value={count(job.ranks)} more={`on ${counted(job.nodes, "node")}, round ${job.round}`} />
        <Figure name="Restarts" value={count(job.restarts)} more={`of at most ${count(job.restarts_most)}`} />
        <Figure name="Last recovery" value={last ? duration(last.recovered_s!) : "–"}
          more={last ? `${duration((store.ended() ?? store.now()) - last.at)} ${job.outcome ? "before the end" : "ago"}` : incidents.length ? (job.outcome ? "none came to its end" : "not over yet") : "nothing has failed"} />
        {!job.is_journal && <Pace paces={paces} alone={workers.count === 1} />}
        <Figure name="Goodput" value={useful && ledger!.total_s > 0 ? percent(useful.seconds / ledger!.total_s) : "–"}
          more={age(job)} />
      </dl>
    </section>
  );
}

/** Who is slow is worth a name only where somebody is. */
function Pace({ paces, alone }: { paces: Paces | null; alone: boolean }) {
  if (!paces) return <Figure name="A step takes" value="–" more="" />;
  const middle = duration(paces.middle / 1000);
  if (paces.slowest < ALIKE * paces.middle) return <Figure name="A step takes" value={middle} more={alone ? "" : "all workers are alike"} />;
  return <Figure name="Slowest worker" value={`rank ${paces.slowestRank}`} more={`${duration(paces.slowest / 1000)} a step; the middle ${middle}`} />;
}

/** The sentence above may be the reason itself, as a sentence. */
function sameWords(one: string, other: string): boolean {
  const plain = (words: string) => words.toLowerCase().replace(/\.$/, "");
  return plain(one) === plain(other);
}

function age(job: Job): string {
  const took = duration(store.ledger?.total_s ?? 0);
  return job.outcome || job.is_journal ? `it took ${took}` : `of ${took}`;
}

/** How fast, and how old the last step is. */
function lastStep(job: Job, speed: number | null): string {
  const made = job.stepped_at === null || job.outcome ? "" : `last ${duration(Math.max(0.1, store.now() - job.stepped_at))} ago`;
  const fast = speed === null || job.state === "late" || job.outcome ? "" : `${rate(speed)}/s`;
  return [fast, made].filter(Boolean).join(", ");
}

function Figure({ name, value, more, isLate = false }: { name: string; value: string; more: string; isLate?: boolean }) {
  return <div class={isLate ? "figure late" : "figure"}><dt>{name}</dt><dd>{value}</dd>{more && <dd class="more" data-test={name === "Step" ? "last-step" : undefined}>{more}</dd>}</div>;
}

/** The words say for how long at most, where there is an end to it. */
function Wait({ words }: { words: string }) {
  const waited = Math.max(0, store.now() - store.waitingSince);
  return (
    <div class="waiting" data-test="waiting">
      <p>{words}<span class="more">{waited < 1 ? "" : `for ${duration(Math.floor(waited))}`}</span></p>
    </div>
  );
}

import type { Job, Waiting } from "../model";
import { store, useSeconds, useStore } from "../store";
import { count, counted, duration, percent, rate } from "../words";

export function Now() {
  const { job, story, workers } = useStore("job", "story", "ranks");
  useSeconds(!job?.ended);
  if (!job) return null;
  const paces = workers.paces();
  const recovered = story.incidents.filter((incident) => incident.recovered_s !== null);
  const last = recovered[recovered.length - 1];
  const useful = job.goodput?.parts[0];
  return (
    <section class="now" aria-label="How the job is">
      <p class="sentence" data-test="sentence">{job.words}</p>
      {job.waiting && <Wait waiting={job.waiting} />}
      {job.outcome && job.outcome.verdict !== "succeeded" && <p class="reason">{job.outcome.reason}</p>}
      <dl class="figures">
        <Figure name="Step" value={job.step === null ? "–" : count(job.step)}
          more={job.step === null ? "workers report none" : job.rate === null ? "" : `${rate(job.rate)} a second`} />
        <Figure name="Workers" value={count(job.ranks)} more={`on ${counted(job.nodes, "node")}, round ${job.round}`} />
        <Figure name="Restarts" value={count(job.restarts)} more={`of at most ${count(job.restarts_most)}`} />
        <Figure name="Last recovery" value={last ? duration(last.recovered_s!) : "–"}
          more={last ? `${duration(store.now() - last.at)} ago` : "nothing has failed"} />
        <Figure name="Slowest worker" value={paces ? `rank ${paces.slowestRank}` : "–"}
          more={paces ? `${duration(paces.slowest / 1000)} a step; the middle ${duration(paces.middle / 1000)}` : ""} />
        <Figure name="Goodput" value={useful && job.goodput!.total_s > 0 ? percent(useful.seconds / job.goodput!.total_s) : "–"}
          more={age(job)} />
      </dl>
    </section>
  );
}

function age(job: Job): string {
  return job.ended ? `it took ${duration(job.ended - job.started)}` : `of ${duration(store.now() - job.started)}`;
}

function Figure({ name, value, more }: { name: string; value: string; more: string }) {
  return <div class="figure"><dt>{name}</dt><dd>{value}</dd>{more && <dd class="more">{more}</dd>}</div>;
}

function Wait({ waiting }: { waiting: Waiting }) {
  const waited = Math.max(0, store.now() - waiting.since);
  const counts = waiting.of !== null && waiting.done !== null;
  const share = counts ? waiting.done! / waiting.of! : waiting.until ? waited / (waiting.until - waiting.since) : null;
  return (
    <div class="waiting" data-test="waiting">
      <p>
        {waiting.words}
        <span class="more">
          {duration(Math.floor(waited))}{waiting.until ? ` of at most ${duration(waiting.until - waiting.since)}` : ""}
        </span>
      </p>
      {share !== null && <progress value={Math.min(1, share)} max={1} aria-label={waiting.words} />}
    </div>
  );
}

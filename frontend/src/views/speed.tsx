import { useStore } from "../store";
import { duration, rate } from "../words";
import { Plot } from "./plot";
import { Recoveries } from "./recoveries";
import { Stragglers } from "./stragglers";

export function Speed() {
  const { history, job } = useStore("ranks", "job");
  const some = history.at.length > 1;
  const steps = job?.step !== null;
  return (
    <>
      {!job?.is_journal && <section class="card" aria-labelledby="rate-title">
        <div class="head"><h2 id="rate-title">Steps a second</h2><span class="more">since this page was opened</span></div>
        {!steps ? <NoSteps /> : some ? (
          <Plot at={history.at} lines={[{ name: "steps a second", colour: "accent", values: history.rate }]} show={rate} label="Steps a second over time" />
        ) : <p class="empty">The first figures come in a moment.</p>}
      </section>}
      {steps && some && (
        <section class="card" aria-labelledby="spread-title">
          <div class="head"><h2 id="spread-title">Time of a step</h2><span class="more">the slowest, the middle and the fastest worker</span></div>
          <Plot
            at={history.at} show={(value) => duration(value / 1000)} label="Time of a step over time"
            lines={[
              { name: "slowest", colour: "state-slow", values: history.slowest },
              { name: "middle", colour: "accent", values: history.middle },
              { name: "fastest", colour: "muted", values: history.fastest, dash: [4, 4] },
            ]}
          />
        </section>
      )}
      <div class="columns even">
        <Recoveries />
        {!job?.is_journal && <Stragglers />}
      </div>
    </>
  );
}

function NoSteps() {
  return (
    <p class="empty">
      The workers of this job report no steps. One line in their loop is enough: <code>holdfast.progress(step)</code>.
    </p>
  );
}

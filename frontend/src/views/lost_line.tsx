import { addressOf, tryNow } from "../connection";
import { store, useSeconds, useStore } from "../store";
import { clock, duration } from "../words";

/** The first seconds may be a hiccup of the network: then the page says what it lost, and what comes. */
const SAID_AFTER_S = 1.5;

/** The page never leaves by itself: where another dashboard is, that node says, and a reader can judge it. */
export function LostLine() {
  const { connection, job, dashboards, trouble } = useStore("connection", "job");
  useSeconds(connection.state === "lost");
  const gone = connection.state === "lost" ? (Date.now() - connection.since) / 1000 : 0;
  const others = dashboards.filter((other) => other.node !== job?.served_by);
  if (connection.state === "live" && trouble) {
    return <div class="lost calm" role="status" data-test="trouble"><p><b>The job cannot be asked right now:</b> {trouble}. What you see is from {clock(store.now())}.</p></div>;
  }
  if (gone < SAID_AFTER_S) return null;
  return (
    <div class="lost" role="alert" data-test="lost">
      <p>
        <b>No contact with the agent that serves this page</b>
        {job && ` (${job.served_by})`} since {clock(store.now())}, for {duration(Math.floor(gone))}. What you see is
        from then. It tries again by itself.
      </p>
      <div class="choices">
        <button class="plain" onClick={() => { store.connect({ state: "connecting" }); tryNow(); }}>Try now</button>
        {others.slice(0, 6).map((other) => (
          <a key={other.node} class="button" href={addressOf(other)}>Go to {other.node} at {new URL(other.url).host}</a>
        ))}
      </div>
    </div>
  );
}

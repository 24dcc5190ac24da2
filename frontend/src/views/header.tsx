import { useState } from "preact/hooks";
import type { Job } from "../model";
import { type Tab, TABS } from "../route";
import { type Connection, useStore } from "../store";
import { nextTheme, theme } from "../theme";
import { Icon, type IconName, Mark } from "./icons";

const STATES: Record<Job["state"], string> = {
  waiting: "Waiting",
  running: "Running",
  late: "No progress",
  stopping: "Recovering",
  succeeded: "Succeeded",
  failed: "Failed",
  stopped: "Stopped",
  "cut off": "Cut off",
};

export function Header({ tab, openHelp }: { tab: Tab; openHelp: () => void }) {
  const { job, connection, dashboards, isFresh, lines, listsJobs } = useStore("job", "connection");
  const others = dashboards.map(({ node }) => node).filter((node) => node !== job?.served_by);
  return (
    <header class="top">
      <div class="bar">
        <a class="brand" href="#overview" aria-label="Holdfast: overview"><Mark /><span>Holdfast</span></a>
        {job && <h1 title={job.run}>{job.run}</h1>}
        {job && <StatePill state={job.state} isStale={!job.outcome && !job.is_journal && !isFresh} />}
        <span class="grow" />
        {(job || connection.state !== "live") && <Line connection={connection} isJournal={job?.is_journal ?? false} others={others} />}
        {job && listsJobs && <a class="plain small" href={location.pathname}>All jobs</a>}
        <ThemeButton />
        <button class="quiet" onClick={openHelp} title="Keys and help (?)" aria-label="Help">
          <Icon name="help" />
        </button>
      </div>
      {job && <nav aria-label="Parts of this page">
        {tabsOf(job, lines.length > 0).map((name) => (
          <a key={name} href={`#${name}`} aria-current={name === tab ? "page" : undefined} title={`Key ${TABS.indexOf(name) + 1}`}>
            {name[0]!.toUpperCase() + name.slice(1)}
          </a>
        ))}
      </nav>}
    </header>
  );
}

/** Of a job that has ended there are its lines at most. */
function tabsOf(job: Job, hasLines: boolean): Tab[] {
  const isOver = job.is_journal || job.outcome !== null;
  return TABS.filter((name) => (name === "logs" ? !isOver || hasLines : name === "stacks" || name === "nodes" ? !isOver : true));
}

export function StatePill({ state, isStale }: { state: Job["state"]; isStale: boolean }) {
  return (
    <span class={`pill job-${state.replace(" ", "-")} ${isStale ? "stale" : ""}`} data-test="state"><Icon name={state === "cut off" ? "notable" : (state as IconName)} />{isStale ? `Last seen ${STATES[state].toLowerCase()}` : STATES[state]}</span>
  );
}

const LINES: Record<Connection["state"], string> = {
  connecting: "connecting",
  live: "live",
  asleep: "asleep",
  lost: "no contact",
  locked: "locked",
  over: "ended",
};

function Line({ connection, isJournal, others }: { connection: Connection; isJournal: boolean; others: string[] }) {
  if (isJournal) return <span class="line line-journal" data-test="line"><i aria-hidden="true" />from a journal</span>;
  return (
    <span class={`line line-${connection.state}`} role="status" data-test="line" title={others.length ? `Also served by ${others.join(", ")}` : undefined}>
      <i aria-hidden="true" />{LINES[connection.state]}
    </span>
  );
}

function ThemeButton() {
  const [now, setNow] = useState(theme);
  const change = () => {
    nextTheme();
    setNow(theme());
  };
  return (
    <button class="quiet" onClick={change} title={`Colours: ${now} (t)`} aria-label={`Colours: ${now}. Change`}>
      <Icon name="theme" />
    </button>
  );
}

import { useState } from "preact/hooks";
import type { Job } from "../model";
import { type Tab, TABS } from "../route";
import { type Connection, useStore } from "../store";
import { nextTheme, theme } from "../theme";
import { Icon, type IconName, Mark } from "./icons";
import { OpenButton } from "./open_journals";

const STATES: Record<Job["state"], string> = {
  waiting: "Waiting",
  running: "Running",
  stopping: "Recovering",
  succeeded: "Succeeded",
  failed: "Failed",
  "cut off": "Cut off",
};

export function Header({ tab, openHelp }: { tab: Tab; openHelp: () => void }) {
  const { job, connection, dashboards } = useStore("job", "connection");
  const others = dashboards.map(({ node }) => node).filter((node) => node !== job?.served_by);
  return (
    <header class="top">
      <div class="bar">
        <a class="brand" href="#overview" aria-label="Holdfast: overview"><Mark /><span>Holdfast</span></a>
        {job && <h1 title={job.run}>{job.run}</h1>}
        {job && <StatePill state={job.state} />}
        <span class="grow" />
        {(job || connection.state !== "live") && <Line connection={connection} isJournal={job?.is_journal ?? false} others={others} />}
        {job && <OpenButton />}
        <ThemeButton />
        <button class="quiet" onClick={openHelp} title="Keys and help (?)" aria-label="Help">
          <Icon name="help" />
        </button>
      </div>
      {job && <nav aria-label="Parts of this page">
        {TABS.filter((name) => !job.is_journal || name === "overview" || name === "speed").map((name, k) => (
          <a key={name} href={`#${name}`} aria-current={name === tab ? "page" : undefined} title={`Key ${k + 1}`}>
            {name[0]!.toUpperCase() + name.slice(1)}
          </a>
        ))}
      </nav>}
    </header>
  );
}

export function StatePill({ state }: { state: Job["state"] }) {
  return (
    <span class={`pill job-${state.replace(" ", "-")}`} data-test="state"><Icon name={state === "cut off" ? "notable" : (state as IconName)} />{STATES[state]}</span>
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

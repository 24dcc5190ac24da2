import { useEffect, useRef } from "preact/hooks";
import { Header } from "./views/header";
import { Help } from "./views/help";
import { Jobs } from "./views/jobs";
import { Lock } from "./views/lock";
import { Logs } from "./views/logs";
import { Nodes } from "./views/nodes";
import { Note } from "./views/note";
import { Overview } from "./views/overview";
import { Speed } from "./views/speed";
import { Stacks } from "./views/stacks";
import { LostLine } from "./views/lost_line";
import { go, type Tab, TABS, useRoute } from "./route";
import { useStore } from "./store";
import { nextTheme } from "./theme";

const VIEWS = { overview: Overview, speed: Speed, logs: Logs, stacks: Stacks, nodes: Nodes };

export function App() {
  const { tab } = useRoute();
  const { job, connection, listsJobs, isFresh } = useStore("job", "connection");
  const help = useRef<HTMLDialogElement>(null);
  useKeys(() => (help.current?.open ? help.current.close() : help.current?.showModal()));
  useEffect(() => {
    document.title = job ? `${job.run}: ${job.state} – Holdfast` : "Holdfast";
  }, [job?.run, job?.state]);
  const View = VIEWS[tab];
  if (connection.state === "locked") return <Lock wrong={connection.wrong} />;
  return (
    <>
      <a class="skip" href="#main" onClick={skipToMain}>Skip to the content</a>
      <Header tab={tab} openHelp={() => help.current?.showModal()} />
      <LostLine />
      <main id="main" tabIndex={-1} class={job && !job.outcome && !job.is_journal && !isFresh ? "stale" : ""}>
        {job ? <View /> : listsJobs ? <Jobs /> : <Beginning />}
      </main>
      <Note />
      <Help dialog={help} />
    </>
  );
}

function Beginning() {
  return <p class="beginning">Asking the job how it is …</p>;
}

function skipToMain(event: MouseEvent): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** Digits choose a tab, `?` helps, `t` changes the theme, `/` goes to the filter. */
function useKeys(toggleHelp: () => void): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, textarea, select")) return;
      const tab: Tab | undefined = TABS[Number(event.key) - 1];
      if (event.key === "?") toggleHelp();
      else if (event.key === "t") nextTheme();
      else if (event.key === "/") {
        event.preventDefault();
        if (!document.querySelector<HTMLElement>("[data-filter]")) go("logs");
        requestAnimationFrame(() => document.querySelector<HTMLElement>("[data-filter]")?.focus());
      } else if (tab) go(tab);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

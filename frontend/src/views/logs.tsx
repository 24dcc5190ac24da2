import { useEffect, useRef, useState } from "preact/hooks";
import { ask, Refused } from "../connection";
import type { LogLine } from "../model";
import { go, useRoute } from "../route";
import { useStore } from "../store";
import { serverEvents } from "../server_events";
import { clock, count, counted, parseRanks } from "../words";

const KEPT = 3000;
const TYPING_MS = 350;

/** Lines of all workers, or of some, as they come. */
export function Logs() {
  const { ranks } = useRoute();
  const [words, setWords] = useState("");
  const [follow, setFollow] = useState(true);
  const wanted = parseRanks(ranks);
  const settled = useSettled(words);
  const { job, lines: kept } = useStore("job");
  const isOver = job !== null && (job.is_journal || job.outcome !== null);
  const { lines: told, problem, busy } = useLines(wanted && !isOver ? ranks : null, settled, follow);
  const ofRanks = new Set(wanted);
  const lines = isOver ? kept.filter((line) => !ofRanks.size || ofRanks.has(line.rank)) : told;
  const shown = words ? lines.filter((line) => line.text.toLowerCase().includes(words.toLowerCase())) : lines;
  return (
    <section class="card logs" aria-labelledby="logs-title">
      <div class="head">
        <h2 id="logs-title">Logs</h2>
        <label class="field">
          <span>Ranks</span>
          <input class="short" placeholder="all" value={ranks} aria-invalid={wanted === null}
            onInput={(event) => go("logs", event.currentTarget.value)} />
        </label>
        <label class="field wide">
          <span>Filter</span>
          <input data-filter type="search" placeholder="words in a line" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        </label>
        {!isOver && <label class="check"><input type="checkbox" checked={follow} onChange={() => setFollow(!follow)} />Follow</label>}
        <span class="more" role="status">{isOver ? `the last ${counted(shown.length, "line")} of the job` : busy ? "asking …" : `${count(shown.length)} lines`}</span>
      </div>
      {wanted === null && <p class="problem">Write ranks as numbers: 3, or 0-7, or 1,4,8-11.</p>}
      {problem && !isOver && <p class="problem">{problem}</p>}
      <Lines lines={shown} words={words} follow={follow} />
    </section>
  );
}

function useSettled(text: string): string {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}

/** The agent looks through all that was written; what follows comes as it is written. */
function useLines(ranks: string | null, words: string, follow: boolean) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(true);
  useEffect(() => {
    if (ranks === null) return;
    const control = new AbortController();
    setBusy(true);
    setProblem("");
    readLines({ ranks, words, follow }, control.signal, (found, begin) => {
      setBusy(false);
      setLines((before) => (begin ? found : [...before, ...found]).slice(-KEPT));
    }).catch((why) => {
      if (control.signal.aborted) return;
      setBusy(false);
      setProblem(why instanceof Refused ? why.message : "The agent could not be reached.");
    });
    return () => control.abort();
  }, [ranks, words, follow]);
  return { lines, problem, busy };
}

interface LogQuery {
  ranks: string;
  words: string;
  follow: boolean;
}

async function readLines(query: LogQuery, signal: AbortSignal, take: (lines: LogLine[], begin: boolean) => void): Promise<void> {
  const search = new URLSearchParams({ ranks: query.ranks, grep: query.words, follow: query.follow ? "1" : "" });
  const response = await ask(`api/logs?${search}`, { signal });
  let begin = true;
  for await (const { kind, data } of serverEvents(response.body!)) {
    if (kind === "lines") take(JSON.parse(data) as LogLine[], begin);
    else if (kind === "refused") throw new Refused(JSON.parse(data) as string);
    else continue;
    begin = false;
  }
  if (begin) take([], true);
}

function Lines({ lines, words, follow }: { lines: LogLine[]; words: string; follow: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const before = useRef(0);
  useEffect(() => {
    if (follow && atEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow]);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current!;
    // Only who scrolls back wants to stay: lines that came meanwhile put the end further away, too.
    if (scrollTop < before.current) atEnd.current = false;
    if (scrollHeight - scrollTop - clientHeight < 30) atEnd.current = true;
    before.current = scrollTop;
  };
  return (
    <div ref={box} class="lines" tabIndex={0} role="log" aria-label="Lines" onScroll={scrolled} data-test="lines">
      {lines.length === 0 && <p class="empty">No line fits.</p>}
      {lines.map((line, k) => (
        <p key={k} class={line.stream}>
          <time>{clock(line.at)}</time>
          <span class="rank">{line.rank}</span>
          {line.stream === "err" && <span class="stream" title="standard error">err</span>}
          <Marked text={line.text} words={words} />
        </p>
      ))}
    </div>
  );
}

function Marked({ text, words }: { text: string; words: string }) {
  const k = words ? text.toLowerCase().indexOf(words.toLowerCase()) : -1;
  if (k < 0) return <span>{text}</span>;
  return <span>{text.slice(0, k)}<mark>{text.slice(k, k + words.length)}</mark>{text.slice(k + words.length)}</span>;
}

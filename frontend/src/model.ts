/**
 * What the server says, as types: the mirror of `src/holdfast/dashboard/wire.py`.
 *
 * Times are seconds since 1970 on the clock of the host that serves the page. What is to be read by people
 * comes as words from Python: the page has no second copy of any rule.
 */

/** Late: it runs, and no worker has made a step for long. Cut off: a journal that ends early. */
export type JobState = "waiting" | "running" | "late" | "stopping" | "succeeded" | "failed" | "stopped" | "cut off";

/** The job as a whole: small, sent whenever it differs. */
export interface Job {
  run: string;
  state: JobState;
  /** How it is, in a sentence. */
  words: string;
  round: number;
  nodes: number;
  ranks: number;
  restarts: number;
  restarts_most: number;
  step: number | null;
  /** What is waited for, or nothing. */
  waiting: string;
  outcome: Outcome | null;
  coordinator: string;
  /** Who serves this page. */
  served_by: string;
  /** What may be asked for here: "drain", "restart", "save", "stop". */
  actions: string[];
  /** It was read from a journal: nothing will change. */
  is_journal: boolean;
  /** What is not known, in sentences. */
  notes: string[];
  /** When a worker made its last step. */
  stepped_at: number | null;
  /** How far a save is that somebody asked for. */
  saving: string;
  least_nodes: number;
  most_nodes: number;
}

export interface Outcome {
  verdict: string;
  reason: string;
}

/** Where the page can go when its own agent is gone, and what opens it there. */
export interface Dashboard {
  node: string;
  url: string;
  key: string;
}

/** Where the time went. The first part is the useful one. */
export interface Ledger {
  start: number;
  total_s: number;
  parts: LedgerPart[];
}

export interface LedgerPart {
  name: string;
  words: string;
  seconds: number;
}

/** A piece of the job's time. */
export interface Segment {
  part: string;
  start: number;
  end: number;
  round: number;
}

/** One node: when it was there, and when workers of which round ran on it. */
export interface Lane {
  node: string;
  start: number;
  end: number | null;
  runs: { round: number; start: number; end: number | null }[];
}

export interface Node {
  name: string;
  /** As `Condition` of `core/protocol/questions.py` has it. */
  state: string;
  words: string;
  slots: number;
  /** The rank of its first worker, or null while it has none. */
  first_rank: number | null;
  coordinator: boolean;
}

/** In the order of the numbers in which states of workers are sent. */
export const WORKER_STATES = [
  "absent",
  "starting",
  "running",
  "slow",
  "still",
  "stopping",
  "failed",
  "finished",
  "late",
] as const;
export type WorkerState = (typeof WORKER_STATES)[number];

/** The values of all workers, in the order of ranks. */
export type Column = (number | null)[];

/** What changed about workers since the last such message. A missing column is as it was. */
export interface RanksChange {
  at: number;
  /** The step that the job is at; each worker's own is sent as the difference to it. */
  base_step: number;
  /** How many ranks there are now; other ones than before begin as absent. */
  count: number;
  columns: Partial<Record<ColumnName, Column>>;
  /** What the numbers of the column `note` mean. */
  notes: string[];
}

/** `step` is the difference to `base_step`; `stepped` is when it was made, where that is long ago; `pace_ms` is a step's time; null is "not known". */
export type ColumnName = "state" | "step" | "stepped" | "pace_ms" | "cpu" | "memory_mb" | "pid" | "note";

/** One thing that happened, in words: the mirror of `StoryEvent` in `src/holdfast/observe/story.py`. */
export interface Event {
  at: number;
  kind: string;
  words: string;
  by: string;
  seq?: number;
  round?: number;
  node?: string;
  host?: string;
  rank?: number | null;
  reason?: string;
}

export interface Incident {
  number: number;
  at: number;
  round: number;
  kind: "failure" | "loss" | "hang";
  /** What happened, in one line. */
  words: string;
  /** What was decided about it. */
  decision: string;
  ranks: number[];
  /** Null while it goes on. */
  recovered_s: number | null;
  phases: LedgerPart[];
}

export interface LogLine {
  at: number;
  rank: number;
  stream: "out" | "err";
  text: string;
}

/** A group of workers that stand at the same place. */
export interface StackGroup {
  ranks: number[];
  title: string;
  text: string;
}

/** A job of this machine: as `holdfast jobs --json` has it. */
export interface ListedJob {
  name: string;
  state: string;
  started: number;
  seconds: number;
  nodes: number;
  ranks: number;
  end: string;
  /** The page of one that runs, if it has one. */
  link: string;
  journals: string[];
}

/** What comes down the stream, by the name of its event. */
export interface Messages {
  /** A new stream begins: all follows anew. Something comes every `alive_s` at the latest. `lists_jobs`: the page can list the jobs of its machine. */
  hello: { at: number; alive_s: number; lists_jobs: boolean };
  job: Job;
  nodes: Node[];
  ranks: RanksChange;
  segments: Segment[];
  lanes: Lane[];
  incidents: Incident[];
  events: Event[];
  ledger: Ledger;
  dashboards: Dashboard[];
  /** The last lines of workers, once the job has ended. */
  lines: LogLine[];
  /** The job cannot be asked right now, and why; empty when it can again. */
  trouble: string;
}

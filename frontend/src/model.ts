/**
 * What the server says, as types: the mirror of `src/holdfast/dashboard/wire.py`.
 *
 * Times are seconds since 1970 on the clock of the coordinator's host; durations are seconds. What is to
 * be read by people comes as words from Python: the page has no second copy of any rule.
 */

export type JobState =
  | "waiting" // for nodes, imports or a lease
  | "starting" // workers exist, and have not stepped yet
  | "running"
  | "stopping" // a round is being ended
  | "succeeded"
  | "failed";

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
  started: number;
  ended: number | null;
  step: number | null;
  /** Steps a second, where workers report steps. */
  rate: number | null;
  waiting: Waiting | null;
  outcome: Outcome | null;
  coordinator: string;
  /** Who serves this page. */
  served_by: string;
  /** Where the page can go when its own agent is gone. */
  dashboards: Dashboard[];
  goodput: Ledger | null;
  /** What may be asked for here: "drain", "restart", "save", "stop". */
  actions: string[];
  /** This is a journal that was opened from a disk: nothing will change. */
  finished_journal: boolean;
}

export interface Waiting {
  words: string;
  since: number;
  until: number | null;
  done: number | null;
  of: number | null;
}

export interface Outcome {
  verdict: string;
  reason: string;
  exit_status: number;
}

export interface Dashboard {
  node: string;
  url: string;
}

/** Where the time went. The first part is the useful one. */
export interface Ledger {
  total_s: number;
  parts: LedgerPart[];
}

export interface LedgerPart {
  name: string;
  words: string;
  seconds: number;
}

export type NodeState = "here" | "joining" | "standing by" | "leaving" | "silent" | "gone";

export interface Node {
  name: string;
  host: string;
  state: NodeState;
  words: string;
  slots: number;
  /** The rank of its first worker, or null while it has none. */
  first_rank: number | null;
  coordinator: boolean;
  heard_s: number | null;
  cpu: number | null;
  memory: number | null;
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
] as const;
export type WorkerState = (typeof WORKER_STATES)[number];

/** One column: all values in the order of ranks, or only those of the ranks in `i`. */
export interface Column {
  i?: number[];
  v: (number | null)[];
}

/** What changed about workers since the last such message. A missing column is as it was. */
export interface RanksChange {
  at: number;
  /** The step that the job is at; each worker's own is sent as the difference to it. */
  base_step: number;
  /** How many ranks there are now; other ones than before begin as absent. */
  count: number;
  columns: Partial<Record<ColumnName, Column>>;
}

/** `step` is the difference to `base_step`; `pace_ms` is a step's time; null is "not known". */
export type ColumnName = "state" | "step" | "pace_ms" | "cpu" | "memory_mb" | "pid";

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

export interface Detail {
  title: string;
  text: string;
}

export interface Round {
  number: number;
  began: number;
  /** Null while it runs. */
  ended: number | null;
  nodes: number;
  ranks: number;
  /** Why it ended, in words. */
  ending: string;
  ended_by: "" | "failure" | "loss" | "change" | "hang" | "success" | "wish";
}

export interface Incident {
  number: number;
  at: number;
  round: number;
  /** What happened, in one line. */
  words: string;
  /** Why: the first observed cause. */
  cause: string;
  charged: boolean;
  /** Null while it goes on. */
  recovered_s: number | null;
  phases: LedgerPart[];
  details: Detail[];
}

/** What became of the job so far. */
export interface Story {
  rounds: Round[];
  incidents: Incident[];
}

export interface LogLine {
  at: number | null;
  rank: number;
  stream: "out" | "err";
  text: string;
}

export interface Stack {
  rank: number;
  node: string;
  state: string;
  text: string;
}

/** A group of workers that stand at the same place. */
export interface StackGroup {
  ranks: number[];
  title: string;
  text: string;
}

/** What comes down the stream, by the name of its event. */
export interface Messages {
  job: Job;
  nodes: { set: [number, Node][]; count: number };
  ranks: RanksChange;
  story: Story;
  events: Event[];
  note: { words: string };
}

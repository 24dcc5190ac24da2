/** All that the page knows, and who wants to hear of which part. */

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { History } from "./history";
import type { Dashboard, Event, Incident, Job, Lane, Ledger, LogLine, Messages, Node, Segment } from "./model";
import { Workers } from "./workers";

export type Topic = "job" | "nodes" | "ranks" | "story" | "events" | "connection" | "choice" | "note";

export type Connection =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "asleep" } // the page is hidden: nobody watches, so nothing is asked
  | { state: "lost"; since: number; tries: number }
  | { state: "locked"; wrong: boolean }
  | { state: "over" }; // a journal, or a job that has ended: all has been said

const EVENTS_MOST = 5000;

class Store {
  job: Job | null = null;
  nodes: Node[] = [];
  workers = new Workers();
  history = new History();
  segments: Segment[] = [];
  lanes: Lane[] = [];
  incidents: Incident[] = [];
  ledger: Ledger | null = null;
  dashboards: Dashboard[] = [];
  lines: LogLine[] = [];
  /** Whether the jobs of a machine can be chosen from here. */
  listsJobs = false;
  /** Why the job cannot be asked right now. */
  trouble = "";
  /** Since when the same is waited for. */
  waitingSince = 0;
  events: Event[] = [];
  connection: Connection = { state: "connecting" };
  /** The worker that was chosen in the grid. */
  rank: number | null = null;
  note: { words: string; bad: boolean } | null = null;
  /** The server's clock minus ours, in seconds. */
  private clockAhead: number | null = null;
  /** When something was last told that was true then, on the server's clock. */
  private freshAt = 0;
  private listeners = new Map<Topic, Set<() => void>>();

  /** What is shown is of now. Otherwise it is of when it was last told, and nothing goes on by itself. */
  get isFresh(): boolean {
    return this.connection.state === "live" && !this.trouble;
  }

  /** The time on the clock of whoever tells; without contact, when there last was. */
  now(): number {
    return this.isFresh || !this.freshAt ? this.clock() : this.freshAt;
  }

  private clock(): number {
    return Date.now() / 1000 + (this.clockAhead ?? 0);
  }

  take<K extends keyof Messages>(kind: K, message: Messages[K]): void {
    TAKERS[kind](this, message);
    if (kind !== "hello") this.heard();
  }

  /** There is contact: what was told before is true still. */
  heard(): void {
    if (!this.trouble) this.freshAt = this.clock();
  }

  heardClock(at: number): void {
    this.clockAhead = at - Date.now() / 1000;
  }

  /** When the first thing happened that is known. */
  started(): number {
    return this.ledger?.start ?? this.events[0]?.at ?? this.now();
  }

  ended(): number | null {
    if (this.job?.is_journal && this.ledger) return this.ledger.start + this.ledger.total_s;
    if (!this.job?.outcome) return null;
    return this.events.findLast((event) => event.kind === "job_finished")?.at ?? this.workers.at;
  }

  connect(connection: Connection): void {
    this.connection = connection;
    this.tell("connection");
  }

  choose(rank: number | null): void {
    if (rank === this.rank) return;
    this.rank = rank;
    this.tell("choice");
  }

  say(words: string, bad = false): void {
    this.note = words ? { words, bad } : null;
    this.tell("note");
  }

  listen(topic: Topic, listener: () => void): () => void {
    const set = this.listeners.get(topic) ?? new Set();
    this.listeners.set(topic, set);
    set.add(listener);
    return () => set.delete(listener);
  }

  tell(topic: Topic): void {
    for (const listener of this.listeners.get(topic) ?? []) listener();
  }
}

type Takers = { [K in keyof Messages]: (store: Store, message: Messages[K]) => void };

const TAKERS: Takers = {
  hello(store, { at, lists_jobs }) {
    store.heardClock(at);
    store.listsJobs = lists_jobs;
    store.trouble = "";
    store.events = [];
    store.nodes = [];
    store.segments = [];
    store.lanes = [];
    store.incidents = [];
  },
  job(store, job) {
    if (job.waiting !== store.job?.waiting) store.waitingSince = store.now();
    store.job = job;
    store.tell("job");
  },
  nodes(store, nodes) {
    store.nodes = nodes;
    store.tell("nodes");
  },
  ranks(store, change) {
    store.workers.apply(change);
    store.heardClock(change.at);
    if (store.job && !store.job.is_journal) store.history.take(store.job, store.workers);
    store.tell("ranks");
  },
  segments(store, segments) {
    store.segments = segments;
    store.tell("story");
  },
  lanes(store, lanes) {
    store.lanes = lanes;
    store.tell("story");
  },
  incidents(store, incidents) {
    store.incidents = incidents;
    store.tell("story");
  },
  events(store, events) {
    // After a change of coordinators another node tells, of earlier things too.
    store.events = [...store.events, ...events].sort((a, b) => a.at - b.at).slice(-EVENTS_MOST);
    store.tell("events");
  },
  ledger(store, ledger) {
    store.ledger = ledger;
    store.tell("story");
  },
  dashboards(store, dashboards) {
    store.dashboards = dashboards;
    store.tell("connection");
  },
  lines(store, lines) {
    store.lines = lines;
    store.tell("job");
  },
  trouble(store, words) {
    store.trouble = words;
    store.tell("connection");
  },
};

export const store = new Store();

/** Draw again whenever one of these parts has changed. */
export function useStore(...topics: Topic[]): Store {
  const [, again] = useState(0);
  // At once, not after the next picture: what is told in between would be missed.
  useLayoutEffect(() => {
    const stop = topics.map((topic) => store.listen(topic, () => again((n) => n + 1)));
    return () => stop.forEach((end) => end());
  }, []);
  return store;
}

/** Draw again every second, for what counts time. */
export function useSeconds(running = true): void {
  const [, again] = useState(0);
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => again((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [running]);
}

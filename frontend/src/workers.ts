/** What is known of every worker, in columns: ten thousand of them change twice a second. */

import { type ColumnName, type RanksChange, WORKER_STATES, type WorkerState } from "./model";

const COLUMNS: ColumnName[] = ["state", "step", "stepped", "pace_ms", "cpu", "memory_mb", "pid", "note"];

export interface Worker {
  rank: number;
  state: WorkerState;
  step: number | null;
  /** When it made that, where it was long ago. */
  stepped: number | null;
  pace_ms: number | null;
  cpu: number | null;
  memory_mb: number | null;
  pid: number | null;
  /** Its phase, or what the kernel says of it. */
  note: string;
}

export interface Paces {
  fastest: number;
  middle: number;
  slowest: number;
  slowestRank: number;
}

export class Workers {
  count = 0;
  at = 0;
  baseStep = 0;
  private notes: string[] = [""];
  /** NaN is "not known". */
  private columns: Record<ColumnName, Float64Array> = empty(0);
  /** Worked out once for each message: several parts of the page want it. */
  private pacesNow: Paces | null | undefined;

  apply(change: RanksChange): void {
    if (change.count !== this.count) this.resize(change.count);
    this.pacesNow = undefined;
    this.at = change.at;
    this.baseStep = change.base_step;
    this.notes = change.notes;
    for (const name of COLUMNS) {
      const told = change.columns[name];
      if (!told) continue;
      const column = this.columns[name];
      for (let k = 0; k < Math.min(told.length, this.count); k++) column[k] = told[k] ?? NaN;
    }
  }

  private resize(count: number): void {
    this.count = count;
    this.columns = empty(count);
    this.columns.state.fill(0);
  }

  column(name: ColumnName): Float64Array {
    return this.columns[name];
  }

  stateOf(rank: number): WorkerState {
    return WORKER_STATES[this.columns.state[rank] ?? 0] ?? "absent";
  }

  worker(rank: number): Worker {
    const known = (name: ColumnName) => {
      const value = this.columns[name][rank];
      return value === undefined || Number.isNaN(value) ? null : value;
    };
    const delta = known("step");
    return {
      rank,
      state: this.stateOf(rank),
      step: delta === null ? null : this.baseStep + delta,
      stepped: known("stepped"),
      pace_ms: known("pace_ms"),
      cpu: known("cpu"),
      memory_mb: known("memory_mb"),
      pid: known("pid"),
      note: this.notes[known("note") ?? 0] ?? "",
    };
  }

  counts(): Record<WorkerState, number> {
    const counts = Object.fromEntries(WORKER_STATES.map((name) => [name, 0])) as Record<WorkerState, number>;
    for (const state of this.columns.state) counts[WORKER_STATES[state] ?? "absent"]++;
    return counts;
  }

  /** What some neighbours use together, and the slowest of them. */
  sums(first: number, size: number): { pace: number | null; cpu: number | null; memory: number | null } {
    const of = (name: ColumnName) => this.columns[name].subarray(first, first + size).filter((value) => !Number.isNaN(value));
    const sum = (values: Float64Array) => (values.length ? values.reduce((a, b) => a + b, 0) : null);
    const paces = of("pace_ms");
    return { pace: paces.length ? Math.max(...paces) : null, cpu: sum(of("cpu")), memory: sum(of("memory_mb")) };
  }

  /** The fastest, the middle and the slowest step of those who step, in milliseconds. */
  paces(): Paces | null {
    if (this.pacesNow === undefined) this.pacesNow = this.sortedPaces();
    return this.pacesNow;
  }

  private sortedPaces(): Paces | null {
    const pace = this.columns.pace_ms;
    const known = pace.filter((value) => !Number.isNaN(value)).sort();
    if (!known.length) return null;
    const slowest = known[known.length - 1]!;
    return {
      fastest: known[0]!,
      middle: known[known.length >> 1]!,
      slowest,
      slowestRank: pace.indexOf(slowest),
    };
  }
}

function empty(count: number): Record<ColumnName, Float64Array> {
  return Object.fromEntries(
    COLUMNS.map((name) => [name, new Float64Array(count).fill(NaN)]),
  ) as Record<ColumnName, Float64Array>;
}

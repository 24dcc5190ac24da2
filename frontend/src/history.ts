/** What the page has seen since it was opened: nobody else keeps it. */

import type { Workers } from "./workers";
import type { Job } from "./model";

const MOST = 3600;
/** A rate is an average over this many seconds. */
const OVER_S = 5;

export class History {
  at: number[] = [];
  private step: (number | null)[] = [];
  rate: (number | null)[] = [];
  fastest: (number | null)[] = [];
  middle: (number | null)[] = [];
  slowest: (number | null)[] = [];

  take(job: Job, workers: Workers): void {
    const last = this.at[this.at.length - 1] ?? 0;
    if (workers.at <= last) return;
    const paces = workers.paces();
    this.at.push(workers.at);
    this.step.push(job.step === null ? null : workers.baseStep);
    this.rate.push(this.rateNow());
    this.fastest.push(paces?.fastest ?? null);
    this.middle.push(paces?.middle ?? null);
    this.slowest.push(paces?.slowest ?? null);
    if (this.at.length > MOST * 1.1) this.forget();
  }

  /** Steps a second over the last few seconds. Steps that are done again after a restart are steps, too. */
  private rateNow(): number | null {
    const end = this.at.length - 1;
    let begin = end;
    while (begin > 0 && this.at[end]! - this.at[begin]! < OVER_S) begin--;
    const took = this.at[end]! - this.at[begin]!;
    if (took < OVER_S / 4) return null;
    let steps = 0;
    for (let k = begin + 1; k <= end; k++) steps += Math.max(0, (this.step[k] ?? 0) - (this.step[k - 1] ?? this.step[k] ?? 0));
    return this.step[end] === null ? null : steps / took;
  }

  last(): number | null {
    return this.rate[this.rate.length - 1] ?? null;
  }

  private forget(): void {
    for (const column of [this.at, this.step, this.rate, this.fastest, this.middle, this.slowest]) {
      column.splice(0, column.length - MOST);
    }
  }
}

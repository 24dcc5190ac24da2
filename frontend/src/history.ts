/** What the page has seen since it was opened: nobody else keeps it. */

import type { Workers } from "./workers";
import type { Job } from "./model";

const MOST = 3600;

export class History {
  at: number[] = [];
  rate: (number | null)[] = [];
  fastest: (number | null)[] = [];
  middle: (number | null)[] = [];
  slowest: (number | null)[] = [];

  take(job: Job, workers: Workers): void {
    const last = this.at[this.at.length - 1] ?? 0;
    if (workers.at <= last) return;
    const paces = workers.paces();
    this.at.push(workers.at);
    this.rate.push(job.state === "running" ? job.rate : job.rate === null ? null : 0);
    this.fastest.push(paces?.fastest ?? null);
    this.middle.push(paces?.middle ?? null);
    this.slowest.push(paces?.slowest ?? null);
    if (this.at.length > MOST * 1.1) this.forget();
  }

  private forget(): void {
    for (const column of [this.at, this.rate, this.fastest, this.middle, this.slowest]) {
      column.splice(0, column.length - MOST);
    }
  }
}

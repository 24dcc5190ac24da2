/** How each worker looks, as a small number: its state's own look, or the level of something measured. */

import { type ColumnName, WORKER_STATES } from "../model";
import type { Workers } from "../workers";

export type Shade = "state" | "behind" | "pace_ms" | "cpu" | "memory_mb";
export const LEVELS = 12;
/** States first, then levels. */
export const LOOKS = WORKER_STATES.length + LEVELS;

const RUNNING = WORKER_STATES.indexOf("running");
const SLOW = WORKER_STATES.indexOf("slow");

/** By rank. Ranks of which nothing is told have no worker. */
export function looksOf(workers: Workers, shade: Shade, count: number): Uint8Array {
  const looks = new Uint8Array(count);
  const states = workers.column("state");
  const levels = shade === "state" ? null : levelsOf(workers, shade);
  for (let rank = 0; rank < Math.min(count, states.length); rank++) {
    const state = states[rank]!;
    const level = levels && (state === RUNNING || state === SLOW) ? levels[rank]! : -1;
    looks[rank] = level >= 0 ? WORKER_STATES.length + level : state < WORKER_STATES.length ? state : 0;
  }
  return looks;
}

/** How far each worker is between the least and the most of all, in a few levels; -1 is "not known". */
function levelsOf(workers: Workers, shade: Exclude<Shade, "state">): Int8Array {
  const { values, least, most } = scale(workers, shade);
  const spread = most - least;
  return Int8Array.from(values, (value) => {
    if (Number.isNaN(value)) return -1;
    return spread > 0 ? Math.min(LEVELS - 1, Math.floor(((value - least) / spread) * LEVELS)) : 0;
  });
}

export function scale(workers: Workers, shade: Exclude<Shade, "state">) {
  const column: ColumnName = shade === "behind" ? "step" : shade;
  const told = workers.column(column);
  const furthest = shade === "behind" ? told.reduce((a, b) => (b > a ? b : a), -Infinity) : 0;
  const values = shade === "behind" ? told.map((value) => furthest - value) : told;
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return { values, least, most };
}

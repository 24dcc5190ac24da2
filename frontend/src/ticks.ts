/** Round times on an axis. */

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** The times from `from` to `to` that stand at the axis, not closer than `apart` of its width. */
export function ticks(from: number, to: number, most: number): number[] {
  const span = Math.max(1e-3, to - from);
  const step = STEPS_S.find((size) => span / size <= most) ?? Math.ceil(span / most / 86400) * 86400;
  // Full hours of the reader's clock, not of Greenwich's.
  const shift = new Date(from * 1000).getTimezoneOffset() * 60;
  const found: number[] = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return found;
}

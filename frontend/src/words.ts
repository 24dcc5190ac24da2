/** Numbers and times as people read them. */

const GROUPS = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number): string {
  return GROUPS.format(value);
}

/** `1 node`, `2 nodes`. */
export function counted(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** `0.18 s`, `42 s`, `3 min 5 s`, `2 h 7 min`, `3 d 4 h`. */
export function duration(seconds: number): string {
  const s = Math.max(0, seconds);
  if (s < 0.0995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(s < 0.995 ? 2 : 1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return pair(whole, 60, "min", "s");
  if (whole < 86400) return pair(Math.round(whole / 60), 60, "h", "min");
  return pair(Math.round(whole / 3600), 24, "d", "h");
}

function pair(value: number, size: number, big: string, small: string): string {
  const rest = value % size;
  return rest ? `${Math.floor(value / size)} ${big} ${rest} ${small}` : `${value / size} ${big}`;
}

/** 99.96 % of something is not all of it, and a little is not nothing. */
export function percent(share: number): string {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.05) return "< 0.1 %";
  const shown = value > 99.9 && value < 100 ? Math.floor(value * 10) / 10 : value;
  return `${shown.toFixed(shown >= 99.95 || shown === 0 ? 0 : 1)} %`;
}

export function rate(perSecond: number): string {
  if (perSecond >= 100) return count(perSecond);
  if (perSecond >= 10) return perSecond.toFixed(1);
  return perSecond.toFixed(2);
}

export function bytes(megabytes: number): string {
  if (megabytes < 1000) return `${count(megabytes)} MB`;
  return `${(megabytes / 1024).toFixed(megabytes < 10240 ? 1 : 0)} GB`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export function clock(at: number): string {
  return CLOCK.format(at * 1000);
}

/** The clock, with the day where it is not today's. */
export function moment(at: number, now: number): string {
  const same = new Date(at * 1000).toDateString() === new Date(now * 1000).toDateString();
  return same ? clock(at) : `${DAY.format(at * 1000)} ${clock(at)}`;
}

/** `0–7, 12, 14`, at most `most` pieces. */
export function rankRange(ranks: number[], most = 8): string {
  const pieces: string[] = [];
  let from = 0;
  for (let k = 1; k <= ranks.length; k++) {
    if (k < ranks.length && ranks[k] === ranks[k - 1]! + 1) continue;
    const [a, b] = [ranks[from]!, ranks[k - 1]!];
    pieces.push(a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`);
    from = k;
  }
  return pieces.length > most ? `${pieces.slice(0, most).join(", ")} …` : pieces.join(", ");
}

/** `3`, `0-7`, `1,4,8-11`; null where it is none of these. Empty is all. */
export function parseRanks(text: string, most = 10000): number[] | null {
  const found = new Set<number>();
  for (const part of text.split(/[\s,]+/).filter(Boolean)) {
    const match = /^(\d+)(?:[-–](\d+))?$/.exec(part);
    if (!match) return null;
    const [a, b] = [Number(match[1]), Number(match[2] ?? match[1])];
    if (b < a || b - a >= most) return null;
    for (let rank = a; rank <= b; rank++) found.add(rank);
  }
  return [...found].sort((x, y) => x - y);
}

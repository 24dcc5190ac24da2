/**
 * The picture of all workers.
 *
 * Colour is never the only sign: each state has a shape of its own too, down to cells of five pixels.
 * Cells of one state are filled in one go, since changing the colour is what costs a canvas time.
 */

import { type ColumnName, WORKER_STATES, type WorkerState } from "../model";
import { colour } from "../theme";
import type { Workers } from "../workers";
import { cornerOf, type Layout } from "./layout";

export type Shade = "state" | "behind" | "pace_ms" | "cpu" | "memory_mb";
export const LEVELS = 12;

export interface Palette {
  states: Record<WorkerState, string>;
  low: string;
  high: string;
  text: string;
  mark: string;
}

export function palette(): Palette {
  const states = Object.fromEntries(WORKER_STATES.map((name) => [name, colour(`state-${name}`)]));
  return {
    states: states as Palette["states"],
    low: colour("scale-low"),
    high: colour("scale-high"),
    text: colour("muted"),
    mark: colour("text"),
  };
}

type Draw = (ink: CanvasRenderingContext2D, x: number, y: number, size: number) => void;

/** A state's shape, added to the path that is to be filled. */
export const SHAPES: Record<WorkerState, Draw> = {
  absent: (ink, x, y, s) => frame(ink, x, y, s, Math.max(1, s / 12)),
  starting: (ink, x, y, s) => centred(ink, x, y, s, 0.45),
  // Round corners are for tiles: at the size of dots they are only slow.
  running: (ink, x, y, s) => (s >= 14 ? ink.roundRect(x, y, s, s, 3) : ink.rect(x, y, s, s)),
  slow(ink, x, y, s) {
    frame(ink, x, y, s, Math.max(1, s / 10));
    ink.rect(x, y + s / 2, s, s / 2);
  },
  still(ink, x, y, s) {
    const bar = Math.max(1, Math.round(s * 0.34));
    ink.rect(x, y, bar, s);
    ink.rect(x + s - bar, y, bar, s);
  },
  stopping: (ink, x, y, s) => frame(ink, x, y, s, Math.max(1, Math.round(s / 4))),
  failed(ink, x, y, s) {
    const w = Math.max(1, s * 0.16);
    for (const [x1, y1, x2, y2] of [[x, y, x + s, y + s], [x, y + s, x + s, y]] as const) {
      const up = y2 < y1 ? -1 : 1;
      ink.moveTo(x1, y1 + up * w);
      ink.lineTo(x1, y1);
      ink.lineTo(x1 + w, y1);
      ink.lineTo(x2, y2 - up * w);
      ink.lineTo(x2, y2);
      ink.lineTo(x2 - w, y2);
      ink.closePath();
    }
  },
  finished: (ink, x, y, s) => {
    ink.moveTo(x + s, y + s / 2);
    ink.arc(x + s / 2, y + s / 2, s / 2, 0, 2 * Math.PI);
  },
};

function frame(ink: CanvasRenderingContext2D, x: number, y: number, s: number, thick: number): void {
  ink.rect(x, y, s, thick);
  ink.rect(x, y + s - thick, s, thick);
  ink.rect(x, y + thick, thick, s - 2 * thick);
  ink.rect(x + s - thick, y + thick, thick, s - 2 * thick);
}

function centred(ink: CanvasRenderingContext2D, x: number, y: number, s: number, share: number): void {
  const size = Math.max(2, Math.round(s * share));
  ink.rect(x + (s - size) / 2, y + (s - size) / 2, size, size);
}

export interface Picture {
  layout: Layout;
  workers: Workers;
  colours: Palette;
  shade: Shade;
  chosen: number | null;
  pointed: number | null;
}

export function paint(ink: CanvasRenderingContext2D, picture: Picture): void {
  const { layout } = picture;
  ink.clearRect(0, 0, layout.width, layout.height);
  if (layout.label) paintLabels(ink, picture);
  paintCells(ink, picture);
  for (const [rank, width] of [[picture.pointed, 1], [picture.chosen, 2]] as const) {
    if (rank !== null) mark(ink, picture, rank, width);
  }
}

function paintLabels(ink: CanvasRenderingContext2D, { layout, colours }: Picture): void {
  ink.font = "11.5px Inter, system-ui, sans-serif";
  ink.fillStyle = colours.text;
  ink.textBaseline = "alphabetic";
  layout.groups.forEach((group, k) => {
    const x = (k % layout.perRow) * layout.blockWidth;
    const y = Math.floor(k / layout.perRow) * layout.blockHeight;
    ink.fillText(fit(ink, group.name, layout.blockWidth - 8), x, y + layout.label - 6);
  });
}

function fit(ink: CanvasRenderingContext2D, text: string, width: number): string {
  if (ink.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && ink.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return `${text.slice(0, length)}…`;
}

function paintCells(ink: CanvasRenderingContext2D, picture: Picture): void {
  const { layout, workers, colours } = picture;
  const levels = picture.shade === "state" ? null : levelsOf(workers, picture.shade);
  // One path for each look: a state's own, or a running worker's level.
  const looks = new Map<string, { fill: string; alpha: number; draw: Draw; ranks: number[] }>();
  for (let rank = 0; rank < Math.min(workers.count, layout.groupOf.length); rank++) {
    const state = workers.stateOf(rank);
    const level = levels && (state === "running" || state === "slow") ? levels[rank]! : -1;
    const name = level >= 0 ? `${level}` : state;
    let look = looks.get(name);
    if (!look) {
      look = level >= 0
        ? { fill: mix(colours, level), alpha: 1, draw: SHAPES.running, ranks: [] }
        : { fill: colours.states[state], alpha: 1, draw: SHAPES[state], ranks: [] };
      looks.set(name, look);
    }
    look.ranks.push(rank);
  }
  for (const look of looks.values()) {
    ink.fillStyle = look.fill;
    ink.beginPath();
    for (const rank of look.ranks) {
      const corner = cornerOf(layout, rank);
      if (corner) look.draw(ink, corner.x, corner.y, layout.cell);
    }
    ink.fill();
  }
}

/** How far each worker is between the least and the most of all, in a few levels; -1 is "not known". */
export function levelsOf(workers: Workers, shade: Exclude<Shade, "state">): Int8Array {
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

export function mix(colours: Palette, level: number): string {
  const share = Math.round((level / (LEVELS - 1)) * 100);
  return `color-mix(in oklab, ${colours.high} ${share}%, ${colours.low})`;
}

function mark(ink: CanvasRenderingContext2D, { layout, colours }: Picture, rank: number, width: number): void {
  const corner = cornerOf(layout, rank);
  if (!corner) return;
  ink.strokeStyle = colours.mark;
  ink.lineWidth = width;
  const out = width / 2 + 1;
  ink.strokeRect(corner.x - out, corner.y - out, layout.cell + 2 * out, layout.cell + 2 * out);
}

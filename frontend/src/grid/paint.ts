/**
 * The picture of all workers on a canvas: names of nodes, drawn once, and cells (`cells.ts`).
 *
 * Colour is never the only sign: each state has a shape of its own too, down to cells of five pixels.
 */

import { WORKER_STATES, type WorkerState } from "../model";
import { colour } from "../theme";
import type { Workers } from "../workers";
import { Cells } from "./cells";
import { cornerOf, type Layout } from "./layout";
import { LEVELS, looksOf, type Shade } from "./looks";

export interface Palette {
  states: Record<WorkerState, string>;
  low: string;
  high: string;
  text: string;
}

export function palette(): Palette {
  const states = Object.fromEntries(WORKER_STATES.map((name) => [name, colour(`state-${name}`)]));
  return {
    states: states as Palette["states"],
    low: colour("scale-low"),
    high: colour("scale-high"),
    text: colour("muted"),
  };
}

type Ink = CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;
type Draw = (ink: Ink, x: number, y: number, size: number) => void;

/** A state's shape, added to the path that is to be filled. */
export const SHAPES: Record<WorkerState, Draw> = {
  absent: (ink, x, y, s) => frame(ink, x, y, s, Math.max(1, s / 12)),
  starting: (ink, x, y, s) => centred(ink, x, y, s, 0.45),
  // Round corners are for tiles: of dots they would leave little.
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
  late(ink, x, y, s) {
    ink.moveTo(x, y);
    ink.lineTo(x + s, y + s);
    ink.lineTo(x, y + s);
    ink.closePath();
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

function frame(ink: Ink, x: number, y: number, s: number, thick: number): void {
  ink.rect(x, y, s, thick);
  ink.rect(x, y + s - thick, s, thick);
  ink.rect(x, y + thick, thick, s - 2 * thick);
  ink.rect(x + s - thick, y + thick, thick, s - 2 * thick);
}

function centred(ink: Ink, x: number, y: number, s: number, share: number): void {
  const size = Math.max(2, Math.round(s * share));
  ink.rect(x + (s - size) / 2, y + (s - size) / 2, size, size);
}

/** Room around the cells for the mark of one at the edge. */
export const EDGE = 4;

export class Picture {
  private readonly ink: CanvasRenderingContext2D;
  private readonly image: ImageData;
  private readonly cells: Cells;

  /** Takes the canvas for itself, as large as the layout is. */
  constructor(canvas: HTMLCanvasElement, private readonly layout: Layout, colours: Palette) {
    const density = devicePixelRatio || 1;
    const [wide, high] = [layout.width + 2 * EDGE, layout.height + 2 * EDGE];
    canvas.width = Math.round(wide * density);
    canvas.height = Math.round(high * density);
    canvas.style.height = `${high}px`;
    // All of it is copied from memory, so it may stay there.
    this.ink = canvas.getContext("2d", { willReadFrequently: true })!;
    this.ink.setTransform(density, 0, 0, density, EDGE * density, EDGE * density);
    if (layout.label) paintLabels(this.ink, layout, colours);
    this.image = this.ink.getImageData(0, 0, canvas.width, canvas.height);
    const side = Math.max(1, Math.round(layout.cell * density));
    const pixels = new Uint32Array(this.image.data.buffer);
    this.cells = new Cells(pixels, canvas.width, corners(layout, density), side, stamps(colours, side));
  }

  show(workers: Workers, shade: Shade): void {
    const box = this.cells.show(looksOf(workers, shade, this.layout.groupOf.length));
    if (box) this.ink.putImageData(this.image, 0, 0, box.left, box.top, box.right - box.left, box.bottom - box.top);
  }
}

/** By rank, where its cell begins in pixels: x, y, x, … */
function corners(layout: Layout, density: number): Int32Array {
  const found = new Int32Array(2 * layout.groupOf.length).fill(-1);
  for (let rank = 0; rank < layout.groupOf.length; rank++) {
    const corner = cornerOf(layout, rank);
    if (!corner) continue;
    found[2 * rank] = Math.round((corner.x + EDGE) * density);
    found[2 * rank + 1] = Math.round((corner.y + EDGE) * density);
  }
  return found;
}

/** The pixels of each look. */
function stamps(colours: Palette, side: number): Uint32Array[] {
  const ink = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true })!;
  const stamp = (fill: string, draw: Draw) => {
    ink.clearRect(0, 0, side, side);
    ink.fillStyle = fill;
    ink.beginPath();
    draw(ink, 0, 0, side);
    ink.fill();
    return new Uint32Array(ink.getImageData(0, 0, side, side).data.buffer);
  };
  return [
    ...WORKER_STATES.map((state) => stamp(colours.states[state], SHAPES[state])),
    ...Array.from({ length: LEVELS }, (_, level) => stamp(mix(colours, level), SHAPES.running)),
  ];
}

function paintLabels(ink: CanvasRenderingContext2D, layout: Layout, colours: Palette): void {
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

export function mix(colours: Palette, level: number): string {
  const share = Math.round((level / (LEVELS - 1)) * 100);
  return `color-mix(in oklab, ${colours.high} ${share}%, ${colours.low})`;
}

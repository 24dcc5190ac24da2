/**
 * Where each worker stands in the picture.
 *
 * A node is a block of cells, one for each of its workers; blocks flow like words in a line. Cells are
 * as large as fits into the height that is wanted, so that one worker is a tile and ten thousand are
 * dots. All blocks are equally large: where a point lies is arithmetic, not a search.
 */

export interface Group {
  name: string;
  firstRank: number;
  size: number;
}

export interface Layout {
  cell: number;
  pitch: number;
  /** Cells in a line of a block, lines of a block, blocks in a row. */
  across: number;
  down: number;
  perRow: number;
  blockWidth: number;
  blockHeight: number;
  /** Room for the node's name above its cells; 0 where there is none. */
  label: number;
  width: number;
  height: number;
  groups: Group[];
  /** By rank: which group it is in. */
  groupOf: Int32Array;
}

const LARGEST = 30;
const SMALLEST = 5;
const LINE_MOST = 8;
const LABEL = 18;
const LABEL_WIDTH = 96;
const LABELS_MOST = 400;

export function layOut(groups: Group[], width: number, wantedHeight: number): Layout {
  let layout = measure(groups, width, SMALLEST);
  for (let cell = LARGEST; cell > SMALLEST; cell--) {
    const candidate = measure(groups, width, cell);
    if (candidate.height <= wantedHeight && candidate.blockWidth <= width) {
      layout = candidate;
      break;
    }
  }
  const ranks = groups.reduce((most, group) => Math.max(most, group.firstRank + group.size), 0);
  layout.groupOf = new Int32Array(ranks).fill(-1);
  groups.forEach((group, k) => layout.groupOf.fill(k, group.firstRank, group.firstRank + group.size));
  return layout;
}

function measure(groups: Group[], width: number, cell: number): Layout {
  const gap = cell >= 12 ? 3 : cell >= 8 ? 2 : 1;
  const pitch = cell + gap;
  const largest = groups.reduce((most, group) => Math.max(most, group.size), 1);
  const across = Math.min(largest, LINE_MOST);
  const down = Math.ceil(largest / across);
  const labelled = groups.length <= LABELS_MOST && cell >= 9;
  const label = labelled ? LABEL : 0;
  const between = cell >= 12 ? 18 : cell >= 8 ? 10 : 5;
  const cells = across * pitch - gap;
  const blockWidth = (labelled ? Math.max(cells, LABEL_WIDTH) : cells) + between;
  const blockHeight = label + down * pitch - gap + (labelled ? 14 : Math.max(2, gap + 1));
  const perRow = Math.max(1, Math.floor((width + between) / blockWidth));
  const rows = Math.ceil(groups.length / perRow);
  return {
    cell, pitch, across, down, perRow, blockWidth, blockHeight, label, width,
    height: rows * blockHeight, groups, groupOf: new Int32Array(0),
  };
}

export interface Point {
  x: number;
  y: number;
}

/** The upper left corner of a worker's cell. */
export function cornerOf(layout: Layout, rank: number): Point | null {
  const k = layout.groupOf[rank] ?? -1;
  const group = layout.groups[k];
  if (!group) return null;
  const inside = rank - group.firstRank;
  return {
    x: (k % layout.perRow) * layout.blockWidth + (inside % layout.across) * layout.pitch,
    y:
      Math.floor(k / layout.perRow) * layout.blockHeight +
      layout.label +
      Math.floor(inside / layout.across) * layout.pitch,
  };
}

export function rankAt(layout: Layout, x: number, y: number): number | null {
  if (x < 0 || y < 0) return null;
  const column = Math.floor(x / layout.blockWidth);
  if (column >= layout.perRow) return null;
  const group = layout.groups[Math.floor(y / layout.blockHeight) * layout.perRow + column];
  if (!group) return null;
  const left = Math.floor((x - column * layout.blockWidth) / layout.pitch);
  const line = Math.floor(((y % layout.blockHeight) - layout.label) / layout.pitch);
  if (left >= layout.across || line < 0) return null;
  const inside = line * layout.across + left;
  return inside < group.size ? group.firstRank + inside : null;
}

export type Direction = "left" | "right" | "up" | "down";

/** The next worker in that direction, or the same where there is none. */
export function neighbour(layout: Layout, rank: number, direction: Direction): number {
  const last = layout.groupOf.length - 1;
  if (direction === "left") return Math.max(0, rank - 1);
  if (direction === "right") return Math.min(last, rank + 1);
  const corner = cornerOf(layout, rank);
  if (!corner) return rank;
  const sign = direction === "down" ? 1 : -1;
  const x = corner.x + layout.cell / 2;
  // Cells of other blocks may stand a little apart, so that several heights are tried.
  for (let far = layout.pitch; far < 2 * layout.blockHeight + layout.pitch; far += layout.pitch / 2) {
    const found = rankAt(layout, x, corner.y + layout.cell / 2 + sign * far);
    if (found !== null && found !== rank) return found;
  }
  return rank;
}

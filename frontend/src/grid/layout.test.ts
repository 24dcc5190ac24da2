import { expect, test } from "vitest";
import { cornerOf, type Group, layOut, neighbour, rankAt } from "./layout";

function nodes(count: number, slots: number): Group[] {
  return Array.from({ length: count }, (_, k) => ({ name: `n${k}`, firstRank: k * slots, size: slots }));
}

const SHAPES: [number, number, number][] = [
  [1, 1, 358],
  [1, 8, 358],
  [4, 8, 900],
  [3, 20, 700],
  [1250, 8, 1040],
  [1250, 8, 358],
  [10000, 1, 700],
];

test.each(SHAPES)("every worker of %d nodes × %d is found where it stands, %d px wide", (count, slots, width) => {
  const layout = layOut(nodes(count, slots), width, 420);
  const astray: number[] = [];
  for (let rank = 0; rank < count * slots; rank++) {
    const corner = cornerOf(layout, rank)!;
    const found = rankAt(layout, corner.x + layout.cell / 2, corner.y + layout.cell / 2);
    const outside = corner.x + layout.cell > width || corner.y + layout.cell > layout.height;
    if (found !== rank || outside) astray.push(rank);
  }
  expect(astray).toEqual([]);
});

test("a few workers are large, many are small", () => {
  expect(layOut(nodes(1, 8), 1000, 420).cell).toBe(30);
  expect(layOut(nodes(1250, 8), 1000, 420).cell).toBe(5);
});

test("every worker can be reached with the arrow keys", () => {
  const layout = layOut(nodes(5, 4), 400, 420);
  const reached = new Set([0]);
  const pending = [0];
  while (pending.length) {
    const rank = pending.pop()!;
    for (const direction of ["left", "right", "up", "down"] as const) {
      const next = neighbour(layout, rank, direction);
      if (!reached.has(next)) pending.push(next);
      reached.add(next);
    }
  }
  expect(reached.size).toBe(20);
  expect(neighbour(layout, neighbour(layout, 0, "down"), "up")).toBe(0);
  expect(neighbour(layout, 0, "down")).not.toBe(0);
});

test("between blocks there is nobody", () => {
  const layout = layOut(nodes(4, 8), 900, 420);
  expect(rankAt(layout, layout.blockWidth - 2, layout.label + 2)).toBeNull();
  expect(rankAt(layout, -1, 4)).toBeNull();
  expect(rankAt(layout, 2, layout.height + 40)).toBeNull();
});

import { expect, test } from "vitest";
import { Cells } from "./cells";

const [WIDTH, HEIGHT, SIDE] = [20, 8, 2];

/** Three workers; the second has no place. */
function picture() {
  const pixels = new Uint32Array(WIDTH * HEIGHT).fill(7);
  const corners = Int32Array.from([0, 0, -1, -1, 10, 5]);
  const stamps = [100, 200].map((value) => new Uint32Array(SIDE * SIDE).fill(value));
  return { pixels, cells: new Cells(pixels, WIDTH, corners, SIDE, stamps) };
}

function at(pixels: Uint32Array, x: number, y: number): number {
  return pixels[y * WIDTH + x]!;
}

test("at first all cells are drawn, and nothing beside them", () => {
  const { pixels, cells } = picture();
  expect(cells.show(Uint8Array.from([0, 0, 1]))).toEqual({ left: 0, top: 0, right: 12, bottom: 7 });
  expect([at(pixels, 0, 0), at(pixels, 1, 1), at(pixels, 10, 5), at(pixels, 11, 6)]).toEqual([100, 100, 200, 200]);
  expect([at(pixels, 2, 0), at(pixels, 0, 2), at(pixels, 12, 6), at(pixels, 9, 5)]).toEqual([7, 7, 7, 7]);
});

test("then only what has changed", () => {
  const { pixels, cells } = picture();
  cells.show(Uint8Array.from([0, 0, 1]));
  pixels.fill(7);
  expect(cells.show(Uint8Array.from([0, 0, 1]))).toBeNull();
  expect(cells.show(Uint8Array.from([0, 1, 0]))).toEqual({ left: 10, top: 5, right: 12, bottom: 7 });
  expect(pixels.filter((pixel) => pixel !== 7)).toHaveLength(SIDE * SIDE);
});

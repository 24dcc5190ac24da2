/**
 * The cells of a picture, as pixels.
 *
 * A canvas takes a tenth of a second to fill ten thousand shapes without a graphics card. To copy the pixels of
 * a shape that was drawn once takes about as many microseconds as there are hundreds of cells. So each look is
 * drawn once, and cells whose look has changed are copied: nothing else is touched.
 */

/** The part of the picture that has changed, in pixels. */
export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

const NONE = 255;

export class Cells {
  private readonly shown: Uint8Array;

  /**
   * `pixels` are those of the whole picture, row by row; `corners` tells by rank where a cell begins (x, y, x, …;
   * negative where it has none); `stamps` are the pixels of each look, `side` × `side`.
   */
  constructor(
    private readonly pixels: Uint32Array,
    private readonly width: number,
    private readonly corners: Int32Array,
    private readonly side: number,
    private readonly stamps: Uint32Array[],
  ) {
    this.shown = new Uint8Array(corners.length / 2).fill(NONE);
  }

  /** Copy what has changed; null where nothing has. */
  show(looks: Uint8Array): Box | null {
    const box: Box = { left: Infinity, top: Infinity, right: -1, bottom: -1 };
    for (let rank = 0; rank < this.shown.length; rank++) {
      const look = looks[rank]!;
      if (look === this.shown[rank]) continue;
      this.shown[rank] = look;
      const [x, y] = [this.corners[2 * rank]!, this.corners[2 * rank + 1]!];
      if (x < 0) continue;
      this.copy(this.stamps[look]!, x, y);
      if (x < box.left) box.left = x;
      if (y < box.top) box.top = y;
      if (x + this.side > box.right) box.right = x + this.side;
      if (y + this.side > box.bottom) box.bottom = y + this.side;
    }
    return box.right < 0 ? null : box;
  }

  private copy(stamp: Uint32Array, x: number, y: number): void {
    const { pixels, width, side } = this;
    let to = y * width + x;
    let from = 0;
    for (let line = 0; line < side; line++, to += width - side) {
      for (let k = 0; k < side; k++) pixels[to++] = stamp[from++]!;
    }
  }
}

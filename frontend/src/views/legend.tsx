import { useEffect, useRef } from "preact/hooks";
import type { WorkerState } from "../model";
import { SHAPES } from "../grid/paint";
import { colour, onColours } from "../theme";

export const STATE_WORDS: Record<WorkerState, { name: string; words: string }> = {
  absent: { name: "no worker", words: "the rank has no process now" },
  starting: { name: "starting", words: "its process exists; it has not stepped yet" },
  running: { name: "running", words: "it runs" },
  slow: { name: "slow", words: "much slower than its neighbours, for long" },
  late: { name: "no step", words: "its last step is several times as long ago as steps take" },
  still: { name: "stalled", words: "no step for longer than ever before in this phase" },
  stopping: { name: "stopping", words: "it was asked to end" },
  failed: { name: "failed", words: "it ended with an error or was killed" },
  finished: { name: "finished", words: "its process has ended well" },
};

/** A state's colour and shape, as the grid draws them. */
export function Swatch({ state }: { state: WorkerState }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const draw = () => {
      const ink = canvas.current!.getContext("2d")!;
      ink.setTransform(2, 0, 0, 2, 0, 0);
      ink.clearRect(0, 0, 12, 12);
      ink.fillStyle = colour(`state-${state}`);
      ink.beginPath();
      SHAPES[state](ink, 0, 0, 12);
      ink.fill();
    };
    draw();
    return onColours(draw);
  }, [state]);
  return <canvas ref={canvas} class="swatch" width={24} height={24} aria-hidden="true" />;
}

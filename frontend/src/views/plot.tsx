import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { useWidth } from "../size";
import { colour, onColours } from "../theme";

export interface Line {
  name: string;
  colour: string;
  values: (number | null)[];
  /** Not only the colour tells lines apart. */
  dash?: number[];
}

interface PlotProps {
  at: number[];
  lines: Line[];
  show: (value: number) => string;
  label: string;
  height?: number;
}

/** Lines over time. */
export function Plot({ at, lines, show, label, height = 200 }: PlotProps) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    if (width <= 0) return;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(lines, show, width, height), [at, ...lines.map((line) => line.values)], box.current!);
    };
    make();
    const stop = onColours(make);
    return () => {
      stop();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [width]);
  const last = at[at.length - 1];
  useEffect(() => plot.current?.setData([at, ...lines.map((line) => line.values)]), [last, at.length]);
  return <div ref={box} class="plot" role="img" aria-label={label} style={{ minHeight: `${height}px` }} />;
}

function options(lines: Line[], show: (value: number) => string, width: number, height: number): uPlot.Options {
  const axis = { stroke: colour("muted"), grid: { stroke: colour("rule"), width: 1 }, ticks: { show: false }, font: "11px Inter, system-ui, sans-serif" };
  return {
    width,
    height,
    padding: [8, 26, 0, 0],
    cursor: { y: false, points: { size: 6 } },
    legend: { live: true },
    scales: { y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.15 : 1] } },
    axes: [
      { ...axis, space: 90, size: 30, values: (_plot, splits) => splits.map((at) => new Date(at * 1000).toLocaleTimeString("en-GB")) },
      { ...axis, size: 62, values: (_plot, splits) => splits.map(show) },
    ],
    series: [
      { value: (_plot, at) => (at ? new Date(at * 1000).toLocaleTimeString("en-GB") : "–"), label: "at" },
      ...lines.map((line) => ({
        label: line.name,
        stroke: colour(line.colour),
        width: 1.75,
        points: { show: false },
        spanGaps: false,
        ...(line.dash ? { dash: line.dash } : {}),
        value: (_plot: uPlot, value: number | null) => (value === null ? "–" : show(value)),
      })),
    ],
  };
}

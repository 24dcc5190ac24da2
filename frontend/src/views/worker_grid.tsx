import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { cornerOf, type Group, type Layout, layOut, neighbour, rankAt } from "../grid/layout";
import { LEVELS, scale, type Shade } from "../grid/looks";
import { EDGE, mix, palette, Picture } from "../grid/paint";
import { type Node, WORKER_STATES, type WorkerState } from "../model";
import { go } from "../route";
import { useWidth } from "../size";
import { store, useStore } from "../store";
import { onColours } from "../theme";
import { bytes, count, counted, duration } from "../words";
import { STATE_WORDS, Swatch } from "./legend";
import { WorkerCard } from "./worker_card";

const SHADES: Record<Shade, string> = {
  state: "State",
  behind: "Steps behind",
  pace_ms: "Time of a step",
  cpu: "CPU",
  memory_mb: "Memory",
};
const NEEDS_A_LOOK: WorkerState[] = ["slow", "late", "still", "failed", "stopping"];
const WANTED_HEIGHT = 420;
/** How far the frame around a cell stands out. */
const MARK = 3;

export function WorkerGrid() {
  const { workers, rank, nodes } = useStore("ranks", "choice", "nodes");
  const [shade, setShade] = useState<Shade>("state");
  return (
    <section class="card workers" aria-labelledby="workers-title">
      <div class="head">
        <h2 id="workers-title">Workers</h2>
        <label class="select">
          <span>Colour shows</span>
          <select value={shade} onChange={(event) => setShade(event.currentTarget.value as Shade)}>
            {Object.entries(SHADES).map(([value, name]) => <option key={value} value={value}>{name}</option>)}
          </select>
        </label>
      </div>
      {shade === "state" ? <Legend counts={workers.counts()} /> : <ScaleLegend shade={shade} />}
      <Grid shade={shade} nodes={nodes} />
      {rank !== null && rank < workers.count && <WorkerCard rank={rank} />}
    </section>
  );
}

function Legend({ counts }: { counts: Record<WorkerState, number> }) {
  return (
    <ul class="legend" data-test="legend">
      {WORKER_STATES.filter((state) => counts[state] > 0).map((state) => (
        <li key={state} title={STATE_WORDS[state].words}><Swatch state={state} /><b>{count(counts[state])}</b> {STATE_WORDS[state].name}</li>
      ))}
    </ul>
  );
}

function ScaleLegend({ shade }: { shade: Exclude<Shade, "state"> }) {
  const { least, most } = scale(store.workers, shade);
  const colours = palette();
  if (!Number.isFinite(least)) return <p class="legend more">Nothing is known about it.</p>;
  return (
    <p class="legend">
      <span>{shown(shade, least)}</span>
      <span class="scale" aria-hidden="true">
        {Array.from({ length: LEVELS }, (_, level) => <i key={level} style={{ background: mix(colours, level) }} />)}
      </span>
      <span>{shown(shade, most)}</span>
    </p>
  );
}

function shown(shade: Exclude<Shade, "state">, value: number): string {
  if (shade === "pace_ms") return duration(value / 1000);
  if (shade === "cpu") return `${Math.round(value)} %`;
  if (shade === "memory_mb") return bytes(value);
  return counted(value, "step");
}

/** Nodes with workers, in the order of ranks. */
function groupsOf(nodes: Node[]): Group[] {
  const placed = nodes.filter((node) => node && node.first_rank !== null && node.slots > 0);
  const groups = placed.map((node) => ({ name: node.name, firstRank: node.first_rank!, size: node.slots }));
  return groups.sort((a, b) => a.firstRank - b.firstRank);
}

function Grid({ shade, nodes }: { shade: Shade; nodes: Node[] }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  const painter = useRef<Painter | null>(null);
  const tip = useRef<HTMLParagraphElement>(null);
  const pointed = useRef<HTMLElement>(null);
  const chosen = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    painter.current ??= new Painter(canvas.current!, { tip: tip.current!, pointed: pointed.current!, chosen: chosen.current! });
    painter.current.arrange(groupsOf(nodes), width - 2 * EDGE);
  }, [nodes, width]);
  useEffect(() => painter.current?.follow(), []);
  useEffect(() => painter.current?.shadeBy(shade), [shade]);
  return (
    <div ref={box} class="grid">
      <canvas
        ref={canvas} tabIndex={0} role="application" aria-roledescription="grid of workers" data-test="grid"
        aria-label="One cell for each worker. Arrow keys move, n goes to the next that needs a look, Enter opens its logs."
        onPointerMove={(event) => painter.current?.pointAt(event)}
        onPointerLeave={() => painter.current?.pointAt(null)}
        onClick={(event) => painter.current?.chooseAt(event)}
        onKeyDown={(event) => painter.current?.press(event)}
      />
      <i ref={pointed} class="around" hidden />
      <i ref={chosen} class="around chosen" hidden />
      <p ref={tip} class="tip" aria-live="polite" hidden />
    </div>
  );
}

/** Elements over the picture. */
interface Marks {
  tip: HTMLElement;
  pointed: HTMLElement;
  chosen: HTMLElement;
}

function sameGroups(some: Group[], others: Group[]): boolean {
  const same = (a: Group, b: Group | undefined) => a.name === b?.name && a.firstRank === b.firstRank && a.size === b.size;
  return some.length === others.length && some.every((group, k) => same(group, others[k]));
}

/** Holds the canvas: what is drawn, when, and what the reader points at. */
class Painter {
  private layout: Layout = layOut([], 100, WANTED_HEIGHT);
  private picture: Picture | null = null;
  private shade: Shade = "state";
  private pointed: number | null = null;
  private asked = false;

  constructor(private canvas: HTMLCanvasElement, private marks: Marks) {}

  follow(): () => void {
    const again = () => this.ask();
    const afresh = () => { this.picture = null; this.ask(); };
    const stop = [store.listen("ranks", again), store.listen("choice", again), onColours(afresh)];
    return () => stop.forEach((end) => end());
  }

  /** Nodes come and go: cells move only where that changes something. */
  arrange(groups: Group[], width: number): void {
    // Between two rounds nobody has a place: the old ones stay, without workers.
    const placed = groups.length || !store.job || store.job.outcome ? groups : this.layout.groups;
    if (width <= 0 || (width === this.layout.width && sameGroups(placed, this.layout.groups))) return;
    this.layout = layOut(placed, width, WANTED_HEIGHT);
    this.picture = null;
    this.draw();
  }

  shadeBy(shade: Shade): void {
    this.shade = shade;
    this.ask();
  }

  /** At most one picture for each frame, however much is told. */
  private ask(): void {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  private draw(): void {
    this.picture ??= new Picture(this.canvas, this.layout, palette());
    this.picture.show(store.workers, this.shade);
    this.mark(this.marks.chosen, store.rank);
    this.mark(this.marks.pointed, this.pointed);
    this.showTip();
  }

  /** A frame around a cell is an element of its own, so that no pixel of the picture changes for it. */
  private mark(frame: HTMLElement, rank: number | null): void {
    const corner = rank === null ? null : cornerOf(this.layout, rank);
    frame.hidden = corner === null;
    if (!corner) return;
    const size = `${this.layout.cell + 2 * MARK}px`;
    if (frame.style.width !== size) frame.style.width = frame.style.height = size;
    frame.style.transform = `translate(${corner.x + EDGE - MARK}px, ${corner.y + EDGE - MARK}px)`;
  }

  /** To the left or to the right of its cell: nothing has to be measured for it. */
  private showTip(): void {
    const { tip } = this.marks;
    const corner = this.pointed === null ? null : cornerOf(this.layout, this.pointed);
    tip.hidden = corner === null;
    if (corner === null || this.pointed === null) return;
    const worker = store.workers.worker(this.pointed);
    const group = this.layout.groups[this.layout.groupOf[this.pointed] ?? -1];
    const parts = [`rank ${worker.rank}`, group?.name ?? "", STATE_WORDS[worker.state].name];
    if (worker.step !== null) parts.push(`step ${count(worker.step)}`);
    if (worker.stepped !== null) parts.push(`${duration(store.now() - worker.stepped)} ago`);
    if (worker.pace_ms !== null) parts.push(`${duration(worker.pace_ms / 1000)} a step`);
    const words = parts.filter(Boolean).join(" · ");
    if (tip.textContent !== words) tip.textContent = words;
    const isRight = corner.x > this.layout.width / 2;
    const x = isRight ? corner.x + this.layout.cell + 2 * EDGE : corner.x;
    tip.style.transform = `translate(${x}px, ${corner.y + this.layout.cell + 12}px)${isRight ? " translateX(-100%)" : ""}`;
  }

  private find(event: PointerEvent | MouseEvent): number | null {
    return rankAt(this.layout, event.offsetX - EDGE, event.offsetY - EDGE);
  }

  pointAt(event: PointerEvent | null): void {
    const found = event ? this.find(event) : null;
    if (found === this.pointed) return;
    this.pointed = found;
    this.ask();
  }

  chooseAt(event: MouseEvent): void {
    const found = this.find(event);
    store.choose(found === store.rank ? null : found);
  }

  press(event: KeyboardEvent): void {
    const last = store.workers.count - 1;
    const rank = store.rank ?? 0;
    const arrows = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" } as const;
    const direction = arrows[event.key as keyof typeof arrows];
    if (event.key === "Enter" && store.rank !== null) return go("logs", `${store.rank}`);
    let next: number | null = null;
    if (direction) next = store.rank === null ? 0 : neighbour(this.layout, rank, direction);
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = last;
    else if (event.key === "n") next = this.nextToLookAt(1);
    else if (event.key === "p") next = this.nextToLookAt(-1);
    else if (event.key !== "Escape") return;
    event.preventDefault();
    store.choose(next);
    this.keepInSight(next);
  }

  private nextToLookAt(by: 1 | -1): number | null {
    const { count: all } = store.workers;
    const from = store.rank ?? (by > 0 ? -1 : all);
    for (let k = 1; k <= all; k++) {
      const rank = (((from + by * k) % all) + all) % all;
      if (NEEDS_A_LOOK.includes(store.workers.stateOf(rank))) return rank;
    }
    return store.rank;
  }

  private keepInSight(rank: number | null): void {
    const corner = rank === null ? null : cornerOf(this.layout, rank);
    if (!corner) return;
    const top = this.canvas.getBoundingClientRect().top + corner.y;
    if (top < 120) scrollBy({ top: top - 160 });
    else if (top > innerHeight - 60) scrollBy({ top: top - innerHeight + 120 });
  }
}

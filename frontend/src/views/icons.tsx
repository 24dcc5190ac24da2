/** Small signs, drawn here: nothing is fetched. */

const PATHS = {
  running: "M5 3.5v9l7.5-4.5z",
  waiting: "M5 2.5h6M5 13.5h6M5.5 2.5c0 3 5 4 5 5.5s-5 2.5-5 5.5M10.5 2.5c0 3-5 4-5 5.5s5 2.5 5 5.5",
  starting: "M8 2.5v3M8 10.5v3M2.5 8h3M10.5 8h3M4.1 4.1l2 2M9.9 9.9l2 2M4.1 11.9l2-2M9.9 6.1l2-2",
  late: "M8 4.5V8l2.3 1.6M2.5 8a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0",
  stopped: "M4.5 4.5h7v7h-7z",
  stopping: "M4.5 4.5h7v7h-7z",
  succeeded: "M3 8.5l3.5 3.5L13 4.5",
  failed: "M4 4l8 8M12 4l-8 8",
  bad: "M8 2.5l6 11H2zM8 6.5v3M8 11.4v.2",
  notable: "M8 3v6M8 12v.3",
  good: "M3 8.5l3.5 3.5L13 4.5",
  plain: "M8 7.4v1.2",
  theme: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  help: "M5.8 6.2A2.2 2.2 0 1 1 8.9 8.2C8.2 8.6 8 9 8 9.8M8 12v.2",
  node: "M3 4h10v3.5H3zM3 9h10v3.5H3zM5 5.7h.2M5 10.7h.2",
} as const;
export type IconName = keyof typeof PATHS;

export function Icon({ name, label }: { name: IconName; label?: string }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" role={label ? "img" : undefined} aria-label={label} aria-hidden={!label}>
      <path d={PATHS[name]} />
    </svg>
  );
}

/** Our mark: a ring that holds, and what it holds. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" aria-hidden="true">
      <path d="M12 2.6v6.2M12 15.2v6.2M2.6 12h6.2M15.2 12h6.2" />
      <circle cx="12" cy="12" r="3.4" />
      <path class="ring" d="M19.6 8A8.6 8.6 0 0 1 19.6 16M16 19.6A8.6 8.6 0 0 1 8 19.6M4.4 16A8.6 8.6 0 0 1 4.4 8M8 4.4A8.6 8.6 0 0 1 16 4.4" />
    </svg>
  );
}

/** Light, dark, or as the system is. */

export type Theme = "auto" | "light" | "dark";
const NAME = "holdfast-theme";
let chosen: Theme | null = null;
const listeners = new Set<() => void>();

export function theme(): Theme {
  let kept: string | null = chosen;
  try {
    kept ??= localStorage.getItem(NAME);
  } catch {
    // A file in some browsers has no storage.
  }
  return kept === "light" || kept === "dark" ? kept : "auto";
}

export function setTheme(theme: Theme): void {
  chosen = theme;
  try {
    localStorage.setItem(NAME, theme);
  } catch {
    // As above.
  }
  show();
}

export function nextTheme(): void {
  setTheme(({ auto: "light", light: "dark", dark: "auto" } as const)[theme()]);
}

/** Canvases have no style sheet: they are told when colours change. */
export function onColours(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** A colour of the style sheet as it is now. Asked of an element: the sheet's own words are for both themes. */
export function colour(name: string): string {
  probe ??= document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** It stays: to add and remove one each time would have the browser look at all styles again. */
let probe: HTMLElement | null = null;

export function show(): void {
  const now = theme();
  if (now === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = now;
  for (const listener of listeners) listener();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

/** Light, dark, or as the system is. */

export type Theme = "auto" | "light" | "dark";
const NAME = "holdfast-theme";
const listeners = new Set<() => void>();

export function theme(): Theme {
  const kept = localStorage.getItem(NAME);
  return kept === "light" || kept === "dark" ? kept : "auto";
}

export function setTheme(chosen: Theme): void {
  localStorage.setItem(NAME, chosen);
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
  const chosen = theme();
  if (chosen === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
  for (const listener of listeners) listener();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

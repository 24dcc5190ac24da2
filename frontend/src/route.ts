/** Which part of the page is shown, in the address's fragment, so that it can be kept and sent. */

import { useEffect, useState } from "preact/hooks";

export const TABS = ["overview", "speed", "logs", "stacks", "nodes"] as const;
export type Tab = (typeof TABS)[number];

export interface Route {
  tab: Tab;
  /** Of logs and stacks: which workers, as it was typed. */
  ranks: string;
}

export function route(): Route {
  const [name, rest] = location.hash.slice(1).split("?");
  const tab = TABS.find((known) => known === name) ?? "overview";
  return { tab, ranks: new URLSearchParams(rest ?? "").get("ranks") ?? "" };
}

export function go(tab: Tab, ranks = ""): void {
  location.hash = ranks ? `${tab}?ranks=${encodeURIComponent(ranks)}` : tab;
}

export function useRoute(): Route {
  const [now, setNow] = useState(route);
  useEffect(() => {
    const changed = () => setNow(route());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return now;
}

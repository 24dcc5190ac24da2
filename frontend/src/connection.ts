/**
 * The line to the agent that serves this page.
 *
 * The key comes in the fragment of the link, which browsers send to nobody. It is kept for this tab alone,
 * and shown in a header with every question: there is no cookie that other pages or ports could use.
 * When the agent is gone, the page tries again for a while, then offers the dashboards of other nodes.
 */

import type { Dashboard, Messages } from "./model";
import { serverEvents } from "./server_events";
import { store } from "./store";

const KEY_NAME = "holdfast-key";
const RETRY_LEAST_MS = 300;
const RETRY_MOST_MS = 5000;
/** How long a hidden page goes on listening. */
const HIDDEN_MS = 30_000;
/** How long a new line may be silent, and how many signs of life may be missed on one that stands. */
const SILENCE_MS = 12_000;
const MISSED = 2.4;

export class Refused extends Error {}
export class Locked extends Error {}

function takeKey(): void {
  const found = /[#&]key=([^&]+)/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY_NAME, decodeURIComponent(found[1]!));
    history.replaceState(null, "", location.pathname + location.search);
  }
  key = sessionStorage.getItem(KEY_NAME) ?? "";
}

let key = "";
let wake: (() => void) | null = null;
let streaming: AbortController | null = null;

export function unlock(text: string): void {
  const pasted = /[#&]key=([^&\s]+)/.exec(text);
  key = pasted ? decodeURIComponent(pasted[1]!) : text.trim();
  sessionStorage.setItem(KEY_NAME, key);
  wake?.();
}

/** The same page of another node, with the key that opens it. */
export function addressOf({ url, key: itsKey }: Dashboard): string {
  return `${url.replace(/\/$/, "")}/#key=${encodeURIComponent(itsKey)}`;
}

export async function ask(path: string, options: RequestInit = {}): Promise<Response> {
  const response = await fetch(path, {
    ...options,
    headers: { Authorization: `Bearer ${key}`, ...options.headers },
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  });
  if (response.status === 401) throw new Locked();
  if (!response.ok) throw new Refused((await response.text()) || `the agent answered ${response.status}`);
  return response;
}

export async function askJson<T>(path: string, options: RequestInit = {}): Promise<T> {
  return (await (await ask(path, options)).json()) as T;
}

/** Want something of the job; the answer says in words what came of it. */
export async function want(action: string, subject: Record<string, unknown> = {}): Promise<void> {
  try {
    const { words } = await askJson<{ words: string }>("api/actions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ action, ...subject }),
    });
    store.say(words);
  } catch (problem) {
    store.say(problem instanceof Refused ? problem.message : "The agent could not be reached.", true);
  }
}

/** Listen for as long as the page is open. */
export async function listen(): Promise<never> {
  takeKey();
  watchVisibility();
  for (let tries = 0; ; tries++) {
    try {
      if (document.hidden && tries > 0) await asleep();
      if (await listenOnce()) tries = 0;
    } catch (problem) {
      if (problem instanceof Locked) {
        store.connect({ state: "locked", wrong: key !== "" });
        await sleep(Infinity);
        tries = -1;
        continue;
      }
    }
    if (store.job?.outcome) {
      store.connect({ state: "over" });
      await sleep(Infinity);
      continue;
    }
    lost(tries);
    await sleep(Math.min(RETRY_MOST_MS, RETRY_LEAST_MS * 1.7 ** tries) * (0.7 + 0.6 * Math.random()));
  }
}

function lost(tries: number): void {
  const before = store.connection;
  store.connect({ state: "lost", since: before.state === "lost" ? before.since : Date.now(), tries });
}

/** True when the line stood before it ended. */
async function listenOnce(): Promise<boolean> {
  const control = new AbortController();
  streaming = control;
  let silenceMs = SILENCE_MS;
  let silence = setTimeout(() => control.abort(), silenceMs);
  let stood = false;
  try {
    const story = new URLSearchParams(location.search).get("story");
    const path = story ? `api/stream?story=${encodeURIComponent(story)}` : "api/stream";
    const response = await ask(path, { signal: control.signal });
    for await (const { kind, data } of serverEvents(response.body!)) {
      clearTimeout(silence);
      stood = true;
      if (kind === "hello") silenceMs = MISSED * 1000 * (JSON.parse(data) as Messages["hello"]).alive_s;
      if (kind === "alive") store.heard();
      else store.take(kind as keyof Messages, JSON.parse(data));
      silence = setTimeout(() => control.abort(), silenceMs);
      // What is still shown from before is of before, until there is news.
      if (store.connection.state !== "live" && (kind !== "hello" || !store.job)) store.connect({ state: "live" });
    }
  } catch (problem) {
    if (problem instanceof Locked) throw problem;
    if (problem instanceof Refused) store.say(problem.message, true);
  } finally {
    clearTimeout(silence);
    streaming = null;
  }
  return stood;
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer = ms === Infinity ? 0 : setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      wake = null;
      resolve();
    }
    wake = done;
  });
}

async function asleep(): Promise<void> {
  store.connect({ state: "asleep" });
  await sleep(Infinity);
  store.connect({ state: "connecting" });
}

export function tryNow(): void {
  wake?.();
}

function watchVisibility(): void {
  let timer = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = window.setTimeout(() => streaming?.abort(), HIDDEN_MS);
    else wake?.();
  });
}

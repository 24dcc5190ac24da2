/** Journals that the reader chooses or drops: sent to who serves the page, which tells what is in them. */

import { ask, askJson, Refused } from "./connection";
import { store } from "./store";
import { counted } from "./words";

const PIECE = 4 << 20;
/** How far below a dropped folder journals are looked for. */
const DEPTH = 6;

export async function openJournals(files: File[]): Promise<void> {
  if (!store.opens) {
    return store.say("This page shows a job that runs. In a terminal, “holdfast dashboard” opens journals.", true);
  }
  if (!files.length) return store.say("No journal is among them: a job's log folder has a journal.jsonl.", true);
  const drop = Array.from({ length: 4 }, () => Math.random().toString(36).slice(2, 8)).join("");
  store.say(`Reading ${counted(files.length, "file")} …`);
  try {
    for (const [number, file] of files.entries()) await send(drop, number, file);
    const { story } = await askJson<{ story: string }>(`api/journals?drop=${drop}`, { method: "POST" });
    location.assign(`?story=${story}`);
  } catch (problem) {
    store.say(problem instanceof Refused ? problem.message.trim() : "The files could not be read, or nobody took them.", true);
  }
}

async function send(drop: string, number: number, file: File): Promise<void> {
  const path = `api/journals?drop=${drop}&file=${number}&name=${encodeURIComponent(file.name)}`;
  for (let at = 0; at === 0 || at < file.size; at += PIECE) {
    await ask(path, { method: "POST", body: await file.slice(at, at + PIECE).arrayBuffer() });
  }
}

/** What was dropped: files as they are, and of folders the journals in them. */
export async function filesOf(dropped: DataTransfer): Promise<File[]> {
  const entries = [...dropped.items].map((item) => item.webkitGetAsEntry?.());
  const plain = [...dropped.files].filter((_, k) => !entries[k]?.isDirectory);
  const folders = entries.filter((entry) => entry?.isDirectory) as FileSystemDirectoryEntry[];
  const found = await Promise.all(folders.map((folder) => journalsIn(folder, DEPTH)));
  return [...plain, ...found.flat()];
}

async function journalsIn(folder: FileSystemDirectoryEntry, depth: number): Promise<File[]> {
  const found: Promise<File[]>[] = [];
  const reader = folder.createReader();
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) break;
    for (const entry of some) {
      if (entry.isDirectory && depth > 0) found.push(journalsIn(entry as FileSystemDirectoryEntry, depth - 1));
      else if (entry.isFile && /^journal.*\.jsonl$/.test(entry.name)) found.push(fileOf(entry as FileSystemFileEntry));
    }
  }
  return (await Promise.all(found)).flat();
}

function fileOf(entry: FileSystemFileEntry): Promise<File[]> {
  return new Promise((resolve, reject) => entry.file((file) => resolve([file]), reject));
}

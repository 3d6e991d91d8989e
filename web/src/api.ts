// Questions to the server, or to the answers that a static copy holds.
import { useEffect, useState } from "preact/hooks";

export type Params = Record<string, string | number | string[] | undefined | null>;
type Copy = { title: string; answers: Record<string, unknown>; lists: Record<string, { [key: string]: unknown; rows: unknown[] }> };

const element = document.getElementById("copy");
export const copy: Copy | null = element ? JSON.parse(element.textContent || "null") : null;

export function queryText(params: Params): string {
  const query = new URLSearchParams();
  for (const name of Object.keys(params).sort()) {
    const value = params[name];
    if (Array.isArray(value)) value.forEach((item) => query.append(name, item));
    else if (value !== undefined && value !== null && value !== "") query.set(name, String(value));
  }
  return query.toString();
}

// A question in the cache: how many parts of the page wait for it, and how it is given up when none does.
type Entry = { answer: Promise<unknown>; waiting: number; isDone: boolean; stop: AbortController };
const cache = new Map<string, Entry>();
let numWaiting = 0;
const watchers = new Set<(busy: boolean) => void>();

function wait(change: number) {
  numWaiting += change;
  watchers.forEach((watch) => watch(numWaiting > 0));
}

// A copy holds the rows of each list once; pages are cut from them here.
function answerFromCopy(question: string, params: Params): unknown {
  const list = copy!.lists[`${question}?source=${params.source ?? ""}`];
  if (list) {
    const offset = Number(params.offset ?? 0);
    return { ...list, offset, rows: list.rows.slice(offset, offset + Number(params.limit ?? 100)) };
  }
  if (question === "pairs.pair" && params.position != null) {
    const rows = copy!.lists[`pairs.rows?source=${params.source}`]?.rows as { id: string }[] | undefined;
    const row = rows?.[Number(params.position)];
    if (!rows || !row) return { matches: rows?.length ?? 0, position: null, pair: null };
    const known = copy!.answers[`pairs.pair?${queryText({ source: params.source, id: row.id })}`] as object;
    return { ...known, matches: rows.length, position: Number(params.position) };
  }
  const kept: Params = { ...params };
  for (const name of ["w", "q", "sort", "offset", "limit", "row"]) if (question !== "tokens.sequence" || name !== "row") delete kept[name];
  const answer = copy!.answers[`${question}?${queryText(kept)}`];
  if (answer === undefined) throw new Error("This copy holds a selection, and this is not in it. Open it with pairwright view.");
  return answer;
}

async function request(question: string, params: Params, body?: unknown, signal?: AbortSignal): Promise<unknown> {
  if (copy) return answerFromCopy(question, params);
  wait(1);
  try {
    const text = queryText(params);
    const response = await fetch(`/api/${question}${text ? "?" + text : ""}`, body === undefined ? { signal } : {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    });
    const value = await response.json();
    if (!response.ok) throw new Error(value.error || `${response.status} ${response.statusText}`);
    return value;
  } catch (error) {
    if (error instanceof TypeError) throw new Error("The server does not answer. Is pairwright view still running? Start it again and open its new link.");
    throw error;
  } finally {
    wait(-1);
  }
}

function enter(question: string, params: Params): Entry {
  const key = `${question}?${queryText(params)}`;
  const known = cache.get(key);
  if (known) return known;
  const stop = new AbortController();
  const entry: Entry = { answer: request(question, params, undefined, stop.signal), waiting: 0, isDone: false, stop };
  cache.set(key, entry);
  const drop = () => { if (cache.get(key) === entry) cache.delete(key); };
  entry.answer.then(() => { entry.isDone = true; }, () => { entry.isDone = true; drop(); });
  stop.signal.addEventListener("abort", drop);
  if (cache.size > 60) cache.delete(cache.keys().next().value!);
  return entry;
}

export function ask<T>(question: string, params: Params = {}): Promise<T> {
  const entry = enter(question, params);
  entry.waiting += 1;
  return entry.answer as Promise<T>;
}

// What nobody waits for any more is given up: the server ends its search.
function leave(entry: Entry) {
  entry.waiting -= 1;
  if (!entry.waiting && !entry.isDone) entry.stop.abort();
}

export async function decide<T>(question: string, body: unknown): Promise<T> {
  const answer = await request(question, {}, body);
  forget();
  return answer as T;
}

export function forget() { cache.clear(); }

export type Asked<T> = { value?: T; error?: string; busy: boolean };

// The answer to a question; while a changed question is asked, the answer before stays.
export function useAnswer<T>(question: string, params: Params | null, again = 0): Asked<T> {
  const key = params ? `${question}?${queryText(params)}#${again}` : "";
  const [state, set] = useState<Asked<T> & { key: string }>({ busy: true, key: "" });
  useEffect(() => {
    if (!params) return;
    let live = true;
    set((before) => ({ ...before, busy: true }));
    const done = (next: Asked<T>) => live && set({ ...next, key });
    const entry = enter(question, params);
    entry.waiting += 1;
    entry.answer.then((value) => done({ value: value as T, busy: false }), (error: Error) => done({ error: error.message, busy: false }));
    return () => { live = false; leave(entry); };
  }, [key]);
  if (!params) return { busy: false };
  return state.key === key ? state : { value: state.value, busy: true };
}

export function useBusy(): boolean {
  const [busy, set] = useState(false);
  useEffect(() => {
    // A bar that flashes for every quick answer is noise: it appears after a moment.
    let timer = 0;
    const watch = (now: boolean) => { clearTimeout(timer); if (now) timer = setTimeout(() => set(true), 150) as unknown as number; else set(false); };
    watchers.add(watch);
    return () => { watchers.delete(watch); clearTimeout(timer); };
  }, []);
  return busy;
}

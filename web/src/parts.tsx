// Parts that several views share: states, tables, facets, filters, charts.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, Asked, copy, useAnswer } from "./api";
import { change, Route } from "./route";

export function number(value: unknown, digits = 3): string {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toFixed(digits)));
}

// A name that is too long is cut in the middle: names of one source begin alike, and often end alike.
export const middle = (text: string, most = 36) => text.length > most ? `${text.slice(0, most / 2)}…${text.slice(1 - most / 2)}` : text;
const isHash = (text: string) => /^[0-9a-f]{16,}$/.test(text);
const plainText = (text: string) => text.replace(/\s+/g, " ").trim().slice(0, 120);

// The name of a task in a list; a hash, which names a task by its content, is shortened.
export function TaskName(props: { task: string }) {
  if (!props.task) return <span class="quiet">none</span>;
  return isHash(props.task) ? <span class="quiet mono" title={props.task}>{props.task.slice(0, 8)}</span> : <span title={props.task}>{middle(props.task)}</span>;
}

// The heading of a record: the name of its task, or the beginning of its prompt where the task is named by a hash.
export function heading(task: string, prompt: { text: string | null }[], text?: string | null): string {
  return task && !isHash(task) ? task : plainText([...prompt].reverse().find((message) => message.text)?.text || text || "") || "no task";
}

// Below a row: how its prompt and its answer begin.
export const beginnings = (rows: { prompt_start?: string; answer_start?: string }[]) => rows.map((row) => row.prompt_start || row.answer_start
  ? <span class="snippet">{row.prompt_start} <span class="quiet">→</span> {row.answer_start}</span> : null);

export const count = (value: number, noun: string) => `${value.toLocaleString("en")} ${noun}${value === 1 ? "" : "s"}`;

export function State(props: { title: string; children?: ComponentChildren; bad?: boolean }) {
  return <div class={"state" + (props.bad ? " bad" : "")} role={props.bad ? "alert" : "status"}>
    <h2>{props.title}</h2>{props.children && <p>{props.children}</p>}
  </div>;
}

// What an answer looks like before and without it.
export function Answer<T>(props: { asked: Asked<T>; children: (value: T) => ComponentChildren; what?: string }) {
  const { asked } = props;
  if (asked.error) return <State title="This could not be shown" bad>{asked.error}</State>;
  if (asked.value === undefined) return asked.busy ? <State title="Loading…">{props.what}</State> : null;
  return <>{props.children(asked.value)}</>;
}

export type Column<R> = { name: string; label: string; num?: boolean; sort?: boolean; wide?: boolean; keep?: boolean; cell: (row: R) => ComponentChildren };

// Columns that are not kept give way where the list is narrow.
const look = (column: { num?: boolean; wide?: boolean; keep?: boolean }) => [column.num && "num", column.wide && "wide", !column.keep && "rest"].filter(Boolean).join(" ");
const tail = (text: string) => text.length > 30 && text.includes("/") ? "…" + text.slice(-26) : text;

export function Table<R extends object>(props: {
  columns: Column<R>[]; rows: R[]; sort?: string; here?: (row: R) => boolean; open?: (row: R) => void; label: string; notes?: ComponentChildren[];
}) {
  const { sort = "" } = props;
  const here = useRef<HTMLTableRowElement>(null);
  const isHere = props.rows.map((row) => !!props.here?.(row));
  const at = isHere.indexOf(true);
  useEffect(() => here.current?.scrollIntoView({ block: "nearest" }), [at]);
  return <table aria-label={props.label}>
    <thead><tr>{props.columns.map((column) => {
      const down = sort === "-" + column.name, up = sort === column.name;
      const next = down ? column.name : up ? "" : "-" + column.name;
      return <th class={look(column)} aria-sort={down ? "descending" : up ? "ascending" : undefined}>
        {column.sort && !copy
          ? <button onClick={() => change({ sort: next, offset: null })} title="Sort">{column.label}{down ? " ↓" : up ? " ↑" : ""}</button>
          : column.label}
      </th>;
    })}</tr></thead>
    <tbody>{props.rows.map((row, position) => <><tr
      ref={isHere[position] ? here : undefined} class={isHere[position] ? "here" : ""}
      data-open={props.open ? "" : undefined} tabIndex={props.open ? 0 : undefined}
      onClick={() => props.open?.(row)}
      onKeyDown={(event) => event.key === "Enter" && props.open?.(row)}
    >{props.columns.map((column) => <td class={look(column)}>{column.cell(row)}</td>)}</tr>
      {props.notes?.[position] && <tr class={"note" + (isHere[position] ? " here" : "")} data-open={props.open ? "" : undefined} onClick={() => props.open?.(row)}><td class="rest" colSpan={props.columns.length}>{props.notes[position]}</td>
        <td class="kept" colSpan={props.columns.filter((column) => column.keep).length}>{props.notes[position]}</td></tr>}</>)}</tbody>
  </table>;
}

export function Pager(props: { offset: number; limit: number; matches: number }) {
  const { offset, limit, matches } = props;
  if (matches <= limit && !offset) return null;
  const last = Math.min(matches, offset + limit);
  return <div class="row pager">
    <button disabled={!offset} onClick={() => change({ offset: Math.max(0, offset - limit) || null })}>Previous</button>
    <span class="quiet small num">{(offset + 1).toLocaleString("en")}–{last.toLocaleString("en")} of {matches.toLocaleString("en")}</span>
    <button disabled={last >= matches} onClick={() => change({ offset: offset + limit })}>Next</button>
  </div>;
}

export type Facet = {
  name: string; label: string; others?: number; min?: number; max?: number;
  values?: { value: string | null; count: number; where: string }[];
  bins?: { low: number; high: number; count: number; where: string }[];
};

export type Snippet = { column: string; before: string; match: string; after: string } | null;

// What stands around the text of a search, for the rows of a page; it arrives after the rows.
export function useSnippets(view: string, source: string, text: string | null, rows: { row: number }[]): ComponentChildren[] {
  const asked = useAnswer<Snippet[]>(view + ".snippets", text && rows.length && !copy ? { source, q: text, row: rows.map((row) => String(row.row)) } : null);
  if (!text || !asked.value || asked.busy) return [];
  return asked.value.map((snippet) => snippet && <span class="snippet">{snippet.before}<mark>{snippet.match}</mark>{snippet.after}</span>);
}

// The facets beside a list; where the page is narrow, a fold above it.
export function Facets(props: { asked: Asked<Facet[]>; route: Route }) {
  const [open, setOpen] = useState(false);
  const active = props.route.params.getAll("w").length;
  if (copy) return null;
  return <aside class={"facet-panel" + (open ? " open" : "")} aria-label="Facets">
    <button class="facet-fold" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "▾" : "▸"} Facets{active > 0 && ` (${count(active, "condition")})`}</button>
    <div class="facet-list"><FacetList {...props} /></div>
  </aside>;
}

function FacetList(props: { asked: Asked<Facet[]>; route: Route }) {
  const active = props.route.params.getAll("w");
  const toggle = (where: string) => change({ w: active.includes(where) ? active.filter((item) => item !== where) : [...active, where], offset: null, at: null });
  if (props.asked.error) return <p class="small bad-text">{props.asked.error}</p>;
  if (!props.asked.value) return <p class="small quiet">Counting…</p>;
  return <div class={"stack facets" + (props.asked.busy ? " stale" : "")}>{props.asked.value.map((facet) => {
    const most = Math.max(1, ...(facet.bins || facet.values || []).map((entry) => entry.count));
    return <section key={facet.name}>
      <h4>{facet.label}</h4>
      {facet.bins && <>
        <div class="bars" role="group" aria-label={`histogram of ${facet.label}`}>{facet.bins.map((bin) => <button
          class={active.includes(bin.where) ? "on" : ""} onClick={() => toggle(bin.where)}
          title={`${number(bin.low)} to ${number(bin.high)}: ${bin.count.toLocaleString("en")}`}
          aria-label={`${facet.label} ${number(bin.low)} to ${number(bin.high)}: ${bin.count}`}
        ><i style={{ height: `${(100 * bin.count) / most}%` }} /></button>)}</div>
        <div class="row spread small quiet num"><span>{number(facet.min)}</span><span>{number(facet.max)}</span></div>
      </>}
      {facet.values?.map((entry) => <button
        class={"facet" + (active.includes(entry.where) ? " on" : "")} onClick={() => toggle(entry.where)} title={entry.where}
      ><i style={{ width: `${(100 * entry.count) / most}%` }} /><span class="cut">{entry.value === null ? "none" : tail(entry.value)}</span><span class="num">{entry.count.toLocaleString("en")}</span></button>)}
      {!!facet.others && <p class="small quiet">and {count(facet.others, "other value")}</p>}
    </section>;
  })}</div>;
}

// Search, condition and what is active; the list's state is in the address.
export function Filters(props: { route: Route; columns?: string[]; search?: boolean; example?: string; children?: ComponentChildren }) {
  const { params } = props.route;
  const active = params.getAll("w");
  const [where, setWhere] = useState("");
  const text = params.get("q") || "";
  if (copy) return <div class="filters row">{props.children}<span class="quiet small grow">a copy of a selection</span></div>;
  return <div class="filters">
    <div class="row">
      {props.children}
      {props.search !== false && <form class="grow search" onSubmit={(event) => {
        event.preventDefault();
        change({ q: String(new FormData(event.currentTarget).get("q") || ""), offset: null, at: null, task: null });
      }}><input id="search" key={text} name="q" type="search" defaultValue={text} placeholder="Search in all texts, then Enter" aria-label="Search" maxLength={1000} /></form>}
      <form class="grow search" onSubmit={(event) => {
        event.preventDefault();
        if (where.trim()) { change({ w: [...active, where.trim()], offset: null, at: null }); setWhere(""); }
      }}><input id="where" class="mono" list="columns" value={where} onInput={(event) => setWhere(event.currentTarget.value)} placeholder={props.example || "Condition, such as reward < 0.5"} aria-label="Condition" maxLength={2000} spellcheck={false} /></form>
      <datalist id="columns">{props.columns?.map((name) => <option value={name} />)}</datalist>
    </div>
    {(active.length > 0 || text) && <div class="row chips">
      {text && <span class="chip"><span class="cut">text: {text}</span><button aria-label="Clear the search" onClick={() => change({ q: null, offset: null })}>✕</button></span>}
      {active.map((clause) => <span class="chip"><span class="cut mono">{clause}</span><button aria-label={`Remove ${clause}`} onClick={() => change({ w: active.filter((item) => item !== clause), offset: null })}>✕</button></span>)}
      {active.length + (text ? 1 : 0) > 1 && <button class="plain small" onClick={() => change({ w: [], q: null, offset: null })}>clear all</button>}
    </div>}
  </div>;
}

export function Sources(props: { view: string; keys: string[]; here: string }) {
  if (props.keys.length < 2) return <span class="source quiet cut" title={props.here}>{props.here}</span>;
  return <select class="source" value={props.here} aria-label="Table" onChange={(event) => { location.hash = `#/${props.view}/${event.currentTarget.value.split("/").map(encodeURIComponent).join("/")}`; }}>
    {props.keys.map((key) => <option value={key}>{key}</option>)}
  </select>;
}

export function CopyLink() {
  const [done, set] = useState(false);
  if (copy || !navigator.clipboard) return null;
  return <button class="plain small" title="Copy a link to this view" onClick={() => navigator.clipboard.writeText(location.href).then(() => { set(true); setTimeout(() => set(false), 1500); })}>{done ? "copied" : "link"}</button>;
}

export type Line = { name: string; tone: string; points: [number, number][]; dots?: boolean };

export function Chart(props: { title: string; lines: Line[] }) {
  const width = 360, height = 170, left = 46, right = 8, top = 8, bottom = 22;
  const xs = props.lines.flatMap((line) => line.points.map((point) => point[0]));
  const ys = props.lines.flatMap((line) => line.points.map((point) => point[1]));
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (low === high) { low -= 0.5; high += 0.5; }
  const [from, to] = [Math.min(...xs), Math.max(...xs)];
  const x = (value: number) => left + ((value - from) / (to - from || 1)) * (width - left - right);
  const y = (value: number) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  const ticks = [low, (low + high) / 2, high];
  return <figure class="card figure"><figcaption class="row spread"><h3>{props.title}</h3>
    {props.lines.length > 1 && <span class="row small">{props.lines.map((line) => <span class={"key " + line.tone}>{line.name}</span>)}</span>}</figcaption>
    <svg class="chart" viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`${props.title} over the steps`}>
      {ticks.map((tick) => <><line class="axis" x1={left} x2={width - right} y1={y(tick)} y2={y(tick)} /><text x={left - 6} y={y(tick) + 3.5} text-anchor="end">{number(tick, 2)}</text></>)}
      <text x={left} y={height - 6}>{number(from, 0)}</text><text x={width - right} y={height - 6} text-anchor="end">step {number(to, 0)}</text>
      {props.lines.map((line) => line.dots || line.points.length === 1
        ? <g class={line.tone}>{line.points.map((point) => <circle class="fill" cx={x(point[0])} cy={y(point[1])} r={2.6} />)}</g>
        : <path class={"line " + line.tone} d={"M" + line.points.map((point) => `${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join("L")} />)}
    </svg></figure>;
}

// Buttons to the neighbours of an opened row, with its position in the list; j and k do the same.
export function Stepper(props: { position: number | null; matches: number; step: (by: number) => void }) {
  const { position, matches, step } = props;
  return <span class="row"><button disabled={!position} onClick={() => step(-1)} title="Previous (k)">← <kbd>k</kbd></button>
    <button disabled={position === null || position + 1 >= matches} onClick={() => step(1)} title="Next (j)"><kbd>j</kbd> →</button>
    <span class="quiet small num">{position === null ? "not in this list" : `${(position + 1).toLocaleString("en")} of ${matches.toLocaleString("en")}`}</span></span>;
}

// The row at a position of a list, and where its page begins; rows of another page are asked for.
export async function rowAt<T>(question: string, query: object, page: { rows: T[]; offset: number; matches: number }, position: number, size: number) {
  if (position < 0 || position >= page.matches) return null;
  const offset = Math.floor(position / size) * size;
  const rows = offset === page.offset ? page.rows : (await ask<{ rows: T[] }>(question, { ...query, offset, limit: size })).rows;
  const row = rows[position - offset];
  return row ? { row, offset } : null;
}

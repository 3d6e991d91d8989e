// Pairs: chosen and rejected side by side from their divergence, with a word diff; j and k step through the list.
import { useEffect, useMemo, useState } from "preact/hooks";
import { ask, copy, useAnswer } from "./api";
import { wordDiff } from "./diff";
import { Answer, beginnings, Column, CopyLink, Facet, Facets, Filters, heading, number, Pager, Sources, Stepper, Table, TaskName, useSnippets } from "./parts";
import { Empty } from "./experiences";
import { change, link, Route, useKeys } from "./route";
import { Facts, Message, Tools, Transcript, Turn, turnText } from "./transcript";

const PAGE = 100;
type Row = {
  row: number; id: string; task: string; step: number; strategy: string; gap: number; weight: number; split: string; chosen_reward: number;
  rejected_reward: number; num_chosen_characters: number; num_rejected_characters: number; length_ratio: number | null; across_groups: boolean; prompt_start: string; answer_start: string;
};
type Rows = { total: number; matches: number; offset: number; rows: Row[]; columns: string[] };
export type Pair = {
  row: number; id: string; task: string; gap: number; weight: number; strategy: string; split: string; prompt: Message[]; tools: unknown[];
  chosen: Message[]; rejected: Message[]; chosen_reward: number; rejected_reward: number; chosen_uid: string; rejected_uid: string;
  same: number; info: Record<string, unknown>; lint: string[];
};
export type PairAnswer = { matches: number; position: number | null; pair: Pair | null; tables: string[] };

const COLUMNS: Column<Row>[] = [
  { name: "task", keep: true, label: "task", sort: true, wide: true, cell: (row) => <TaskName task={row.task} /> },
  { name: "gap", keep: true, label: "gap", num: true, sort: true, cell: (row) => number(row.gap) },
  { name: "chosen_reward", keep: true, label: "chosen", num: true, sort: true, cell: (row) => <span class="chosen-text">{number(row.chosen_reward)}</span> },
  { name: "rejected_reward", keep: true, label: "rejected", num: true, sort: true, cell: (row) => <span class="rejected-text">{number(row.rejected_reward)}</span> },
  { name: "num_chosen_characters", label: "characters", num: true, sort: true, cell: (row) => <>{number(row.num_chosen_characters)} <span class="quiet">/ {number(row.num_rejected_characters)}</span></> },
  { name: "length_ratio", label: "ratio", num: true, sort: true, cell: (row) => number(row.length_ratio, 2) },
  { name: "strategy", label: "strategy", sort: true, cell: (row) => row.strategy },
  { name: "split", label: "split", sort: true, cell: (row) => <span class="quiet">{row.split}</span> },
];

export function Pairs(props: { route: Route; keys: string[] }) {
  const { route } = props;
  const source = route.source || props.keys[0];
  const { params } = route;
  const offset = Number(params.get("offset") || 0);
  const query = { source, q: params.get("q"), w: params.getAll("w"), sort: params.get("sort") };
  const id = params.get("id");
  const at = params.get("at");
  const rows = useAnswer<Rows>("pairs.rows", { ...query, offset, limit: PAGE });
  const facets = useAnswer<Facet[]>("pairs.facets", copy ? null : { source, q: query.q, w: query.w });
  const snippets = useSnippets("pairs", source, rows.busy ? null : query.q, rows.value?.rows || []);
  const notes = query.q ? snippets : beginnings(rows.value?.rows || []);
  const isOpen = id !== null || at !== null;
  const opened = useAnswer<PairAnswer>("pairs.pair", !isOpen ? null : at !== null ? { ...query, position: at } : { ...query, id });
  const position = opened.value?.position ?? null;
  const matches = opened.value?.matches ?? rows.value?.matches ?? 0;
  const step = (by: number) => {
    const next = isOpen && position !== null ? position + by : 0;
    if (next >= 0 && next < matches) {
      change({ at: next, id: null, offset: Math.floor(next / PAGE) * PAGE || null }, isOpen);
    }
  };
  // The neighbours are asked for ahead, so that the next pair is there when its key is pressed.
  useEffect(() => {
    if (position === null || !isOpen) return;
    for (const next of [position + 1, position - 1]) if (next >= 0 && next < matches) ask("pairs.pair", { ...query, position: next }).catch(() => {});
  }, [position, matches]);
  useKeys({ j: () => step(1), k: () => step(-1), Escape: () => change({ at: null, id: null }), "/": () => document.getElementById("search")?.focus() }, [route, opened.value, rows.value]);
  const shownId = opened.value?.pair?.id;
  return <div class={"view listing wide-detail" + (isOpen ? " opened" : "")}>
    <Filters route={route} columns={rows.value?.columns} example="Condition, such as gap > 0.5"><Sources view="pairs" keys={props.keys} here={source} /></Filters>
    <div class="columns">
      <Facets asked={facets} route={route} />
      <section class="list" aria-label="List">
        <p class="quiet small summary" role="status">{rows.value ? <><b>{rows.value.matches.toLocaleString("en")}</b> pair{rows.value.matches === 1 ? "" : "s"}{rows.value.matches !== rows.value.total ? ` of ${rows.value.total.toLocaleString("en")}` : ""}</> : "counting…"}</p>
        <div class={"scroll" + (rows.busy ? " stale" : "")}><Answer asked={rows} what={query.q ? "searching all texts" : ""}>{(value) => value.rows.length
          ? <Table label="pairs" columns={COLUMNS} rows={value.rows} notes={notes} sort={query.sort || ""} here={(row) => row.id === shownId}
            open={(row) => change({ at: offset + value.rows.indexOf(row), id: null }, isOpen)} />
          : <Empty route={route} />}</Answer></div>
        {rows.value && <Pager offset={offset} limit={PAGE} matches={rows.value.matches} />}
      </section>
      {isOpen && <section class="detail" aria-label="Pair">
        <div class="stepper row spread">
          <Stepper position={position} matches={matches} step={step} />
          <span class="row"><CopyLink /><button class="plain" aria-label="Close" title="Close (Esc)" onClick={() => change({ at: null, id: null })}>✕</button></span>
        </div>
        <Answer asked={opened}>{(value) => value.pair ? <PairView pair={value.pair} tables={value.tables} source={source} /> : <p class="quiet">No pair at this position.</p>}</Answer>
      </section>}
    </div>
  </div>;
}

export function PairView(props: { pair: Pair; tables: string[]; source: string }) {
  const { pair } = props;
  const [raw, setRaw] = useState<string | null>(null);
  useEffect(() => setRaw(null), [pair.id]);
  const lengths = [pair.chosen, pair.rejected].map((side) => side.reduce((sum, message) => sum + turnText(message).length, 0));
  return <>
    <header class="detail-head"><h2 class="cut" title={pair.task}>{heading(pair.task, pair.prompt)}</h2>
      <div class="row small">
        <span class="chip">gap <b>{number(pair.gap)}</b></span><span class="chip">{pair.strategy}</span><span class="chip">{pair.split}</span>
        {pair.weight !== 1 && <span class="chip">weight {number(pair.weight)}</span>}
        {pair.lint.map((name) => <span class="chip bad">{name}</span>)}
        <span class="quiet">{number(lengths[0])} and {number(lengths[1])} characters</span>
        {props.tables.length > 0 && <span class="quiet">from {props.tables.slice(0, 1).map((table) => <>
          <a href={link("experiences", table, { uid: pair.chosen_uid })}>chosen</a>, <a href={link("experiences", table, { uid: pair.rejected_uid })}>rejected</a></>)}</span>}
      </div></header>
    <Tools tools={pair.tools} />
    <Transcript messages={pair.prompt} fold label="the prompt" />
    <Sides sides={[pair.chosen, pair.rejected]} same={pair.same} titles={[<>chosen <b>{number(pair.chosen_reward)}</b></>, <>rejected <b>{number(pair.rejected_reward)}</b></>]} names={["chosen", "rejected"]} />
    <Facts title="Info" facts={pair.info} />
    {!copy && <div class="row end"><button onClick={() => raw === null ? ask<{ text: string }>("pairs.raw", { source: props.source, id: pair.id }).then((value) => setRaw(value.text), (error: Error) => setRaw(error.message)) : setRaw(null)}>{raw === null ? "Raw pair" : "Hide raw pair"}</button>
      <span class="quiet mono small cut">{pair.id}</span></div>}
    {raw !== null && <pre class="raw">{raw}</pre>}
  </>;
}

// Two sides of anything from the turn in which they part; the first turns that differ are compared word by word.
export function Sides(props: { sides: [Message[], Message[]]; same: number; titles: [preact.ComponentChildren, preact.ComponentChildren]; names: [string, string] }) {
  const { sides, same } = props;
  const rest = [sides[0].slice(same), sides[1].slice(same)];
  const diffs = useMemo(() => {
    const [left, right] = [rest[0][0], rest[1][0]];
    return left && right ? wordDiff(turnText(left), turnText(right)) : null;
  }, [sides[0], sides[1], same]);
  return <>
    {same > 0 && <details class="earlier"><summary>{same} turn{same > 1 ? "s" : ""} the same on both sides</summary><Transcript messages={sides[0].slice(0, same)} /></details>}
    <div class="sides">{[0, 1].map((side) => <div class={`side ${props.names[side]}`}>
      <h3>{props.titles[side]}</h3>
      {rest[side].map((message, at) => <Turn message={message} pieces={at === 0 && diffs ? diffs[side] : undefined} />)}
      {!rest[side].length && <p class="quiet small">ends here</p>}
    </div>)}</div>
  </>;
}

// Experiences: a table of any size, its facets, tasks, and one record with its transcript.
import { useState } from "preact/hooks";
import { ask, copy, useAnswer } from "./api";
import { Answer, beginnings, Column, count, CopyLink, Facet, Facets, Filters, heading, number, Pager, rowAt, Sources, State, Stepper, Table, TaskName, useSnippets } from "./parts";
import { change, link, Route, useKeys } from "./route";
import { ErrorSite, Facts, Message, Text, Tools, Transcript } from "./transcript";
import { Credit, ExcludeRecord, TurnVerdict } from "./decide";

const PAGE = 100;

export type Row = {
  row: number; uid: string; batch: string; task: string; run: number; step: number; kind: string; reward: number | null;
  reward_unscored: string | null; num_completion_messages: number; num_completion_characters: number; num_tool_calls: number;
  num_errors: number; prompt_start: string; answer_start: string; truncate_status: string | null; model_version: string | null; source_format: string | null; source: string | null;
};
type Rows = { total: number; matches: number; offset: number; rows: Row[]; columns: string[] };
type Task = { tid: string; task: string; runs: number; experiences: number; mean: number | null; min: number | null; max: number | null; spread: number | null; errors: number };
type Tasks = { total: number; matches: number; offset: number; rows: Task[] };
export type Side = { messages: Message[]; text: string | null; reward: number | null };
export type Record_ = {
  row: number; uid: string; tid: string; batch: string; task: string; run: number; step: number; kind: string; reward: number | string | null;
  components: Record<string, unknown>; metrics: Record<string, unknown>; info: Record<string, unknown>; model: string | null;
  truncated: string | null; source: { file: string; line: number | null; format: string | null } | null; prompt: Message[]; completion: Message[];
  tools: unknown[]; prompt_text: string | null; response_text: string | null; chosen: Side | null; rejected: Side | null; errors: ErrorSite[]; credit?: Credit[];
  num_tokens: number | null; siblings: { row: number; uid: string; run: number; step: number; reward: number | null; num_errors: number }[]; num_siblings: number;
};
type Lineage = { source: string; reason: string | null; num_pairs: number; pairs: { id: string; gap: number; strategy: string; split: string; side: string }[] }[];

const COLUMNS: Column<Row>[] = [
  { name: "task", keep: true, label: "task", sort: true, wide: true, cell: (row) => <TaskName task={row.task} /> },
  { name: "run", keep: true, label: "run", num: true, sort: true, cell: (row) => row.run },
  { name: "step", label: "step", num: true, sort: true, cell: (row) => row.step },
  { name: "reward", keep: true, label: "reward", num: true, sort: true, cell: (row) => <Reward value={row.reward ?? row.reward_unscored} /> },
  { name: "num_errors", keep: true, label: "errors", num: true, sort: true, cell: (row) => row.num_errors ? <span class="bad-text">{row.num_errors}</span> : <span class="quiet">0</span> },
  { name: "num_tool_calls", label: "calls", num: true, sort: true, cell: (row) => row.num_tool_calls },
  { name: "num_completion_messages", label: "turns", num: true, sort: true, cell: (row) => row.num_completion_messages },
  { name: "num_completion_characters", label: "characters", num: true, sort: true, cell: (row) => number(row.num_completion_characters) },
  { name: "source_format", label: "format", sort: true, cell: (row) => <span class="quiet">{row.source_format}</span> },
  { name: "batch", label: "batch", cell: (row) => <span class="quiet">{row.batch}</span> },
];
const TASK_COLUMNS: Column<Task>[] = [
  { name: "task", keep: true, label: "task", wide: true, cell: (row) => <TaskName task={row.task} /> },
  { name: "runs", label: "runs", num: true, sort: true, cell: (row) => number(row.runs) },
  { name: "experiences", label: "experiences", num: true, sort: true, cell: (row) => number(row.experiences) },
  { name: "mean", keep: true, label: "mean", num: true, sort: true, cell: (row) => number(row.mean) },
  { name: "min", label: "least", num: true, sort: true, cell: (row) => number(row.min) },
  { name: "max", label: "most", num: true, sort: true, cell: (row) => number(row.max) },
  { name: "spread", keep: true, label: "spread", num: true, sort: true, cell: (row) => number(row.spread) },
  { name: "errors", keep: true, label: "errors", num: true, sort: true, cell: (row) => number(row.errors) },
];

export function Reward(props: { value: unknown }) {
  return props.value === null || props.value === undefined ? <span class="quiet">–</span> : <>{number(props.value)}</>;
}

const quote = (text: string) => `'${text.replaceAll("'", "''")}'`;

export function Experiences(props: { route: Route; keys: string[] }) {
  const { route } = props;
  const source = route.source || props.keys[0];
  const { params } = route;
  const isTasks = params.get("by") === "task";
  const uid = params.get("uid");
  const offset = Number(params.get("offset") || 0);
  const query = { source, q: params.get("q"), w: params.getAll("w"), sort: params.get("sort") };
  const rows = useAnswer<Rows>("experiences.rows", isTasks ? null : { ...query, offset, limit: PAGE });
  const tasks = useAnswer<Tasks>("experiences.tasks", isTasks ? { ...query, offset, limit: PAGE } : null);
  const facets = useAnswer<Facet[]>("experiences.facets", copy ? null : { source, q: query.q, w: query.w });
  const list = rows.value?.rows || [];
  const snippets = useSnippets("experiences", source, rows.busy ? null : query.q, list);
  const notes = query.q ? snippets : beginnings(list);
  const at = list.findIndex((row) => row.uid === uid);
  const step = async (by: number) => {
    const next = rows.value && await rowAt<Row>("experiences.rows", query, rows.value, at < 0 ? offset : offset + at + by, PAGE);
    if (next) change({ uid: next.row.uid, row: next.row.row, offset: next.offset || null }, at >= 0);
  };
  useKeys({ j: () => step(1), k: () => step(-1), Escape: () => change({ uid: null, row: null }), "/": () => document.getElementById("search")?.focus() }, [route, rows.value]);
  const shown = isTasks ? tasks : rows;
  return <div class={"view listing" + (uid ? " opened" : "")}>
    <Filters route={route} columns={rows.value?.columns}>
      <Sources view="experiences" keys={props.keys} here={source} />
      {!copy && <span class="row tabs" role="group" aria-label="List">
        <button class={isTasks ? "" : "on"} onClick={() => change({ by: null, sort: null, offset: null })}>Records</button>
        <button class={isTasks ? "on" : ""} onClick={() => change({ by: "task", sort: null, offset: null, uid: null, row: null })}>Tasks</button>
      </span>}
    </Filters>
    <div class="columns">
      <Facets asked={facets} route={route} />
      <section class="list" aria-label="List">
        <p class="quiet small summary" role="status">{shown.value ? <>
          <b>{shown.value.matches.toLocaleString("en")}</b> {(isTasks ? "task" : "experience") + (shown.value.matches === 1 ? "" : "s")}{!isTasks && shown.value.matches !== shown.value.total ? ` of ${shown.value.total.toLocaleString("en")}` : ""}
        </> : shown.busy ? "counting…" : ""}</p>
        <div class={"scroll" + (shown.busy ? " stale" : "")}>
          {isTasks
            ? <Answer asked={tasks} what="grouping by task">{(value) => value.rows.length
              ? <Table label="tasks" columns={TASK_COLUMNS} rows={value.rows} sort={query.sort || ""} open={(row) => change({ by: null, sort: null, offset: null, w: [...query.w, `tid = ${quote(row.tid)}`] })} />
              : <Empty route={route} />}</Answer>
            : <Answer asked={rows} what={query.q ? "searching all texts" : ""}>{(value) => value.rows.length
              ? <Table label="experiences" columns={COLUMNS} rows={value.rows} notes={notes} sort={query.sort || ""} here={(row) => row.uid === uid} open={(row) => change({ uid: row.uid, row: row.row }, !!uid)} />
              : <Empty route={route} />}</Answer>}
        </div>
        {shown.value && <Pager offset={offset} limit={PAGE} matches={shown.value.matches} />}
      </section>
      {uid && <Detail source={source} uid={uid} row={params.get("row")} position={at < 0 ? null : offset + at} matches={shown.value?.matches || 0} step={step} />}
    </div>
  </div>;
}

export function Empty(props: { route: Route }) {
  const filtered = props.route.params.getAll("w").length + (props.route.params.get("q") ? 1 : 0);
  return filtered
    ? <State title="Nothing matches">Remove a condition above, or search for less.</State>
    : <State title="This table is empty">Add records with: pairwright import TRACES -o DIR</State>;
}

function Detail(props: { source: string; uid: string; row: string | null; position: number | null; matches: number; step: (by: number) => void }) {
  const record = useAnswer<Record_>("experiences.record", { source: props.source, uid: props.uid, row: props.row });
  return <section class={"detail" + (record.busy ? " stale" : "")} aria-label="Record">
    <div class="stepper row"><Stepper position={props.position} matches={props.matches} step={props.step} /></div>
    <Answer asked={record}>{(value) => <RecordView source={props.source} record={value} close={() => change({ uid: null, row: null })} />}</Answer>
  </section>;
}

export function RecordView(props: { source: string; record: Record_; close?: () => void; plain?: boolean }) {
  const { record, source } = props;
  const [raw, setRaw] = useState<string | null>(null);
  const runs = [...new Set(record.siblings.map((other) => other.run))];
  return <>
    <header class="detail-head">
      <div class="row spread"><h2 class="cut grow" title={record.task}>{heading(record.task, record.prompt, record.prompt_text)}</h2>
        <CopyLink />{props.close && <button class="plain" aria-label="Close" title="Close (Esc)" onClick={props.close}>✕</button>}</div>
      <div class="row small">
        {!props.plain && <span class="chip">reward <b><Reward value={record.reward} /></b></span>}
        {record.errors.length > 0 && <span class="chip bad">{count(record.errors.length, "error")}</span>}
        {record.truncated && <span class="chip bad">{record.truncated.replace("_", " ")}</span>}
        <span class="chip">{record.kind.replace("_", " ")}</span>
        {record.model && <span class="chip"><span class="cut">{record.model}</span></span>}
        {record.num_tokens !== null && <span class="chip">{count(record.num_tokens, "token")}</span>}
        {record.source && <span class="quiet cut" title={record.source.file}>{record.source.file.split("/").pop()}{record.source.line !== null ? `:${record.source.line}` : ""}</span>}
      </div>
      {record.num_siblings > 1 && <nav class="row siblings" aria-label="Runs of this task">
        {runs.map((run) => {
          const steps = record.siblings.filter((other) => other.run === run);
          return <span class="row run"><span class="quiet small">run {run}</span>{steps.slice(0, 24).map((other) => <button
            class={"step" + (other.uid === record.uid ? " on" : "")} title={`step ${other.step}, reward ${number(other.reward)}`}
            onClick={() => change({ uid: other.uid, row: other.row }, true)}
          >{steps.length > 1 || runs.length === 1 ? `${other.step}: ` : ""}{number(other.reward, 2)}{other.num_errors ? " !" : ""}</button>)}
            {steps.length > 24 && <span class="small quiet">+{steps.length - 24}</span>}</span>;
        })}
        {record.num_siblings > record.siblings.length && <span class="small quiet">{record.num_siblings - record.siblings.length} more</span>}
      </nav>}
    </header>
    {record.errors.length > 0 && <div class="row errors">{record.errors.slice(0, 12).map((site) => <a class="chip bad" href="#" onClick={(event) => {
      event.preventDefault(); document.getElementById(`turn-${site.index}`)?.scrollIntoView({ block: "center" });
    }}>turn {site.index}: {site.kind}{site.tool ? ` (${site.tool})` : ""}</a>)}{record.errors.length > 12 && <span class="small quiet">and {record.errors.length - 12} more</span>}</div>}
    {!props.plain && <Lineage source={source} uid={record.uid} />}
    <Facts title="Reward components" facts={record.components} open />
    <Facts title="Metrics" facts={record.metrics} />
    <Facts title="Info" facts={record.info} />
    <Tools tools={record.tools} />
    <h3 class="part">Prompt</h3>
    {record.prompt.length ? <Transcript messages={record.prompt} errors={record.errors} fold label="the prompt" /> : record.prompt_text !== null ? <Text text={record.prompt_text} /> : <p class="quiet small">none</p>}
    {record.chosen && record.rejected ? <div class="sides">{(["chosen", "rejected"] as const).map((name) => <div class={`side ${name}`}><h3>{name} <span class="quiet"><Reward value={record[name]!.reward} /></span></h3>
      {record[name]!.messages.length ? <Transcript messages={record[name]!.messages} /> : <Text text={record[name]!.text || ""} />}</div>)}</div>
      : <><h3 class="part">Completion</h3>
        {record.completion.length ? <Transcript messages={record.completion} start={record.prompt.length} errors={record.errors}
          mark={props.plain ? undefined : (index, message) => (message.generated ?? message.role === "assistant") && <TurnVerdict source={source} uid={record.uid} turn={index} credit={record.credit?.find((entry) => entry.turn === index)} />} /> : record.response_text !== null ? <Text text={record.response_text} /> : <p class="quiet small">empty</p>}</>}
    {!props.plain && <div class="row end">
      {!copy && <button onClick={() => raw === null ? ask<{ text: string }>("experiences.raw", { source, uid: record.uid, row: record.row }).then((value) => setRaw(value.text), (error: Error) => setRaw(error.message)) : setRaw(null)}>{raw === null ? "Raw record" : "Hide raw record"}</button>}
      {!copy && <ExcludeRecord source={source} uid={record.uid} />}
      <span class="quiet mono small cut" title={record.uid}>{record.uid}</span>
    </div>}
    {raw !== null && <pre class="raw">{raw}</pre>}
  </>;
}

function Lineage(props: { source: string; uid: string }) {
  const lineage = useAnswer<Lineage>("experiences.lineage", { source: props.source, uid: props.uid });
  if (!lineage.value?.length) return null;
  return <div class="row small lineage">{lineage.value.map((entry) => <>
    <span class="quiet">{entry.source}:</span>
    {entry.pairs.slice(0, 6).map((pair) => <a class={`chip ${pair.side}`} href={link("pairs", entry.source, { id: pair.id })}>{pair.side}, gap {number(pair.gap)}</a>)}
    {entry.num_pairs > 6 && <span class="quiet">+{entry.num_pairs - 6}</span>}
    {!entry.num_pairs && <span class="chip">{entry.reason ? `in no pair: ${entry.reason}` : "not in this build"}</span>}
  </>)}</div>;
}

// Tokens: a sequence painted by what each token is; trained ones are underlined; ids and log-probabilities on hover.
import { useEffect, useMemo, useState } from "preact/hooks";
import { copy, useAnswer } from "./api";
import { Answer, Column, CopyLink, count, Facet, Facets, Filters, heading, number, Pager, rowAt, Sources, Stepper, Table, TaskName } from "./parts";
import { Empty } from "./experiences";
import { change, Route, useKeys } from "./route";
import { Facts } from "./transcript";

const PAGE = 100;
const FOLDED = 300; // characters of template text without a break that are folded: tool schemas, long instructions
type Row = { row: number; id: string; task: string; side: string; number: number; prompt_length: number | null; num_tokens: number | null; num_trained: number | null; refusal: string | null };
type Rows = { total: number; matches: number; offset: number; rows: Row[]; columns: string[]; losses: string[]; counts: Record<string, number> };
type Sequence = {
  row: number; id: string; task: string; refusal?: string; detail?: string; side: string; number: number; num_tokens: number; num_trained: number; ids: number[];
  texts: string[] | null; paint: number[]; mask: number[]; messages: number[]; logprobs: (number | null)[] | null; report: Record<string, unknown>;
  palette: Record<string, string>; note: string | null;
};

const COLUMNS: Column<Row>[] = [
  { name: "id", keep: true, label: "task", wide: true, cell: (row) => <TaskName task={row.task || row.id} /> },
  { name: "side", keep: true, label: "side", sort: true, cell: (row) => row.side ? <span class={`${row.side}-text`}>{row.side}</span> : "" },
  { name: "num_tokens", keep: true, label: "tokens", num: true, sort: true, cell: (row) => row.refusal ? <span class="bad-text">refused</span> : number(row.num_tokens) },
  { name: "num_trained", keep: true, label: "trained", num: true, sort: true, cell: (row) => row.refusal ? "" : number(row.num_trained) },
];

export function Tokens(props: { route: Route; keys: string[] }) {
  const { route } = props;
  const source = route.source || props.keys[0];
  const { params } = route;
  const offset = Number(params.get("offset") || 0);
  const query = { source, w: params.getAll("w"), sort: params.get("sort") };
  const row = params.get("row");
  const rows = useAnswer<Rows>("tokens.rows", { ...query, offset, limit: PAGE });
  const facets = useAnswer<Facet[]>("tokens.facets", copy ? null : { source, w: query.w });
  const opened = useAnswer<Sequence>("tokens.sequence", row === null ? null : { source, row });
  const list = rows.value?.rows || [];
  const at = list.findIndex((item) => String(item.row) === row);
  const step = async (by: number) => {
    const next = rows.value && await rowAt<Row>("tokens.rows", query, rows.value, at < 0 ? offset : offset + at + by, PAGE);
    if (next) change({ row: next.row.row, offset: next.offset || null }, at >= 0);
  };
  useKeys({ j: () => step(1), k: () => step(-1), Escape: () => change({ row: null }) }, [route, rows.value]);
  return <div class={"view listing" + (row !== null ? " opened" : "")}>
    <Filters route={route} columns={rows.value?.columns} search={false} example="Condition, such as num_tokens > 4000"><Sources view="tokens" keys={props.keys} here={source} /></Filters>
    <div class="columns">
      <Facets asked={facets} route={route} />
      <section class="list" aria-label="List">
        <p class="quiet small summary" role="status">{rows.value && <><b>{rows.value.matches.toLocaleString("en")}</b> sequences{rows.value.counts.tokens ? `, ${number(rows.value.counts.trained_tokens)} of ${number(rows.value.counts.tokens)} tokens trained.` : ""}{rows.value.losses.map((line) => <span class="bad-text"> {line}.</span>)}</>}</p>
        <div class={"scroll" + (rows.busy ? " stale" : "")}><Answer asked={rows}>{(value) => value.rows.length
          ? <Table label="sequences" columns={COLUMNS} rows={value.rows} sort={query.sort || ""} here={(item) => String(item.row) === row} open={(item) => change({ row: item.row }, row !== null)} />
          : <Empty route={route} />}</Answer></div>
        {rows.value && <Pager offset={offset} limit={PAGE} matches={rows.value.matches} />}
      </section>
      {row !== null && <section class="detail" aria-label="Sequence">
        <div class="stepper row"><Stepper position={at < 0 ? null : offset + at} matches={rows.value?.matches || 0} step={step} /></div>
        <Answer asked={opened}>{(value) => <SequenceView sequence={value} key={value.row} />}</Answer></section>}
    </div>
  </div>;
}

type Run = { start: number; stop: number; trained: boolean; message: number; template: boolean };

// The last text of a user in a sequence, which names it where its task is a hash.
function lastQuestion(sequence: Sequence): string {
  const asked = sequence.paint?.lastIndexOf(Number(Object.keys(sequence.palette).find((paint) => sequence.palette[paint] === "user"))) ?? -1;
  return sequence.texts && asked >= 0 ? sequence.texts.filter((_, at) => sequence.messages[at] === sequence.messages[asked]).join("") : sequence.id;
}

function SequenceView(props: { sequence: Sequence }) {
  const { sequence } = props;
  const [hover, setHover] = useState<number | null>(null);
  const [jump, setJump] = useState(-1);
  const runs = useMemo(() => sequence.refusal ? [] : splitRuns(sequence), [sequence]);
  const trained = runs.filter((run) => run.trained);
  const go = (by: number) => {
    if (!trained.length) return;
    const next = (jump + by + trained.length) % trained.length;
    setJump(next);
    document.getElementById(`run-${trained[next].start}`)?.scrollIntoView({ block: "center" });
  };
  useKeys({ n: () => go(1), p: () => go(jump < 0 ? 0 : -1) }, [jump, trained]);
  useEffect(() => setJump(-1), [sequence]);
  const head = <header class="detail-head"><div class="row spread"><h2 class="cut grow" title={sequence.id}>{heading(sequence.task, [], lastQuestion(sequence))}</h2><CopyLink />
    <button class="plain" aria-label="Close" onClick={() => change({ row: null })}>✕</button></div>
    <div class="row small">{sequence.side && <span class={`chip ${sequence.side}`}>{sequence.side}</span>}
      {!sequence.refusal && <><span class="chip">{count(sequence.num_tokens, "token")}</span><span class="chip">{number(sequence.num_trained)} trained</span>
        {trained.length > 0 && <span class="row"><button onClick={() => go(jump < 0 ? 0 : -1)} title="Previous trained part (p)"><kbd>p</kbd></button><button onClick={() => go(1)} title="Next trained part (n)"><kbd>n</kbd></button>
          <span class="quiet">{jump < 0 ? count(trained.length, "trained part") : `part ${jump + 1} of ${trained.length}`}</span></span>}</>}
    </div></header>;
  if (sequence.refusal) return <>{head}<div class="card"><h3 class="bad-text">Refused: {sequence.refusal}</h3><p>{sequence.detail}</p></div></>;
  return <>{head}
    <p class="row small legend">{Object.entries(sequence.palette).map(([paint, name]) => <span class={`t p${paint}`}>{name}</span>)}<span class="quiet">Trained tokens are underlined.</span></p>
    {sequence.note && <p class="small quiet">{sequence.note}</p>}
    {sequence.ids.length < sequence.num_tokens && <p class="small bad-text">The first {number(sequence.ids.length)} of {number(sequence.num_tokens)} tokens.</p>}
    <Facts title="Report" facts={sequence.report} />
    <div class="hover mono small" aria-live="off">{hover === null ? <span class="quiet">hover over a token</span> : <TokenFacts sequence={sequence} at={hover} />}</div>
    <pre class="tokens" onMouseOver={(event) => { const at = (event.target as HTMLElement).dataset.at; if (at) setHover(Number(at)); }}>
      {runs.map((run) => <RunView key={run.start} run={run} sequence={sequence} here={jump >= 0 && trained[jump] === run} />)}
    </pre></>;
}

function TokenFacts(props: { sequence: Sequence; at: number }) {
  const { sequence, at } = props;
  const logprob = sequence.logprobs?.[at];
  return <>id {sequence.ids[at]} · position {at} · {sequence.messages[at] >= 0 ? `message ${sequence.messages[at]}` : "template"} · {sequence.mask[at] ? "trained" : "not trained"}
    {typeof logprob === "number" && ` · log-probability ${logprob.toFixed(4)} (${(100 * Math.exp(logprob)).toFixed(1)}%)`}</>;
}

function RunView(props: { run: Run; sequence: Sequence; here: boolean }) {
  const { run, sequence } = props;
  const tokens = [];
  let size = 0;
  for (let at = run.start; at < run.stop; at++) {
    const text = sequence.texts ? sequence.texts[at] : ` ${sequence.ids[at]}`;
    size += text.length;
    tokens.push(<span class={`t p${sequence.paint[at]}`} data-at={at}>{text.replaceAll("\n", "⏎\n")}</span>);
  }
  if (run.trained) return <mark id={`run-${run.start}`} class={props.here ? "here" : ""}>{tokens}</mark>;
  if (run.template && size > FOLDED) {
    const text = sequence.texts ? sequence.texts.slice(run.start, run.stop).join("") : "";
    const isSchema = text.includes('"parameters"') || text.includes('"function"') || text.includes("namespace functions");
    return <details><summary>{isSchema ? "text with tool schemas" : "template text"}, {tokens.length} tokens</summary>{tokens}</details>;
  }
  return <>{tokens}</>;
}

// Neighbouring tokens that are trained in one message, are template text, or neither.
function splitRuns(sequence: Sequence): Run[] {
  const runs: Run[] = [];
  sequence.ids.forEach((_, at) => {
    const trained = !!sequence.mask[at], template = !trained && sequence.paint[at] === 0, message = trained ? sequence.messages[at] : -1;
    const last = runs[runs.length - 1];
    if (last && last.trained === trained && last.template === template && last.message === message) last.stop = at + 1;
    else runs.push({ start: at, stop: at + 1, trained, template, message });
  });
  return runs;
}

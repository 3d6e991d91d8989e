// Evaluation: every task before and after, regressions first, with what both models did side by side.
import { copy, useAnswer } from "./api";
import { Answer, Column, CopyLink, heading, number, Pager, Sources, State, Table, TaskName } from "./parts";
import { change, Route, useKeys } from "./route";
import { Gate, Metric, Metrics, Outcome } from "./runs";
import { Record_, Reward } from "./experiences";
import { Facts, Transcript } from "./transcript";
import { Sides } from "./pairs";

const PAGE = 100;
type Row = { task: string; runs: number; before: number; after: number; difference: number; outcome: string };
type Rows = { matches: number; offset: number; rows: Row[]; metric: string; metrics: Metric[]; gate: { passed: boolean; reason: string } | null; before: string; after: string; transcripts: boolean };
type Task = { task: string; before: Record_[] | null; after: Record_[] | null };

const OUTCOMES: Record<string, string> = { win: "won", draw: "drawn", loss: "lost" };
const COLUMNS: Column<Row>[] = [
  { name: "task", keep: true, label: "task", wide: true, cell: (row) => <TaskName task={row.task} /> },
  { name: "outcome", keep: true, label: "outcome", cell: (row) => <span class={"chip " + (row.outcome === "loss" ? "bad" : row.outcome === "win" ? "good" : "")}>{OUTCOMES[row.outcome] || row.outcome}</span> },
  { name: "before", keep: true, label: "before", num: true, cell: (row) => number(row.before) },
  { name: "after", keep: true, label: "after", num: true, cell: (row) => number(row.after) },
  { name: "difference", label: "difference", num: true, cell: (row) => number(row.difference) },
];

export function Evaluation(props: { route: Route; keys: string[] }) {
  const { route } = props;
  const source = route.source || props.keys[props.keys.length - 1];
  const { params } = route;
  const offset = Number(params.get("offset") || 0);
  const task = params.get("task");
  const rows = useAnswer<Rows>("evaluation.tasks", { source, metric: params.get("metric"), q: params.get("q"), offset, limit: PAGE });
  const opened = useAnswer<Task>("evaluation.task", task === null ? null : { source, task });
  const list = rows.value?.rows || [];
  const at = list.findIndex((row) => row.task === task);
  const step = (by: number) => { const next = list[at < 0 ? 0 : at + by]; if (next) change({ task: next.task }, at >= 0); };
  useKeys({ j: () => step(1), k: () => step(-1), Escape: () => change({ task: null }), "/": () => document.getElementById("search")?.focus() }, [route, rows.value]);
  return <div class={"view listing no-facets" + (task !== null ? " opened wide-detail" : "")}>
    <div class="filters"><div class="row">
      <Sources view="evaluation" keys={props.keys} here={source} />
      {rows.value && !copy && <select aria-label="Metric" value={rows.value.metric} onChange={(event) => change({ metric: event.currentTarget.value, offset: null })}>{rows.value.metrics.map((metric) => <option value={metric.name}>{metric.name}</option>)}</select>}
      {!copy && <form class="grow search" onSubmit={(event) => { event.preventDefault(); change({ q: String(new FormData(event.currentTarget).get("q") || ""), offset: null }); }}>
        <input id="search" name="q" type="search" key={params.get("q")} defaultValue={params.get("q") || ""} placeholder="Search tasks by name, then Enter" aria-label="Search" /></form>}
      {rows.value?.gate && <span class="row small" title={rows.value.gate.reason}>gate <Gate passed={rows.value.gate.passed} /></span>}
    </div></div>
    <div class="columns">
      <section class="list" aria-label="Tasks">
        {task === null && rows.value && <Metrics metrics={rows.value.metrics} fixed />}
        <p class="quiet small summary" role="status">{rows.value && <><b>{rows.value.matches.toLocaleString("en")}</b> tasks, regressions first. {task !== null && rows.value.metrics.filter((metric) => metric.name === rows.value!.metric).map((metric) => <Outcome metric={metric} />)}</>}</p>
        <div class={"scroll" + (rows.busy ? " stale" : "")}><Answer asked={rows}>{(value) => value.rows.length
          ? <Table label="tasks" columns={COLUMNS} rows={value.rows} here={(row) => row.task === task} open={(row) => change({ task: row.task }, task !== null)} />
          : <State title="No task matches" />}</Answer></div>
        {rows.value && <Pager offset={offset} limit={PAGE} matches={rows.value.matches} />}
      </section>
      {task !== null && <section class="detail" aria-label="Task">
        <header class="detail-head"><div class="row spread"><h2 class="cut grow" title={task}>{heading(task, (opened.value?.before || opened.value?.after || [])[0]?.prompt || [])}</h2><CopyLink /><button class="plain" aria-label="Close" onClick={() => change({ task: null })}>✕</button></div></header>
        <Answer asked={opened}>{(value) => value.before && value.after ? <Both task={value} /> : <State title="The transcripts are not here">
          Scores were compared without their experience tables. They are kept with: pairwright evaluate --config CONFIG.yaml BEFORE AFTER -o DIR</State>}</Answer>
      </section>}
    </div>
  </div>;
}

function Both(props: { task: Task }) {
  const before = props.task.before!, after = props.task.after!;
  if (!before.length && !after.length) return <State title="No run of this task was recorded" />;
  const runs = Math.max(before.length, after.length);
  return <>{Array.from({ length: runs }, (_, at) => {
    const [left, right] = [before[at], after[at]];
    const same = left && right && JSON.stringify(left.prompt) === JSON.stringify(right.prompt);
    const title = (name: string, record?: Record_) => <>{name} <b><Reward value={record?.reward} /></b></>;
    return <section class="stack">{runs > 1 && <h3 class="part">run {(left || right).run}{(left || right).step ? `, step ${(left || right).step}` : ""}</h3>}
      {same && <Transcript messages={left.prompt} fold label="the prompt" />}
      <Sides sides={[same ? left.completion : left ? [...left.prompt, ...left.completion] : [], same ? right.completion : right ? [...right.prompt, ...right.completion] : []]}
        same={0} names={["before", "after"]} titles={[title("before", left), title("after", right)]} />
      <div class="sides">{[left, right].map((record) => <div>{record && <><Facts title="Reward components" facts={record.components} open /><Facts title="Metrics" facts={record.metrics} open />
        {record.errors.map((site) => <span class="chip bad">turn {site.index}: {site.kind}</span>)}</>}</div>)}</div>
    </section>;
  })}</>;
}

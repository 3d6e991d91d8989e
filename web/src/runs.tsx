// Runs: the list with outcome and gate; one run with its funnel, curves and stages.
import { copy, useAnswer } from "./api";
import { Answer, Chart, Column, CopyLink, count, Line, number, State, Table } from "./parts";
import { link, Route } from "./route";

type Interval = { mean: number; low: number | null; high: number | null };
export type Metric = { name: string; better: string; tasks: number; before: Interval; after: Interval; difference: Interval; wins: number; draws: number; losses: number; num_regressions?: number };
type Summary = { key: string; rounds: number; experiences: number; pairs: number; state: string | null; passed: boolean | null; metric: Metric | null; modified: number; evaluation: string | null };
type Stage = { unit: string; in: number; out: number; drops: { reason: string; count: number; examples: string[] }[] };
type Run = Summary & {
  metrics: Metric[]; gate: { passed: boolean; reason: string; metric: string } | null;
  funnels: { name: string; stages: Stage[]; pairs: string | null; table: string | null; where: Record<string, string>; hint: string | null }[];
  curves: { name: string; points: [number, number][] }[];
  stages: { name: string; state: string; seconds: number | null; result: Record<string, unknown> | null }[];
  items: { key: string; kind: string }[];
};

const COLUMNS: Column<Summary>[] = [
  { name: "key", keep: true, label: "run", wide: true, cell: (row) => <b>{row.key}</b> },
  { name: "gate", keep: true, label: "gate", cell: (row) => <Gate passed={row.passed} /> },
  { name: "metric", keep: true, label: "outcome", cell: (row) => row.metric ? <Outcome metric={row.metric} /> : <span class="quiet">not evaluated</span> },
  { name: "tasks", label: "tasks", num: true, cell: (row) => row.metric ? number(row.metric.tasks) : "" },
  { name: "experiences", label: "experiences", num: true, cell: (row) => number(row.experiences) },
  { name: "pairs", label: "pairs", num: true, cell: (row) => number(row.pairs) },
  { name: "rounds", label: "rounds", num: true, cell: (row) => row.rounds || "" },
  { name: "state", label: "training", cell: (row) => <span class="quiet">{row.state}</span> },
  { name: "modified", label: "changed", num: true, cell: (row) => <span class="quiet">{new Date(row.modified * 1000).toISOString().slice(0, 16).replace("T", " ")}</span> },
];

export function Gate(props: { passed: boolean | null }) {
  if (props.passed === null) return <span class="quiet">–</span>;
  return <span class={"chip " + (props.passed ? "good" : "bad")}>{props.passed ? "open" : "closed"}</span>;
}

export function Outcome(props: { metric: Metric }) {
  const { metric } = props;
  const better = metric.better === "higher" ? metric.difference.mean : -metric.difference.mean;
  return <span>{metric.name} <span class="quiet">{number(metric.before.mean)} →</span> <b class={better > 0 ? "good-text" : better < 0 ? "bad-text" : ""}>{number(metric.after.mean)}</b></span>;
}

export function Runs(props: { route: Route }) {
  const runs = useAnswer<Summary[]>("runs.list", props.route.source ? null : {});
  if (props.route.source) return <RunView source={props.route.source} />;
  return <div class="view page"><Answer asked={runs}>{(value) => value.length
    ? <div class="card scroll flush"><Table label="runs" columns={COLUMNS} rows={value} open={(row) => { location.hash = link("runs", row.key); }} /></div>
    : <State title="No runs here">Tables alone have no outcome. A run is made with: pairwright run CONFIG.yaml</State>}</Answer></div>;
}

function RunView(props: { source: string }) {
  const run = useAnswer<Run>("runs.run", { source: props.source });
  return <div class="view page"><Answer asked={run}>{(value) => <div class="stack">
    <div class="row spread"><h1 class="cut">{value.key}</h1><span class="row"><CopyLink /><a href={link("runs")}>All runs</a></span></div>
    <nav class="row" aria-label="Tables of the run">{value.items.map((item) => <a class="button small" href={link(item.kind, item.key)}>{item.key.slice(value.key.length + 1)}</a>)}</nav>
    {value.metrics.length > 0 && <div class="card stack"><div class="row spread"><h2>Outcome</h2>{value.gate && <span class="row small"><Gate passed={value.gate.passed} /><span class="quiet">{value.gate.reason}</span></span>}</div>
      <Metrics metrics={value.metrics} />
      {value.evaluation && <a href={link("evaluation", value.evaluation)}>All tasks, regressions first</a>}</div>}
    {value.funnels.map((funnel, at) => <details class="card" open={at === 0}><summary><h2>From experiences to pairs{funnel.name ? `, ${funnel.name}` : ""}</h2></summary>
      {funnel.hint && <p class="small">{funnel.hint}</p>}
      <div class="cards">{funnel.stages.map((stage) => <Funnel stage={stage} funnel={funnel} />)}</div></details>)}
    {value.curves.length > 0 && <Curves curves={value.curves} />}
    {value.stages.length > 0 && <details class="card"><summary><h2>Stages</h2></summary><div class="scroll"><Table label="stages" columns={[
      { name: "name", label: "stage", cell: (row) => row.name }, { name: "state", label: "state", cell: (row) => row.state },
      { name: "seconds", label: "seconds", num: true, cell: (row) => number(row.seconds, 0) },
      { name: "result", label: "counts", wide: true, cell: (row) => <span class="quiet small">{Object.entries(row.result || {}).filter(([, item]) => typeof item === "number").map(([name, item]) => `${name} ${number(item)}`).join(", ")}</span> },
    ]} rows={value.stages} /></div></details>}
  </div>}</Answer></div>;
}

export function Metrics(props: { metrics: Metric[]; fixed?: boolean }) {
  return <div class={"scroll" + (props.fixed ? " fixed" : "")}><Table label="metrics" rows={props.metrics} columns={[
    { name: "name", label: "metric", cell: (row) => <>{row.name} <span class="quiet">{row.better === "lower" ? "lower is better" : ""}</span></> },
    { name: "before", label: "before", num: true, cell: (row) => number(row.before.mean) },
    { name: "after", label: "after", num: true, cell: (row) => <b>{number(row.after.mean)}</b> },
    { name: "difference", label: "difference", num: true, cell: (row) => <>{number(row.difference.mean)}{row.difference.low !== null && <span class="quiet"> ({number(row.difference.low)} to {number(row.difference.high)})</span>}</> },
    { name: "wins", label: "won, drawn, lost", num: true, cell: (row) => <><span class="good-text">{number(row.wins)}</span> · {number(row.draws)} · <span class="bad-text">{number(row.losses)}</span></> },
    { name: "tasks", label: "tasks", num: true, cell: (row) => number(row.tasks) },
  ]} /></div>;
}

function Funnel(props: { stage: Stage; funnel: Run["funnels"][number] }) {
  const { stage, funnel } = props;
  const of_experiences = stage.unit === "experiences";
  const bars = [
    { name: "in", amount: stage.in, tone: "before", href: of_experiences && funnel.table ? link("experiences", funnel.table) : null },
    ...[...stage.drops].sort((a, b) => b.count - a.count).map((drop) => ({
      name: drop.reason, amount: drop.count, tone: "rejected", href: funnel.table ? link("experiences", funnel.table, { w: [funnel.where[drop.reason]] }) : null,
    })),
    { name: "out", amount: stage.out, tone: "accent", href: stage.unit === "pairs" && funnel.pairs ? link("pairs", funnel.pairs) : of_experiences && funnel.table ? link("experiences", funnel.table, { w: ["outcome IN ('chosen', 'rejected', 'chosen and rejected')"] }) : null },
  ];
  return <section class="funnel"><h3>{stage.unit}</h3>{bars.map((bar) => {
    const body = <><span class="cut">{bar.name}</span><span class="num">{number(bar.amount)}</span><i class={bar.tone} style={{ width: `${Math.max(0.5, (100 * bar.amount) / (stage.in || 1))}%` }} /></>;
    // A copy holds a selection, which is not what is behind a bar.
    return bar.href && !copy ? <a class="bar" href={bar.href} title="Open the records behind this bar">{body}</a> : <div class="bar">{body}</div>;
  })}</section>;
}

export const MAIN: [string, [string, string][]][] = [
  ["Loss", [["loss", "accent"]]], ["Reward margin", [["rewards/margins", "accent"]]], ["Accuracy", [["rewards/accuracies", "accent"]]],
  ["Log-probability", [["logps/chosen", "chosen"], ["logps/rejected", "rejected"]]], ["Implicit reward", [["rewards/chosen", "chosen"], ["rewards/rejected", "rejected"]]],
];

export function Curves(props: { curves: { name: string; points: [number, number][] }[] }) {
  const known = new Map(props.curves.map((curve) => [curve.name, curve.points]));
  const used = new Set(MAIN.flatMap(([, lines]) => lines.map(([name]) => name)));
  const lines = (names: [string, string][]): Line[] => names.flatMap(([name, tone]) => {
    const own: Line[] = known.has(name) ? [{ name: name.split("/").pop()!, tone, points: known.get(name)! }] : [];
    if (known.has("eval_" + name)) own.push({ name: `${name.split("/").pop()}, validation`, tone: names.length > 1 ? tone : "before", points: known.get("eval_" + name)!, dots: true });
    return own;
  });
  const main = MAIN.map(([title, names]) => [title, lines(names)] as const).filter(([, own]) => own.length);
  const others = [...known.keys()].filter((name) => !used.has(name) && !name.startsWith("eval_"));
  return <details class="card" open><summary><h2>Training</h2></summary>
    <div class="cards">{main.map(([title, own]) => <Chart title={title} lines={own} />)}</div>
    {others.length > 0 && <details class="fold"><summary>{count(others.length, "more curve")}</summary><div class="cards">{others.slice(0, 30).map((name) => <Chart title={name} lines={lines([[name, "accent"]])} />)}</div></details>}
  </details>;
}

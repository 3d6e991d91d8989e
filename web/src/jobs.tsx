// The page of the fine-tuning service: jobs with their curves, two jobs side by side, datasets, deployments, models.
import { render } from "preact";
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Chart, count, Line, number, State } from "./parts";
import { change, link, Route, useRoute } from "./route";
import { Curves, MAIN } from "./runs";
import "./look.css";
import "./jobs.css";

const POLL = 2000;
const PAGE = 50;
const ENDS = ["completed", "failed", "cancelled"];
const STATES = ["created", "pending", "running", "cancelling", ...ENDS];
const VIEWS: [string, string][] = [["jobs", "Jobs"], ["datasets", "Datasets"], ["deployments", "Deployments"], ["models", "Models"]];

type Json = Record<string, unknown>;
type Status = {
  status: string; percentage_done: number; steps_completed: number; train_loss: number | null; val_loss: number | null; elapsed_time: number;
  truncated_sequences: number | null; refused_rows: number | null; status_logs: { updated_at: string; message: string }[];
  metrics?: { metrics: Record<string, { step: number; value: number }[]> };
};
type Job = {
  id: string; name: string; namespace: string; status: string; status_details: Status; config: string; output_model: string; created_at: string;
  dataset: { namespace: string; name: string }; hyperparameters: Json & { training_type: string; finetuning_type: string };
  config_snapshot: { base_model: string; max_seq_length: number };
};
type List<T> = { data: T[]; pagination: { total_results: number; total_pages: number } };
type Deployment = { name: string; namespace: string; url: string; models: string[]; created_at: string; status_details: { status: string; description: string } };
type Config = { name: string; namespace: string; max_seq_length: number; target: { num_parameters: number; precision: string; base_model: string } };

// Questions to the service. What was asked last stays until the next answer, so that nothing flickers.

let onUnauthorized: (asked: boolean) => void = () => {};

async function ask<T>(path: string, method = "GET", body?: unknown): Promise<T> {
  const token = sessionStorage.getItem("token");
  const headers: Record<string, string> = token ? { authorization: "Bearer " + token } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  if (answer.status === 401) onUnauthorized(true);
  if (!answer.ok) {
    const value = await answer.json().catch(() => ({}));
    throw new Error(value.error || answer.statusText);
  }
  onUnauthorized(false);
  return answer.json();
}

type Live<T> = { value?: T; error?: string; again: () => void };

function usePoll<T>(key: string, load: () => Promise<T>): Live<T> {
  const [state, set] = useState<{ key: string; value?: T; error?: string }>({ key });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let live = true, timer = 0;
    const go = async () => {
      if (!document.hidden) {
        try {
          const value = await load();
          if (live) set({ key, value });
        } catch (problem) {
          const error = problem instanceof TypeError ? "the service does not answer" : (problem as Error).message;
          if (live) set((before) => ({ key, value: before.key === key ? before.value : undefined, error }));
        }
      }
      if (live) timer = window.setTimeout(go, POLL);
    };
    go();
    return () => { live = false; clearTimeout(timer); };
  }, [key, turn]);
  const mine = state.key === key ? state : { key };
  useEffect(() => {
    const live = document.getElementById("live")!;
    live.textContent = mine.error || (mine.value ? "live" : "connecting");
    live.className = mine.error ? "away" : "";
    live.title = mine.error || "";
  }, [mine.error, mine.value === undefined]);
  return { ...mine, again: () => setTurn(turn + 1) };
}

function Answer<T>(props: { live: Live<T>; children: (value: T) => ComponentChildren }) {
  if (props.live.value !== undefined) return <>{props.children(props.live.value)}</>;
  return props.live.error ? <State title="This could not be shown" bad>{props.live.error}</State> : <State title="Loading…" />;
}

// Parts

function ago(moment: string): string {
  const seconds = Math.max(0, (Date.now() - Date.parse(moment)) / 1000);
  return seconds < 172800 ? span(seconds) + " ago" : new Date(moment).toLocaleDateString();
}

function span(seconds: number): string {
  if (seconds < 90) return Math.round(seconds) + " s";
  return seconds < 5400 ? Math.round(seconds / 60) + " min" : (seconds / 3600).toFixed(1) + " h";
}

const StateOf = (props: { name: string }) => <span class={"status " + props.name}>{props.name}</span>;

function Progress(props: { of: Status }) {
  const share = Math.round(props.of.percentage_done);
  return <span class={"progress small " + props.of.status}><b><i style={{ width: share + "%" }} /></b>{share}%</span>;
}

type Cell = ComponentChildren;
function Rows(props: { label: string; columns: [string, string?][]; rows: Cell[][]; empty: ComponentChildren; marked?: boolean[] }) {
  if (!props.rows.length) return <State title={"No " + props.label}>{props.empty}</State>;
  return <div class="card scroll flush"><table aria-label={props.label}>
    <thead><tr>{props.columns.map(([name, look]) => <th class={look || ""}>{name}</th>)}</tr></thead>
    <tbody>{props.rows.map((row, at) => <tr class={props.marked?.[at] ? "differs" : ""}>{row.map((cell, place) => <td class={props.columns[place][1] || ""}>{cell}</td>)}</tr>)}</tbody>
  </table></div>;
}

// Nested values by their path: {"lora": {"alpha": 32}} has the row "lora.alpha".
function flatten(value: Json, prefix = ""): [string, string][] {
  return Object.entries(value).flatMap(([name, item]): [string, string][] => {
    if (item === null || item === undefined) return [];
    if (typeof item === "object" && !Array.isArray(item)) return flatten(item as Json, prefix + name + ".");
    return [[prefix + name, Array.isArray(item) ? JSON.stringify(item) : typeof item === "number" ? number(item, 6) : String(item)]];
  });
}

function Facts(props: { of: [string, Cell][] }) {
  return <dl class="wide-facts">{props.of.map(([name, value]) => <div><dt>{name}</dt><dd>{value ?? "–"}</dd></div>)}</dl>;
}

// The names of the trainer's metrics, as the view and the report have them.
const NAMES: Record<string, string> = { train_loss: "loss", val_loss: "eval_loss", train_accuracy: "rewards/accuracies", val_accuracy: "eval_rewards/accuracies" };
function curvesOf(status: Status): { name: string; points: [number, number][] }[] {
  return Object.entries(status.metrics?.metrics || {}).filter(([, points]) => points.length)
    .map(([name, points]) => ({ name: NAMES[name] || name, points: points.map((point): [number, number] => [point.step, point.value]) }));
}

function Action(props: { label: string; main?: boolean; run: () => Promise<unknown>; then: () => void; question?: string }) {
  const [state, set] = useState<{ busy: boolean; error?: string }>({ busy: false });
  const go = () => {
    if (props.question && !window.confirm(props.question)) return;
    set({ busy: true });
    props.run().then(() => { set({ busy: false }); props.then(); }, (problem: Error) => set({ busy: false, error: problem.message }));
  };
  return <><button class={props.main ? "main" : ""} disabled={state.busy} onClick={go}>{props.label}</button>
    {state.error && <span class="small bad-text" role="alert">{state.error}</span>}</>;
}

// Jobs

const jobPath = (identity: string) => "v1/customization/jobs/" + encodeURIComponent(identity);
const FILTERS: [string, string][] = [["name", "name"], ["base_model", "base model"], ["dataset", "dataset"]];

function Jobs(props: { route: Route }) {
  const { params } = props.route;
  const page = Math.max(1, Number(params.get("page")) || 1);
  const query = new URLSearchParams({ page_size: String(PAGE), page: String(page) });
  for (const name of ["status", "training_type", ...FILTERS.map(([own]) => own)]) if (params.get(name)) query.set(`filter[${name}]`, params.get(name)!);
  const path = "v1/customization/jobs?" + query;
  const jobs = usePoll(path, () => ask<List<Job>>(path));
  const picked = params.getAll("c");
  const pick = (identity: string) => change({ c: picked.includes(identity) ? picked.filter((own) => own !== identity) : [...picked, identity].slice(-2) });
  const chooser = (name: string, label: string, options: string[]) => <select aria-label={label} value={params.get(name) || ""} onChange={(event) => change({ [name]: event.currentTarget.value || null, page: null })}>
    <option value="">{label}: all</option>{options.map((option) => <option value={option}>{option}</option>)}</select>;
  return <>
    <div class="row">
      {chooser("status", "state", STATES)}{chooser("training_type", "training", ["sft", "dpo"])}
      {FILTERS.map(([name, label]) => <form class="grow" onSubmit={(event) => { event.preventDefault(); change({ [name]: String(new FormData(event.currentTarget).get(name) || "") || null, page: null }); }}>
        <input class="filter" key={params.get(name) || ""} name={name} type="search" defaultValue={params.get(name) || ""} placeholder={label + ", then Enter"} aria-label={"Filter by " + label} maxLength={200} /></form>)}
      <a class="button" aria-disabled={picked.length !== 2} href={picked.length === 2 ? link("compare", "", { a: picked[0], b: picked[1] }) : undefined}>{picked.length === 2 ? "Compare both" : `Compare: choose ${2 - picked.length} more`}</a>
    </div>
    <Answer live={jobs}>{(value) => <>
      <div class="row spread"><h2>{count(value.pagination.total_results, "job")}</h2>
        {value.pagination.total_pages > 1 && <span class="row"><button disabled={page <= 1} onClick={() => change({ page: page - 1 })}>Previous</button><span class="small quiet">page {page} of {value.pagination.total_pages}</span><button disabled={page >= value.pagination.total_pages} onClick={() => change({ page: page + 1 })}>Next</button></span>}</div>
      <Rows label="jobs" columns={[["", "check"], ["Job", "name"], ["State"], ["Done", "rest"], ["Loss", "num rest"], ["Base model", "name rest"], ["Dataset", "name rest"], ["Training", "rest"], ["Created"]]}
        empty={[...params.keys()].length ? "None fits these filters." : "Submit one with POST /v1/customization/jobs; the API page shows the fields."}
        rows={value.data.map((job) => [
          <input type="checkbox" aria-label={"Compare " + job.name} checked={picked.includes(job.id)} onChange={() => pick(job.id)} />,
          <a href={link("jobs", job.id)}>{job.name}</a>, <StateOf name={job.status} />, <Progress of={job.status_details} />, number(job.status_details.train_loss, 4),
          job.config_snapshot.base_model, job.dataset.namespace + "/" + job.dataset.name, job.hyperparameters.training_type + ", " + job.hyperparameters.finetuning_type, ago(job.created_at),
        ])} />
    </>}</Answer>
  </>;
}

function JobView(props: { identity: string }) {
  const base = jobPath(props.identity);
  const live = usePoll(base, async () => {
    const [job, status, logs, deployments] = await Promise.all([
      ask<Job>(base), ask<Status>(base + "/status"), ask<{ entries: { worker: { logs: { lines: string[] } } } }>(base + "/container-logs"),
      ask<List<Deployment>>("v1/deployment/model-deployments?page_size=100"),
    ]);
    return { job, status, lines: logs.entries.worker.logs.lines, deployed: deployments.data.filter((item) => item.models.includes(job.output_model)) };
  });
  return <Answer live={live}>{({ job, status, lines, deployed }) => {
    const ended = ENDS.includes(status.status);
    const action = (label: string, word: string) => <Action label={label} run={() => ask(`${base}/${word}`, "POST")} then={live.again} />;
    return <>
      <div class="row spread"><div class="row"><h1>{job.name}</h1><StateOf name={status.status} /><Progress of={status} /></div>
        <div class="row">
          {status.status === "completed" && (deployed.length
            ? <a class="button" href={link("deployments")}>Deployed: <StateOf name={deployed[0].status_details.status} /></a>
            : <Action main label="Deploy" run={() => ask("v1/deployment/model-deployments", "POST", { namespace: job.namespace, config: { model: job.output_model } })} then={() => { location.hash = link("deployments"); }} />)}
          {!ended && action("Cancel job", "cancel")}{!ended && action("Pause job", "pause")}
          {["failed", "cancelled"].includes(status.status) && action("Resume job", "resume")}
          {ended && <Action label="Delete job" question="Delete this job with its files and its model?" run={() => ask(base, "DELETE")} then={() => { location.hash = link("jobs"); }} />}
        </div></div>
      {status.status === "failed" && <p class="problem">{status.status_logs[status.status_logs.length - 1].message}</p>}
      <section class="card"><Facts of={[
        ["Base model", job.config], ["Dataset", job.dataset.namespace + "/" + job.dataset.name], ["Output model", job.output_model],
        ["Steps", number(status.steps_completed)], ["Training loss", number(status.train_loss, 4)], ["Validation loss", number(status.val_loss, 4)], ["Time", span(status.elapsed_time)],
        ["Longest sequence", number(job.config_snapshot.max_seq_length)], ["Sequences cut", number(status.truncated_sequences)], ["Rows refused", number(status.refused_rows)],
      ]} /></section>
      {curvesOf(status).length ? <Curves curves={curvesOf(status)} /> : <p class="quiet">The curves begin with the first logged step.</p>}
      <details class="card" open><summary><h2>Hyperparameters</h2></summary><div style={{ height: "10px" }} /><Facts of={flatten(job.hyperparameters)} /></details>
      <section class="stack"><h2>What happened</h2><Rows label="events" empty="" columns={[["When", "when"], ["What", "name"]]} rows={status.status_logs.map((entry) => [new Date(entry.updated_at).toLocaleTimeString(), entry.message])} /></section>
      <section class="stack"><h2>Log of the worker</h2><Log text={lines.join("\n")} /></section>
    </>;
  }}</Answer>;
}

// Follows the end of the log, unless somebody has scrolled up.
function Log(props: { text: string }) {
  useEffect(() => {
    const log = document.getElementById("log")!;
    if (log.dataset.held !== "1") log.scrollTop = log.scrollHeight;
  }, [props.text]);
  const hold = (event: Event) => { const log = event.currentTarget as HTMLElement; log.dataset.held = log.scrollTop + log.clientHeight < log.scrollHeight - 8 ? "1" : ""; };
  return <pre id="log" onScroll={hold}>{props.text || "Nothing written yet."}</pre>;
}

// Two jobs: what differs in their settings, and their curves in one plot.

function Compare(props: { identities: string[] }) {
  const key = props.identities.join(" ");
  const live = usePoll(key, () => Promise.all(props.identities.map(async (identity) => ({
    job: await ask<Job>(jobPath(identity)), status: await ask<Status>(jobPath(identity) + "/status"),
  }))));
  return <Answer live={live}>{(both) => {
    const names = both.map(({ job }, at) => both.some((other, place) => place !== at && other.job.name === job.name) ? `${job.name} (${job.id.slice(-6)})` : job.name);
    const tones = ["accent", "rejected"];
    const settings = both.map(({ job, status }) => new Map<string, string>([
      ["state", status.status], ["base model", job.config], ["dataset", job.dataset.namespace + "/" + job.dataset.name], ["steps", number(status.steps_completed)],
      ["training loss", number(status.train_loss, 4)], ["validation loss", number(status.val_loss, 4)], ["time", span(status.elapsed_time)], ...flatten(job.hyperparameters),
    ]));
    const keys = [...new Set(settings.flatMap((own) => [...own.keys()]))];
    const curves = both.map(({ status }) => new Map(curvesOf(status).map((curve) => [curve.name, curve.points])));
    const plots = MAIN.flatMap(([title, lines]) => lines.map(([name]): [string, Line[]] => [
      lines.length > 1 ? `${title}, ${name.split("/").pop()}` : title,
      curves.flatMap((own, at): Line[] => [
        ...(own.has(name) ? [{ name: names[at], tone: tones[at], points: own.get(name)! }] : []),
        ...(own.has("eval_" + name) ? [{ name: names[at] + ", validation", tone: tones[at], points: own.get("eval_" + name)!, dots: true }] : []),
      ]),
    ])).filter(([, lines]) => lines.length);
    return <>
      <div class="row"><h1>Two jobs</h1>{both.map(({ job, status }, at) => <span class="row"><a class={"key " + tones[at]} href={link("jobs", job.id)}>{names[at]}</a><StateOf name={status.status} /></span>)}</div>
      {plots.length > 0 && <div class="cards">{plots.map(([title, lines]) => <Chart title={title} lines={lines} />)}</div>}
      <section class="stack"><h2>Settings</h2><Rows label="settings" empty="" columns={[["What"], [names[0], "name"], [names[1], "name"]]}
        marked={keys.map((name) => settings[0].get(name) !== settings[1].get(name))} rows={keys.map((name) => [name, ...settings.map((own) => own.get(name) ?? "–")])} /></section>
    </>;
  }}</Answer>;
}

// Datasets, deployments, models

function Datasets() {
  const live = usePoll("datasets", () => ask<List<{ namespace: string; name: string; files_url: string; description: string | null; created_at: string }>>("v1/datasets?page_size=100"));
  return <><h1>Datasets</h1><Answer live={live}>{(value) => <Rows label="datasets" columns={[["Name", "name"], ["Files", "name"], ["Description", "rest"], ["Created"]]}
    empty="Upload files with huggingface_hub to /v1/hf, then POST /v1/datasets."
    rows={value.data.map((own) => [own.namespace + "/" + own.name, own.files_url, own.description || "–", ago(own.created_at)])} />}</Answer></>;
}

function Deployments() {
  const live = usePoll("deployments", () => ask<List<Deployment>>("v1/deployment/model-deployments?page_size=100"));
  return <><h1>Deployments</h1><Answer live={live}>{(value) => <Rows label="deployments" columns={[["Name", "name"], ["State"], ["Model", "name"], ["URL", "name rest"], ["Says", "name rest"], ["Created", "rest"]]}
    empty="A job that is completed has a button that deploys its model."
    rows={value.data.map((own) => [own.namespace + "/" + own.name, <StateOf name={own.status_details.status} />, own.models.join(", "), own.url, own.status_details.description, ago(own.created_at)])} />}</Answer></>;
}

function Models() {
  const live = usePoll("models", async () => ({
    configs: (await ask<List<Config>>("v1/customization/configs?page_size=100&sort=name")).data, models: (await ask<List<{ id: string; created_at: string }>>("v1/models?page_size=100")).data,
  }));
  return <Answer live={live}>{({ configs, models }) => {
    const bases = new Set(configs.map((config) => config.target.base_model));
    return <>
      <h1>Base models</h1><Rows label="base models" columns={[["Config name", "name"], ["Parameters", "num"], ["Precision", "rest"], ["Context", "num rest"]]}
        empty="Add one with: pairwright serve targets add NAME DIR --data DATA"
        rows={configs.map((config) => [config.namespace + "/" + config.name, number(config.target.num_parameters), config.target.precision, number(config.max_seq_length)])} />
      <h1>Trained models</h1><Rows label="trained models" columns={[["Name", "name"], ["Created"], [""]]} empty="A job makes one."
        rows={models.filter((model) => !bases.has(model.id)).map((model) => [model.id, ago(model.created_at),
          <Action label="Delete" question={`Delete the files of ${model.id}?`} run={() => ask("v1/models/" + model.id.split("/").map(encodeURIComponent).join("/"), "DELETE")} then={live.again} />])} />
    </>;
  }}</Answer>;
}

function Main() {
  const route = useRoute();
  useEffect(() => {
    for (const own of document.querySelectorAll("nav a")) own.classList.toggle("here", own.getAttribute("href") === "#/" + (VIEWS.some(([name]) => name === route.view) ? route.view : "jobs"));
    document.title = (VIEWS.find(([name]) => name === route.view)?.[1] || "Jobs") + " · pairwright";
  }, [route.view]);
  if (route.view === "datasets") return <Datasets />;
  if (route.view === "deployments") return <Deployments />;
  if (route.view === "models") return <Models />;
  if (route.view === "compare") return <Compare identities={[route.params.get("a") || "", route.params.get("b") || ""]} />;
  return route.source ? <JobView key={route.source} identity={route.source} /> : <Jobs route={route} />;
}

function App() {
  const [isAsked, setAsked] = useState(false);
  const [turn, setTurn] = useState(0);
  onUnauthorized = setAsked;
  return <>
    <header class="top"><a class="brand" href="#/jobs">pairwright</a>
      <nav>{VIEWS.map(([name, label]) => <a href={"#/" + name}>{label}</a>)}<a href="docs">API</a></nav>
      <span id="live" role="status">connecting</span></header>
    <form id="sign-in" hidden={!isAsked} onSubmit={(event) => { event.preventDefault(); sessionStorage.setItem("token", String(new FormData(event.currentTarget).get("token") || "").trim()); setTurn(turn + 1); }}>
      <label for="token">This service needs a token</label><input id="token" name="token" type="password" autocomplete="off" spellcheck={false} /><button>Use it</button></form>
    <main id="main" class="stack" key={turn}><Main /></main>
  </>;
}

render(<App />, document.getElementById("app")!);

// The job page: asks the service's own API every two seconds and draws what it says. No network but this service.
"use strict";

const POLL = 2000;
const main = document.getElementById("main");
const live = document.getElementById("live");
const signIn = document.getElementById("sign-in");
let shown = "";

async function ask(path, method = "GET") {
  const token = sessionStorage.getItem("token");
  const headers = token ? { authorization: "Bearer " + token } : {};
  const answer = await fetch(path, { method, headers });
  if (answer.status === 401) signIn.hidden = false;
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new Error(body.error || answer.statusText);
  }
  signIn.hidden = true;
  return answer.json();
}

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "circle", "title", "g"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (name === "share") element.style.width = value + "%";
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const number = (value, digits = 4) =>
  typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: digits }) : "–";

function ago(moment) {
  const seconds = Math.max(0, (Date.now() - Date.parse(moment)) / 1000);
  if (seconds < 90) return Math.round(seconds) + " s ago";
  if (seconds < 5400) return Math.round(seconds / 60) + " min ago";
  if (seconds < 172800) return Math.round(seconds / 3600) + " h ago";
  return new Date(moment).toLocaleDateString();
}

function span(seconds) {
  if (seconds < 90) return Math.round(seconds) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}

const state = (name) => make("span", { class: "state " + name }, name);

function progress(details) {
  const bar = make("span", { class: "bar " + details.status }, make("i", { share: details.percentage_done }));
  return make("span", { class: "small" }, bar, Math.round(details.percentage_done) + "%");
}

function table(columns, rows, empty) {
  if (!rows.length) return make("p", { class: "empty" }, empty);
  const head = columns.map(([name, kind]) => make("th", { class: kind || "" }, name));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, at) => make("td", { class: columns[at][1] || "" }, cell))));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}

function facts(pairs) {
  const items = pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  return make("dl", { class: "facts" }, ...items);
}

async function jobsView() {
  const found = await ask("v1/customization/jobs?page_size=100");
  const rows = found.data.map((job) => [
    make("a", { href: "#/jobs/" + job.id }, job.name),
    state(job.status),
    progress(job.status_details),
    number(job.status_details.train_loss),
    job.config_snapshot.base_model,
    job.dataset.namespace + "/" + job.dataset.name,
    job.hyperparameters.training_type + ", " + job.hyperparameters.finetuning_type,
    ago(job.created_at),
  ]);
  const columns = [["Job", "name"], ["State"], ["Done"], ["Loss", "number"], ["Base model", "name"], ["Dataset", "name"], ["Training"], ["Created"]];
  const total = found.pagination.total_results;
  return [
    make("h2", {}, total === 1 ? "1 job" : total + " jobs"),
    total > found.data.length ? make("p", { class: "soft small" }, "The newest " + found.data.length + " are shown.") : null,
    table(columns, rows, "No jobs yet. Submit one with POST /v1/customization/jobs; the API page shows the fields."),
  ];
}

async function jobView(identity) {
  const base = "v1/customization/jobs/" + encodeURIComponent(identity);
  const [job, status, logs] = await Promise.all([ask(base), ask(base + "/status"), ask(base + "/container-logs")]);
  const lines = logs.entries.worker.logs.lines;
  const ends = ["completed", "failed", "cancelled"].includes(status.status);
  const button = (text, path, method, then) => make("button", { onclick: () => ask(path, method).then(then, fail) }, text);
  const actions = make("div", {},
    ends ? null : button("Cancel job", base + "/cancel", "POST", draw),
    ends ? null : button("Pause job", base + "/pause", "POST", draw),
    ["failed", "cancelled"].includes(status.status) ? button("Resume job", base + "/resume", "POST", draw) : null,
    ends ? make("button", { onclick: () => remove(base, "Delete this job with its files and its model?", "#/jobs") }, "Delete job") : null);
  const last = status.status_logs[status.status_logs.length - 1];
  return [
    make("div", { class: "top" }, make("div", {}, make("h2", {}, job.name), state(status.status), " ", progress(status)), actions),
    status.status === "failed" ? make("p", { class: "problem" }, last.message) : null,
    facts([
      ["Base model", job.config], ["Dataset", job.dataset.namespace + "/" + job.dataset.name], ["Output model", job.output_model],
      ["Training", job.hyperparameters.training_type + ", " + job.hyperparameters.finetuning_type],
      ["Steps", number(status.steps_completed, 9)], ["Training loss", number(status.train_loss)],
      ["Validation loss", number(status.val_loss)], ["Time", span(status.elapsed_time)],
      ["Longest sequence", number(job.config_snapshot.max_seq_length, 9)], ["Sequences cut", number(status.truncated_sequences, 9)],
      ["Rows refused", number(status.refused_rows, 9)],
    ]),
    make("section", {}, make("h3", {}, "Loss by step"), curve(status.metrics.metrics)),
    make("section", {}, make("h3", {}, "What happened"), table([["When", "when"], ["What", "name"]],
      status.status_logs.map((entry) => [new Date(entry.updated_at).toLocaleTimeString(), entry.message]), "")),
    make("section", {}, make("h3", {}, "Log of the worker"), make("pre", { id: "log" }, lines.join("\n") || "Nothing written yet.")),
  ];
}

function fail(problem) {
  live.textContent = problem.message;
  live.className = "away";
}

async function remove(path, question, next) {
  if (!window.confirm(question)) return;
  try {
    await ask(path, "DELETE");
    if (location.hash === next) draw(); else location.hash = next;
  } catch (problem) { fail(problem); }
}

// A line chart as SVG: training and validation loss over steps.
function curve(metrics) {
  const series = [["train", metrics.train_loss || []], ["val", metrics.val_loss || []]].filter(([, points]) => points.length);
  if (!series.length) return make("p", { class: "soft" }, "The curve begins with the first logged step.");
  const width = 1100, height = 280, left = 60, right = 20, top = 12, bottom = 34;
  const all = series.flatMap(([, points]) => points);
  const steps = all.map((point) => point.step), values = all.map((point) => point.value);
  const [first, lastStep] = [Math.min(...steps), Math.max(...steps)];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (high - low < 1e-12) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const x = (step) => left + ((width - left - right) * (step - first)) / Math.max(1, lastStep - first);
  const y = (value) => top + ((height - top - bottom) * (high - value)) / (high - low);
  const chart = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Loss by step" });
  for (let at = 0; at <= 4; at++) {
    const value = low + ((high - low) * at) / 4;
    chart.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    chart.append(make("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, number(value, 3)));
  }
  const marks = [...new Set([0, 1, 2, 3, 4].map((at) => Math.round(first + ((lastStep - first) * at) / 4)))];
  for (const step of marks) chart.append(make("text", { x: x(step), y: height - 10, "text-anchor": "middle" }, step));
  for (const [kind, points] of series) {
    const path = points.map((point, at) => `${at ? "L" : "M"}${x(point.step).toFixed(1)} ${y(point.value).toFixed(1)}`).join("");
    chart.append(make("path", { class: kind, d: path }));
    const dots = points.length <= 60 ? points : points.slice(-1);
    for (const point of dots) {
      const title = make("title", {}, `step ${point.step}: ${number(point.value, 5)}`);
      chart.append(make("circle", { class: kind, cx: x(point.step), cy: y(point.value), r: 3 }, title));
    }
  }
  const names = { train: "training", val: "validation" };
  const legend = series.map(([kind]) => make("span", {}, make("i", { class: kind }), names[kind]));
  return make("div", {}, chart, make("p", { class: "legend" }, ...legend));
}

async function datasetsView() {
  const found = await ask("v1/datasets?page_size=100");
  const rows = found.data.map((dataset) => [dataset.namespace + "/" + dataset.name, dataset.files_url, dataset.description || "–", ago(dataset.created_at)]);
  return [make("h2", {}, "Datasets"), table([["Name", "name"], ["Files", "name"], ["Description"], ["Created"]], rows,
    "No datasets registered. Upload files with huggingface_hub to /v1/hf, then POST /v1/datasets.")];
}

async function deploymentsView() {
  const found = await ask("v1/deployment/model-deployments?page_size=100");
  const rows = found.data.map((item) => [
    item.namespace + "/" + item.name, state(item.status_details.status), item.models.join(", "), item.url,
    item.status_details.description, ago(item.created_at),
  ]);
  return [make("h2", {}, "Deployments"), table([["Name", "name"], ["State"], ["Model", "name"], ["URL", "name"], ["Says", "name"], ["Created"]], rows,
    "No model is deployed. Make a config with POST /v1/deployment/configs, then POST /v1/deployment/model-deployments.")];
}

async function modelsView() {
  const found = await ask("v1/customization/configs?page_size=100&sort=name");
  const rows = found.data.map((config) => [
    config.namespace + "/" + config.name, number(config.target.num_parameters, 4), config.target.precision, number(config.max_seq_length, 9),
  ]);
  const models = await ask("v1/models?page_size=100");
  const bases = new Set(found.data.map((config) => config.target.base_model));
  const own = models.data.filter((model) => !bases.has(model.id)).map((model) => [
    model.id, ago(model.created_at),
    make("button", { onclick: () => remove("v1/models/" + model.id.split("/").map(encodeURIComponent).join("/"), "Delete the files of " + model.id + "?", "#/models") }, "Delete"),
  ]);
  return [make("h2", {}, "Base models"), table([["Config name", "name"], ["Parameters", "number"], ["Precision"], ["Context", "number"]], rows,
    "No base models. Add one with: pairwright serve targets add NAME DIR --data DATA"),
    make("h2", {}, "Trained models"), table([["Name", "name"], ["Made"], [""]], own, "No model yet: a job makes one.")];
}

async function draw() {
  const [, view = "jobs", identity] = location.hash.split("/");
  const views = { jobs: identity ? () => jobView(identity) : jobsView, datasets: datasetsView, deployments: deploymentsView, models: modelsView };
  for (const link of document.querySelectorAll("nav a")) link.classList.toggle("here", link.getAttribute("href") === "#/" + view);
  const asked = location.hash;
  try {
    const parts = (await (views[view] || jobsView)()).filter((part) => part !== null);
    if (asked !== location.hash) return;
    const log = document.getElementById("log");
    const scroll = log && shown === asked && log.scrollTop + log.clientHeight < log.scrollHeight - 8 ? log.scrollTop : null;
    main.replaceChildren(...parts);
    const drawn = document.getElementById("log");
    if (drawn) drawn.scrollTop = scroll === null ? drawn.scrollHeight : scroll;
    shown = asked;
    live.textContent = "live";
    live.className = "";
  } catch (problem) {
    live.textContent = problem instanceof TypeError ? "the service does not answer" : problem.message;
    live.className = "away";
  }
}

signIn.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", document.getElementById("token").value.trim());
  draw();
});
window.addEventListener("hashchange", draw);
async function loop() {
  if (!document.hidden) await draw();
  setTimeout(loop, POLL);
}
loop();

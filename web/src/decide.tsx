// Decide: votes on pairs and ratings of runs by keys, several people by name; exclusions of records.
import { useEffect, useState } from "preact/hooks";
import { copy, decide, useAnswer } from "./api";
import { Answer, number, Sources, State, heading } from "./parts";
import { change, Route, useKeys } from "./route";
import { Message, Tools, Transcript } from "./transcript";
import { Record_, RecordView } from "./experiences";
import { Sides } from "./pairs";

type Shown = { id: string; task: string; prompt: Message[]; tools: unknown[]; same: number; a: Message[]; b: Message[]; a_reward: number | null; b_reward: number | null; gap?: number };
type Next = { pair: Shown | null; total: number; own: number; votes: number };
type NextRecord = { record: Record_ | null; total: number; own: number; ratings: number };
type Agreement = {
  items: number; agreement: number | null; alpha: number | null; voters: Record<string, number>;
  people: { voters: string[]; items: number; agreement: number; kappa?: number | null }[];
  reward?: Record<string, { agree?: number; disagree?: number; agreement?: number | null; spearman?: number | null; items?: number }>;
};
type Summary = { file: string; agreement: Agreement; next: string };

const ORDERS: [string, string][] = [["disagreement", "disagreement first"], ["gap", "smallest gap first"], ["random", "random"]];

function remembered(): string { try { return localStorage.getItem("voter") || ""; } catch { return ""; } }
function remember(name: string) { try { localStorage.setItem("voter", name); } catch { /* private windows have no storage */ } }

export function Decide(props: { route: Route; pairs: string[]; tables: string[] }) {
  const { params } = props.route;
  const isRating = params.get("mode") === "rate" || !props.pairs.length;
  const keys = isRating ? props.tables : props.pairs;
  const source = keys.includes(props.route.source) ? props.route.source : keys[0];
  const voter = params.get("voter") || remembered();
  const blind = params.get("blind") !== "0";
  const order = params.get("order") || (isRating ? "random" : "gap");
  const [again, setAgain] = useState(0);
  const setVoter = (name: string) => { remember(name); change({ voter: name || null, show: null }); };
  return <div class="view listing no-facets">
    <div class="filters"><div class="row">
      <Sources view="decide" keys={keys} here={source} />
      <span class="row tabs" role="group" aria-label="What to decide">
        {props.pairs.length > 0 && <button class={isRating ? "" : "on"} onClick={() => { location.hash = "#/decide"; }}>Vote on pairs</button>}
        {props.tables.length > 0 && <button class={isRating ? "on" : ""} onClick={() => { location.hash = "#/decide?mode=rate"; }}>Rate runs</button>}
      </span>
      <select aria-label="Order of the queue" value={order} onChange={(event) => change({ order: event.currentTarget.value, show: null })}>
        {ORDERS.map(([name, label]) => <option value={name}>{label}</option>)}</select>
      <label class="row"><input type="checkbox" checked={blind} onChange={(event) => change({ blind: event.currentTarget.checked ? null : "0" })} /> blind</label>
      <form class="row grow" onSubmit={(event) => { event.preventDefault(); setVoter(String(new FormData(event.currentTarget).get("voter") || "").trim()); }}>
        <input name="voter" key={voter} defaultValue={voter} placeholder="Your name, then Enter" aria-label="Your name" maxLength={100} />
      </form>
    </div></div>
    <div class="columns deciding">{!voter
      ? <State title="Who decides?">Write your name above. Several people can decide on the same pairs; each name has its own queue.</State>
      : isRating
        ? <Rate source={source} voter={voter} blind={blind} order={order} show={params.get("show")} again={again} done={() => setAgain(again + 1)} />
        : <Vote source={source} voter={voter} blind={blind} order={order} show={params.get("show")} again={again} done={() => setAgain(again + 1)} />}
    </div>
  </div>;
}

type Doing = { source: string; voter: string; blind: boolean; order: string; show: string | null; again: number; done: () => void };

function Vote(props: Doing) {
  const { source, voter, blind } = props;
  const next = useAnswer<Next>("decide.next", { source, voter, order: props.order, blind: blind ? 1 : 0, id: props.show }, props.again);
  const summary = useAnswer<Summary>("decide.summary", { source }, props.again);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const pair = next.busy ? null : next.value?.pair;
  const send = async (work: () => Promise<void>) => {
    if (busy) return;
    setBusy(true);
    setError("");
    try { await work(); props.done(); } catch (problem) { setError((problem as Error).message); } finally { setBusy(false); }
  };
  const vote = (verdict: string) => pair && send(async () => {
    await decide("decide.vote", { source, voter, id: pair.id, verdict, blind });
    if (props.show) change({ show: null }, true);
  });
  const undo = () => send(async () => {
    const back = await decide<{ id: string | null }>("decide.undo", { source, voter });
    change({ show: back.id }, true);
  });
  useKeys({ a: () => vote("a"), b: () => vote("b"), t: () => vote("tie"), s: () => vote("skip"), u: undo }, [pair, busy, props.show, voter, source, blind]);
  return <>
    <section class="detail" aria-label="Pair to vote on">
      {error && <p class="bad-text" role="alert">{error}</p>}
      <Answer asked={next}>{(value) => value.pair ? <div class={"stack" + (next.busy || busy ? " stale" : "")}>
        <header class="detail-head"><h2 class="cut" title={value.pair.task}>{heading(value.pair.task, value.pair.prompt)}</h2></header>
        <Tools tools={value.pair.tools} />
        <Transcript messages={value.pair.prompt} fold label="the prompt" />
        <Sides sides={[value.pair.a, value.pair.b]} same={value.pair.same} names={["side-a", "side-b"]}
          titles={[<>A {value.pair.a_reward !== null && <span class="quiet">reward {number(value.pair.a_reward)}</span>}</>, <>B {value.pair.b_reward !== null && <span class="quiet">reward {number(value.pair.b_reward)}</span>}</>]} />
      </div> : <State title="Nothing left to vote on">{value.own.toLocaleString("en")} pairs have a vote of {voter}. u takes the last one back.</State>}</Answer>
      <div class="verdicts row" role="group" aria-label="Verdict">
        <button class="main" disabled={!pair || busy} onClick={() => vote("a")}><kbd>a</kbd> A is better</button>
        <button class="main" disabled={!pair || busy} onClick={() => vote("b")}><kbd>b</kbd> B is better</button>
        <button disabled={!pair || busy} onClick={() => vote("tie")}><kbd>t</kbd> tie</button>
        <button disabled={!pair || busy} onClick={() => vote("skip")}><kbd>s</kbd> skip</button>
        <button disabled={busy} onClick={undo}><kbd>u</kbd> undo</button>
        <span class="quiet small" role="status" id="progress">{next.value && `${next.value.own.toLocaleString("en")} of ${next.value.total.toLocaleString("en")} decided by ${voter}`}</span>
      </div>
    </section>
    <aside class="agreement" aria-label="Agreement"><Answer asked={summary}>{(value) => <AgreementView summary={value} what="votes" />}</Answer></aside>
  </>;
}

function Rate(props: Doing) {
  const { source, voter, blind } = props;
  const next = useAnswer<NextRecord>("decide.record", { source, voter, order: props.order, blind: blind ? 1 : 0, uid: props.show }, props.again);
  const summary = useAnswer<Summary>("decide.ratings", { source }, props.again);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const record = next.busy ? null : next.value?.record;
  const send = async (work: () => Promise<void>) => {
    if (busy) return;
    setBusy(true);
    setError("");
    try { await work(); props.done(); } catch (problem) { setError((problem as Error).message); } finally { setBusy(false); }
  };
  const rate = (rating: number | null) => record && send(async () => {
    await decide("decide.rate", { source, voter, uid: record.uid, rating });
    if (props.show) change({ show: null }, true);
  });
  const undo = () => send(async () => { change({ show: (await decide<{ uid: string }>("decide.unrate", { source, voter })).uid }, true); });
  useKeys({ "1": () => rate(1), "2": () => rate(2), "3": () => rate(3), "4": () => rate(4), "5": () => rate(5), s: () => rate(null), u: undo }, [record, busy, props.show, voter, source]);
  return <>
    <section class="detail" aria-label="Run to rate">
      {error && <p class="bad-text" role="alert">{error}</p>}
      <Answer asked={next}>{(value) => value.record ? <div class={"stack" + (next.busy || busy ? " stale" : "")}><RecordView source={source} record={value.record} plain /></div>
        : <State title="Nothing left to rate">{value.own.toLocaleString("en")} runs have a rating of {voter}.</State>}</Answer>
      <div class="verdicts row" role="group" aria-label="Rating">
        {[1, 2, 3, 4, 5].map((rating) => <button disabled={!record || busy} onClick={() => rate(rating)} title={rating === 1 ? "worst" : rating === 5 ? "best" : undefined}><kbd>{rating}</kbd></button>)}
        <span class="quiet small">1 worst, 5 best</span>
        <button disabled={!record || busy} onClick={() => rate(null)}><kbd>s</kbd> skip</button>
        <button disabled={busy} onClick={undo}><kbd>u</kbd> undo</button>
        <span class="quiet small" role="status" id="progress">{next.value && `${next.value.own.toLocaleString("en")} of ${next.value.total.toLocaleString("en")} rated by ${voter}`}</span>
      </div>
    </section>
    <aside class="agreement" aria-label="Agreement"><Answer asked={summary}>{(value) => <AgreementView summary={value} what="ratings" />}</Answer></aside>
  </>;
}

const percent = (value: number | null | undefined) => value === null || value === undefined ? "–" : `${Math.round(100 * value)}%`;

function AgreementView(props: { summary: Summary; what: string }) {
  const { agreement } = props.summary;
  const reward = agreement.reward || {};
  return <div class="stack">
    <section><h4>{props.what} by person</h4><dl class="facts">{Object.entries(agreement.voters).map(([name, amount]) => <><dt class="cut" title={name}>{name}</dt><dd class="num">{number(amount)}</dd></>)}</dl>
      {!Object.keys(agreement.voters).length && <p class="small quiet">none yet</p>}</section>
    <section><h4>people with each other</h4><dl class="facts"><dt>agreement</dt><dd class="num">{percent(agreement.agreement)}</dd><dt>alpha</dt><dd class="num">{number(agreement.alpha, 2)}</dd><dt>judged by two</dt><dd class="num">{number(agreement.items)}</dd></dl>
      {agreement.people.slice(0, 6).map((entry) => <p class="small quiet cut">{entry.voters.join(" and ")}: {percent(entry.agreement)}{entry.kappa !== undefined && `, kappa ${number(entry.kappa, 2)}`}</p>)}</section>
    <section><h4>people with the reward</h4><dl class="facts">{Object.entries(reward).map(([name, entry]) => <><dt class="cut">{name}</dt><dd class="num">{entry.spearman !== undefined ? `ρ ${number(entry.spearman, 2)}` : percent(entry.agreement)}</dd></>)}</dl></section>
    <section><h4>kept in</h4><p class="small mono wrap">{props.summary.file}</p><p class="small quiet">Used by</p><p class="small mono wrap">{props.summary.next}</p></section>
  </div>;
}

type Exclusions = { rows: { uid: string; name: string; reason: string; time: string }[]; where: string };

export function ExcludeRecord(props: { source: string; uid: string }) {
  const [again, setAgain] = useState(0);
  const [open, setOpen] = useState(false);
  const [error, setError] = useState("");
  const exclusions = useAnswer<Exclusions>("decide.exclusions", copy ? null : { source: props.source }, again);
  useEffect(() => { setOpen(false); setError(""); }, [props.uid]);
  const own = exclusions.value?.rows.find((row) => row.uid === props.uid);
  const send = async (body: object) => {
    try { await decide("decide.exclude", { source: props.source, uid: props.uid, ...body }); setOpen(false); setError(""); setAgain(again + 1); } catch (problem) { setError((problem as Error).message); }
  };
  if (own) return <span class="row"><span class="chip bad"><span class="cut">excluded by {own.name}: {own.reason}</span></span><button onClick={() => send({ name: remembered() || own.name, is_excluded: false })}>Include again</button>{error && <span class="bad-text small">{error}</span>}</span>;
  if (!open) return <button onClick={() => setOpen(true)}>Exclude…</button>;
  return <form class="row card exclude" onSubmit={(event) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget);
    const name = String(data.get("name") || "").trim();
    remember(name);
    send({ name, reason: String(data.get("reason") || "").trim(), is_excluded: true });
  }}>
    <input name="name" defaultValue={remembered()} placeholder="Your name" aria-label="Your name" maxLength={100} required />
    <input name="reason" class="grow" placeholder="Why is it left out of pairs?" aria-label="Reason" maxLength={1000} required autofocus />
    <button class="main">Exclude</button><button type="button" onClick={() => setOpen(false)}>Cancel</button>
    {error && <span class="bad-text small">{error}</span>}
  </form>;
}

export type Credit = { turn: number; verdict: string; value: number | null; source: string };

// The verdict on a generated turn, and buttons to vote on it; the same button again takes the vote back.
export function TurnVerdict(props: { source: string; uid: string; turn: number; credit?: Credit }) {
  const [own, setOwn] = useState("");
  const [error, setError] = useState("");
  useEffect(() => { setOwn(""); setError(""); }, [props.uid, props.turn]);
  const send = async (verdict: string) => {
    const voter = remembered() || window.prompt("Your name")?.trim() || "";
    if (!voter) return;
    remember(voter);
    try { await decide("decide.turn", { source: props.source, uid: props.uid, turn: props.turn, voter, verdict }); setOwn(verdict === "skip" ? "" : verdict); setError(""); } catch (problem) { setError((problem as Error).message); }
  };
  const { credit } = props;
  return <span class="row verdict">
    {credit && <span class={credit.verdict === "failed" ? "chip bad" : "chip"} title={credit.source}>{credit.verdict}{credit.value !== null ? ` ${number(credit.value, 2)}` : ""}</span>}
    {!copy && ["ok", "failed"].map((verdict) => <button class="plain small" aria-pressed={own === verdict} title={`This turn: ${verdict}`} onClick={() => send(own === verdict ? "skip" : verdict)}>{own === verdict ? `✓ ${verdict}` : verdict}?</button>)}
    {error && <span class="bad-text small">{error}</span>}
  </span>;
}

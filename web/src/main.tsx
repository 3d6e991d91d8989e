// The page: tabs, the open view, help.
import { Component, render } from "preact";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { copy, useAnswer, useBusy } from "./api";
import { Answer, State } from "./parts";
import { link, useKeys, useRoute } from "./route";
import { Experiences } from "./experiences";
import { Pairs } from "./pairs";
import { Tokens } from "./tokens";
import { Runs } from "./runs";
import { Evaluation } from "./evaluation";
import { Decide } from "./decide";
import "./look.css";
import "./view.css";

type Library = { version: string; items: { key: string; kind: string; run: string }[] };
const VIEWS: [string, string, string][] = [
  ["runs", "Runs", "run"], ["experiences", "Experiences", "experiences"], ["pairs", "Pairs", "pairs"],
  ["tokens", "Tokens", "tokens"], ["evaluation", "Evaluation", "evaluation"], ["decide", "Decide", "pairs"],
];
const KEYS: [string, string][] = [
  ["j / k", "next, previous record, pair, sequence or task"], ["Esc", "close what is open"], ["/", "search"],
  ["n / p", "Tokens: next, previous trained part"], ["a / b", "Decide: A or B is better"], ["t / s / u", "Decide: tie, skip, undo"], ["1 – 5", "Decide: rate a run"], ["g then letter", "view: r runs, e experiences, p pairs, t tokens, v evaluation, d decide"], ["?", "this help"],
];

const LEAPS: Record<string, string> = { r: "runs", e: "experiences", p: "pairs", t: "tokens", v: "evaluation", d: "decide" };

// g and a letter lead to a view; the letter is then not taken for a key of the view that is open.
function useLeaps(views: string[]) {
  useLayoutEffect(() => {
    let waiting = 0;
    const listen = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test((event.target as HTMLElement).tagName)) return;
      const isSecond = performance.now() - waiting < 1200;
      waiting = event.key === "g" ? performance.now() : 0;
      if (isSecond && views.includes(LEAPS[event.key])) { event.stopImmediatePropagation(); event.preventDefault(); location.hash = link(LEAPS[event.key]); }
    };
    addEventListener("keydown", listen, true);
    return () => removeEventListener("keydown", listen, true);
  }, [views.join()]);
}

class Guard extends Component<{ children: ComponentChildren; at: string }, { error: string }> {
  state = { error: "" };
  static getDerivedStateFromError(error: Error) { return { error: error.message }; }
  componentDidUpdate(before: { at: string }) { if (before.at !== this.props.at && this.state.error) this.setState({ error: "" }); }
  render() { return this.state.error ? <State title="This view failed" bad>{this.state.error}. Choose another view, or load the page again.</State> : this.props.children; }
}

function App() {
  const route = useRoute();
  const busy = useBusy();
  const library = useAnswer<Library>("library", {});
  const [help, setHelp] = useState(false);
  const items = library.value?.items || [];
  const keysOf = (kind: string) => items.filter((item) => item.kind === kind).map((item) => item.key);
  const has = (kind: string) => items.some((item) => item.kind === kind);
  // Runs are rated where there are no pairs to vote on; a copy decides nothing.
  const views = VIEWS.filter(([name, , kind]) => name === "decide" ? !copy && (has("pairs") || has("experiences")) : has(kind));
  const view = route.view || views[0]?.[0] || "";
  useEffect(() => { document.title = `${view ? view[0].toUpperCase() + view.slice(1) : "view"}${route.source ? " · " + route.source : ""} · pairwright`; }, [view, route.source]);
  useKeys({ "?": () => setHelp(!help), Escape: () => setHelp(false) }, [help]);
  useLeaps(views.map(([name]) => name));
  return <>
    {busy && <div class="busy" role="progressbar" aria-label="Loading" />}
    <header class="top">
      <a class="brand" href="#/">pairwright</a>
      <nav aria-label="Views">{views.map(([name, label]) => <a href={link(name)} class={view === name ? "here" : ""} aria-current={view === name ? "page" : undefined}>{label}</a>)}</nav>
      {copy && <span class="chip">copy: {copy.title}</span>}
      <button class="plain help-button" aria-label="Keyboard help" title="Keyboard help (?)" onClick={() => setHelp(!help)}>?</button>
    </header>
    <main><Guard at={location.hash}><Answer asked={library}>{() => {
      const kind = VIEWS.find(([name]) => name === view)?.[2];
      const keys = kind ? keysOf(kind) : [];
      if (view === "decide" && views.some(([name]) => name === view)) return <Decide route={route} pairs={keysOf("pairs")} tables={keysOf("experiences")} />;
      if (!kind) return <State title="No such view">Choose one above.</State>;
      if (!keys.length) return <State title="Nothing of this kind here">The folders that were opened hold none. Name others: pairwright view FOLDER…</State>;
      if (route.source && !keys.includes(route.source)) return <State title="Not here any more" bad>{route.source} is not among what was opened: {keys.join(", ")}</State>;
      if (view === "runs") return <Runs route={route} />;
      if (view === "experiences") return <Experiences route={route} keys={keys} />;
      if (view === "pairs") return <Pairs route={route} keys={keys} />;
      if (view === "tokens") return <Tokens route={route} keys={keys} />;
      return <Evaluation route={route} keys={keys} />;
    }}</Answer></Guard></main>
    {help && <div class="veil" onClick={() => setHelp(false)}><div class="card help" role="dialog" aria-label="Keyboard help" onClick={(event) => event.stopPropagation()}>
      <div class="row spread"><h2>Keys</h2><button class="plain" aria-label="Close" onClick={() => setHelp(false)}>✕</button></div>
      <dl class="facts">{KEYS.map(([key, what]) => <><dt><kbd>{key}</kbd></dt><dd>{what}</dd></>)}</dl>
      <p class="small quiet">The address of the page holds its state: any view is a link. Conditions are SQL on the columns of the table, as --where has them.</p>
    </div></div>}
  </>;
}

render(<App />, document.getElementById("app")!);

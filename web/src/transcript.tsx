// A conversation: turns with their role, tool calls and results folded, errors marked, long texts cut until asked for.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Piece } from "./diff";

export type Call = { name: string; arguments: string; id: string | null };
export type Message = {
  role: string; name: string | null; text: string; parts: string[]; reasoning: string | null; calls: Call[];
  answers: string | null; generated: boolean | null;
};
export type ErrorSite = { index: number; kind: string; text: string; tool: string | null };
const LONG = 2400;

export function Text(props: { text: string; pieces?: Piece[]; long?: number }) {
  const [all, set] = useState(false);
  const most = props.long ?? LONG;
  const isLong = props.text.length > most * 1.2 && !all;
  if (props.pieces) {
    let left = isLong ? most : Infinity;
    return <pre>{props.pieces.map((piece) => {
      if (left <= 0) return null;
      const text = piece.text.slice(0, left);
      left -= text.length;
      return piece.same ? <span class="same">{text}</span> : <mark>{text}</mark>;
    })}{isLong && <More text={props.text} most={most} open={() => set(true)} />}</pre>;
  }
  return <pre>{isLong ? props.text.slice(0, most) : props.text}{isLong && <More text={props.text} most={most} open={() => set(true)} />}</pre>;
}

function More(props: { text: string; most: number; open: () => void }) {
  return <button class="plain more" onClick={props.open}>… {(props.text.length - props.most).toLocaleString("en")} more characters</button>;
}

export function pretty(text: string): string {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

export function CallView(props: { call: Call; open?: boolean; pieces?: Piece[] }) {
  const { call } = props;
  const line = call.arguments.replace(/\s+/g, " ");
  return <details class="call" open={props.open}>
    <summary><span class="mono"><b>{call.name}</b> <span class="quiet">{line.length > 110 ? line.slice(0, 110) + "…" : line}</span></span></summary>
    <Text text={pretty(call.arguments)} pieces={props.pieces} />
  </details>;
}

// One string for a turn, which the diff compares: what the model thought, said and called.
export function turnText(message: Message): string {
  const calls = message.calls.map((call) => `${call.name}(${pretty(call.arguments)})`);
  return [message.reasoning ? `${message.reasoning}\n` : "", message.text, ...calls].filter(Boolean).join("\n");
}

export function Turn(props: { message: Message; index?: number; errors?: ErrorSite[]; open?: boolean; pieces?: Piece[]; isPrompt?: boolean; mark?: ComponentChildren }) {
  const { message, errors = [] } = props;
  const isTool = message.role === "tool" || message.role === "function";
  const first = message.text.split("\n", 1)[0].slice(0, 140);
  const size = message.text.length;
  const folded = !props.pieces && !props.open && !errors.length && (isTool ? size > 160 : message.role === "system" && size > 300);
  const body = props.pieces
    ? <Text text={turnText(message)} pieces={props.pieces} />
    : <>
      {message.reasoning && <details class="reasoning"><summary>reasoning, {message.reasoning.length.toLocaleString("en")} characters</summary><Text text={message.reasoning} /></details>}
      {message.text && <Text text={message.text} />}
      {message.parts.map((part) => <span class="chip">{part}</span>)}
      {message.calls.map((call) => <CallView call={call} />)}
      {!message.text && !message.calls.length && !message.reasoning && !message.parts.length && <span class="quiet small">empty</span>}
    </>;
  return <article class={`turn role-${/^[a-z]+$/.test(message.role) ? message.role : "other"}${errors.length ? " failed" : ""}`} id={props.index === undefined ? undefined : `turn-${props.index}`}>
    <header class="row"><b>{message.role}</b>{message.name && <span class="mono quiet">{message.name}</span>}
      {errors.map((site) => <span class="chip bad" title={site.text}>{site.kind}</span>)}
      {message.generated === false && message.role === "assistant" && <span class="chip">context</span>}
      {props.mark}
      {props.index !== undefined && <span class="quiet small num turn-number">{props.index}</span>}
    </header>
    {folded ? <details><summary class="quiet"><span class="mono cut">{first || "…"}</span> <span class="small">{size.toLocaleString("en")} characters</span></summary>{body}</details> : body}
  </article>;
}

export function Transcript(props: { messages: Message[]; start?: number; errors?: ErrorSite[]; fold?: boolean; label?: string; mark?: (index: number, message: Message) => ComponentChildren }) {
  const start = props.start ?? 0;
  const turns = props.messages.map((message, at) => <Turn
    message={message} index={start + at} errors={props.errors?.filter((site) => site.index === start + at)} mark={props.mark?.(start + at, message)}
  />);
  if (props.fold && props.messages.length > 2) {
    const [last] = turns.slice(-1);
    return <><details class="earlier"><summary>{props.messages.length - 1} earlier turns{props.label ? ` of ${props.label}` : ""}</summary>{turns.slice(0, -1)}</details>{last}</>;
  }
  return <>{turns}</>;
}

export function Tools(props: { tools: unknown[] }) {
  if (!props.tools.length) return null;
  const names = props.tools.map((tool) => {
    const entry = tool as { function?: { name?: string }; name?: string };
    return entry.function?.name || entry.name || "tool";
  });
  return <details class="fold"><summary>{props.tools.length} tool{props.tools.length > 1 ? "s" : ""} <span class="quiet mono">{names.slice(0, 12).join(", ")}</span></summary>
    <Text text={JSON.stringify(props.tools, null, 2)} /></details>;
}

export function Facts(props: { title: string; facts: Record<string, unknown> | null | undefined; open?: boolean }) {
  const entries = Object.entries(props.facts || {});
  if (!entries.length) return null;
  return <details class="fold" open={props.open}><summary>{props.title} <span class="quiet">{entries.length}</span></summary>
    <dl class="facts">{entries.map(([name, value]) => <><dt>{name}</dt><dd class="mono">{typeof value === "string" ? value.slice(0, 2000) : JSON.stringify(value)?.slice(0, 2000)}</dd></>)}</dl></details>;
}

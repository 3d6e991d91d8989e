"""Convert the model calls and tool runs of a trace to experiences.

Each request of an agent repeats the conversation so far. Calls whose input extends the input and output of an earlier
call form a chain: one experience, whose prompt is the first call's input and whose completion is everything after it.
A call that extends no other starts a new chain. `step` numbers the distinct prompts of a trace, so alternative answers
to one prompt share it. Messages are compared by role, content and calls; ids and reasoning are ignored, since they may
change or be dropped when they are sent back as input.

Some exporters log the initial prompt with every call instead of the growing conversation, and tool runs as separate
spans. If such a call (`flat`) repeats the input of its sibling and tools ran between the two, the conversation is
reconstructed from outputs and tool runs, and `info["rebuilt"]` is set. If none ran and the number of input tokens shows
that the actual input differed, the call is rejected: the input of the model is not in the trace.

Others log only the messages added since the previous call: tool results, perhaps preceded by the previous answer. If
these results have the ids of tool calls made by the previous call with the same parent, the conversation continues
(`rebuilt` is set, too). If the tool calls are not in the trace, the call is rejected.

A failed call adds an error site to the last message of its input; a failed tool run to its result.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from pairwright.records.messages import ErrorSite, Json, Message, ToolCall, canonical_arguments, canonical_content
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import json_text
from pairwright.sources.format import Origin, Rejected
from pairwright.sources.shapes.any_messages import tool_content
from pairwright.sources.shapes.tool_errors import tool_names
from pairwright.sources.shapes.traces import (
    Failure,
    ModelCall,
    ScoreIndex,
    ToolRun,
    Trace,
    index_scores,
    nearest_scores,
    run_of,
)

_MAX_UNSEEN = 20
_encode = msgspec.json.Encoder(order="sorted").encode
_TRUNCATED = frozenset({"length", "max_tokens", "max_output_tokens"})
# Tree of all conversations of a trace: (number of the parent prefix, role, body) -> number of the prefix. The body is
# the text of a message, or JSON of its content and calls.
_Prefixes = dict[tuple[int, str, str | bytes], int]


class _Chain(msgspec.Struct, eq=False):
    """A conversation under construction."""

    calls: list[ModelCall]
    prompt_length: int
    messages: list[Message]
    prefixes: list[int]  # numbers of all prefixes of `messages`, as the next call's input would repeat them
    opening: int  # number of the prompt
    known: _Prefixes  # shared by the whole trace
    runs: list[ToolRun] = []  # tool runs since the last call, of the same parent
    failures: list[tuple[int, Failure]] = []  # of calls: (position of the last input message, failure)
    results: dict[int, str] = {}  # kinds of failures of tool runs, by position of the added result
    rebuilt: str | None = None  # the source of a reconstruction
    repeats: "_Chain | None" = None  # an earlier chain of the same parent that logged the same input


class _Findings(msgspec.Struct):
    """Scores of a trace, kinds of failures by call id, and the first failed tool runs without a message, by parent."""

    scores: ScoreIndex
    failures: dict[str, str] = {}
    unseen: dict[str | None, list[Json]] = {}


def _findings(trace: Trace, runs: list[ToolRun], chains: list[_Chain]) -> _Findings:
    findings = _Findings(index_scores(trace.scores))
    failed = [(run, run.failure) for run in runs if run.failure is not None]
    if not failed:
        return findings
    answered_ids = {message.tool_call_id for chain in chains for message in chain.messages if message.role == "tool"}
    for run, failure in failed:
        findings.failures[run.call_id or run.id] = failure.kind
        unseen = findings.unseen.setdefault(run.parent, [])
        if run.call_id not in answered_ids and run.id not in answered_ids and len(unseen) < _MAX_UNSEEN:
            unseen.append({"tool": run.name, "kind": failure.kind, "text": failure.text})
    return findings


def read_trace(name: str, trace: Trace, origin: Origin, *, position: int) -> Iterator[Parts | Rejected]:
    """Yield the experiences of a trace; chains without an answer are yielded as Rejected.

    `position` is the index of the trace in its file, used as the run number if the trace has no id.
    """
    for refusal in trace.refused:
        yield origin.rejected(f"trace {trace.id!r}, {refusal}", name)
    number = run_of(trace.id, position)
    runs = [event for event in trace.events if isinstance(event, ToolRun)]
    by_id = {run.call_id: run for run in runs if run.call_id is not None}
    chains = _chains(trace.events)
    for chain in chains:
        _answer_open_calls(chain, by_id)
    findings = _findings(trace, runs, chains)
    steps: dict[int, int] = {}
    for chain in chains:
        reason = _why_unusable(chain)
        if reason is not None:
            yield origin.rejected(f"trace {trace.id!r}, call {chain.calls[-1].id!r}: {reason}", name)
            continue
        step = steps.setdefault(chain.opening, len(steps))
        yield _experience(name, trace, chain, findings, origin, number, step)


def _why_unusable(chain: _Chain) -> str | None:
    last, repeats = chain.calls[-1], chain.repeats
    if len(chain.messages) == chain.prompt_length:
        return f"the model gave no output: {last.failure.text}" if last.failure else "the model gave no output"
    for message in chain.messages:
        if message.role == "tool":
            return "its input begins with the result of a call that is not in the trace"
        if message.role not in ("system", "developer"):
            break
    if repeats is not None:
        counts = [call.usage.get("input_tokens") for call in (repeats.calls[0], chain.calls[0])]
        if None not in counts and counts[0] != counts[1]:
            return (
                f"it logs the input of call {repeats.calls[0].id!r}, but {counts[1]} input tokens, not {counts[0]}: "
                "the model's actual input is not in the trace"
            )
    return None


# Prefix number of a whole conversation -> chains in the order in which they ended; an ordered set with fast removal
_Ends = dict[int, dict[_Chain, None]]


def _chains(events: list[ModelCall | ToolRun]) -> list[_Chain]:
    """Group model calls into chains, reconstructing those that do not log the whole conversation."""
    chains: list[_Chain] = []
    ends: _Ends = {}
    openings: dict[tuple[str | None, int], _Chain] = {}  # by (parent, first input), for calls that repeat it
    latest: dict[str | None, _Chain] = {}  # parent -> chain of its last call
    known_prefixes: _Prefixes = {}
    for event in events:
        if isinstance(event, ToolRun):
            if event.parent in latest:
                latest[event.parent].runs.append(event)
            continue
        above = latest.get(event.parent)
        prefixes = [0]
        if above is not None and event.input[: len(above.messages)] == above.messages:
            prefixes = above.prefixes.copy()
        _numbered(prefixes, event.input[len(prefixes) - 1 :], known_prefixes)
        repeats: _Chain | None = None
        chain, known = _find_chain(prefixes, ends)
        if chain is None and event.flat:
            chain = openings.get((event.parent, prefixes[-1]))
            if chain is not None and not chain.runs and chain.calls[-1].output:
                repeats, chain = chain, None  # no tool ran between the two, so nothing can be reconstructed
            if chain is not None:
                del ends[chain.prefixes[-1]][chain]
                if chain.runs:
                    _append_runs(chain)
                known = len(event.input)
        elif chain is None and above is not None:
            overlap = _overlap(above, event)
            if overlap is not None:
                chain, known = above, overlap
                del ends[chain.prefixes[-1]][chain]
                chain.rebuilt = "from outputs and what is new in each input: the calls log no more than that"
        if chain is None:
            chain = _Chain(
                calls=[],
                prompt_length=len(event.input),
                messages=[],
                prefixes=[0],
                opening=prefixes[-1],
                known=known_prefixes,
                repeats=repeats,
            )
            chains.append(chain)
            openings.setdefault((event.parent, prefixes[-1]), chain)
        elif len(chain.messages) == chain.prompt_length:  # no answer so far: the prompt may still grow
            answered = (n for n in range(known, len(event.input)) if event.input[n].is_generated)
            chain.prompt_length = next(answered, len(event.input))
            chain.opening = prefixes[chain.prompt_length]
        _extend(chain, event, known, prefixes)
        ends.setdefault(chain.prefixes[-1], {})[chain] = None
        latest[event.parent] = chain
    return chains


def _find_chain(prefixes: list[int], ends: _Ends) -> tuple[_Chain | None, int]:
    """Return the chain whose conversation is the longest prefix of the input, and the length of that prefix."""
    for length in range(len(prefixes) - 1, 0, -1):
        waiting = ends.get(prefixes[length])
        if waiting:
            chain = next(iter(waiting))
            del waiting[chain]
            return chain, length
    return None, 0


def _overlap(chain: _Chain, call: ModelCall) -> int | None:
    """Return how many input messages repeat the end of the chain, or None unless the rest answer its last calls."""
    if not chain.messages:
        return None
    last = chain.messages[-1]
    ids = {tool_call.id for tool_call in last.tool_calls if tool_call.id is not None}
    known = 1 if call.input and call.input[0].role == "assistant" else 0
    # Equal prefix numbers mean that the input's first message equals the chain's last one.
    if known and _numbered([chain.prefixes[-2]], call.input[:1], chain.known)[-1] != chain.prefixes[-1]:
        return None
    results = call.input[known:]
    if not results or not all(message.role == "tool" and message.tool_call_id in ids for message in results):
        return None
    return known


def _extend(chain: _Chain, call: ModelCall, known: int, prefixes: list[int]) -> None:
    """Add the new input and the output of a call to its chain; `prefixes` are the prefix numbers of the whole input."""
    first = len(chain.messages)
    if chain.prefixes[-1] == prefixes[known]:  # the input repeats the conversation so far
        first += len(call.input) - known
        chain.prefixes += prefixes[known + 1 :]
    chain.messages += call.input[known:]
    if call.failure is not None and chain.messages:
        chain.failures.append((len(chain.messages) - 1, call.failure))
    chain.messages += call.output
    _numbered(chain.prefixes, chain.messages[first:], chain.known)
    chain.calls.append(call)
    chain.runs = []


def _append_runs(chain: _Chain) -> None:
    """Append the tool runs since the last call to the conversation: calls on the assistant message, then results."""
    if not chain.messages or chain.messages[-1].role != "assistant":
        chain.messages.append(Message("assistant"))
    first, last = len(chain.messages) - 1, chain.messages[-1]
    if not last.tool_calls:
        calls = tuple(
            ToolCall(run.name, "" if run.arguments is None else json_text(run.arguments), run.call_id or run.id)
            for run in chain.runs
        )
        chain.messages[-1] = replace(last, tool_calls=calls)
        for run in chain.runs:
            _add_result(chain, run, run.call_id or run.id)
    else:
        _answer_open_calls(chain, {run.call_id: run for run in chain.runs if run.call_id is not None})
    chain.rebuilt = "from outputs and tool runs: the calls log only the opening prompt"
    chain.runs = []
    del chain.prefixes[first + 1 :]
    _numbered(chain.prefixes, chain.messages[first:], chain.known)


def _answer_open_calls(chain: _Chain, by_id: dict[str, ToolRun]) -> None:
    """Append results for the calls of the last message, which no later input of the chain contains."""
    if len(chain.messages) == chain.prompt_length:
        return
    if not chain.messages[-1].tool_calls:
        if chain.runs and chain.calls[-1].flat:
            _append_runs(chain)
        return
    # Runs without ids are matched by name.
    unnamed = [run for run in chain.runs if run.call_id is None]
    if any(call.id is None for call in chain.messages[-1].tool_calls):
        unnamed = list(chain.runs)
    for call in chain.messages[-1].tool_calls:
        run = by_id.get(call.id) if call.id is not None else None
        if run is None:
            run = next((spare for spare in unnamed if spare.name == call.name), None)
            if run is None:
                continue
            unnamed.remove(run)
        _add_result(chain, run, call.id)


def _add_result(chain: _Chain, run: ToolRun, call_id: str | None) -> None:
    output = run.output
    if run.failure is not None:
        chain.results[len(chain.messages)] = run.failure.kind
        output = run.failure.text if output is None else output
    chain.messages.append(Message("tool", tool_content(output), tool_call_id=call_id, name=run.name))


def _experience(
    name: str, trace: Trace, chain: _Chain, findings: _Findings, origin: Origin, run: int, step: int
) -> Parts:
    """Build the experience of a chain, with its scores, errors and usage."""
    calls = chain.calls
    tools = calls[0].tools
    names = [call.id for call in calls]
    components, more = nearest_scores(findings.scores, names, trace.parents)
    info: Json = {**trace.info}
    if trace.id is not None:
        info["trace_id"] = trace.id
    info["calls"] = names
    known: list[Json] | None = None  # union of the tools of all calls, if they differ
    usage: Json = {}
    model = None
    for call in calls:
        info.update(call.notes)
        for key, value in call.usage.items():
            usage[key] = usage.get(key, 0) + value
        if call.tools != tools:
            known = list({json_text(tool): tool for one in calls for tool in one.tools}.values())
        if model is None:
            model = call.model
    if chain.rebuilt:
        info["rebuilt"] = chain.rebuilt
    if known is not None:
        info["tools_changed"] = True
    if "tools_dropped" in info:  # incomplete tools: no tool is unknown
        known = []
    if more:
        info["more_scores"] = more
    if findings.unseen:
        parents = dict.fromkeys(call.parent for call in calls)
        unseen = [failure for parent in parents for failure in findings.unseen.get(parent, [])]
        if unseen:
            info["tool_failures"] = unseen
    available = tool_names(tools if known is None else known) if chain.failures else ()

    def kind_of(position: int, message: Message) -> str | None:
        return chain.results.get(position) or findings.failures.get(message.tool_call_id or "")

    last = chain.messages[-1]
    is_cut = last.role == "assistant" and str(last.extra.get("finish_reason")).lower() in _TRUNCATED
    return Parts(
        name,
        origin,
        task=trace.task,
        run=run,
        step=step,
        prompt=chain.messages[: chain.prompt_length],
        completion=chain.messages[chain.prompt_length :],
        tools=tools,
        known_tools=known,
        reward_components=components,
        error_kind=kind_of if chain.results or findings.failures else None,
        errors=[ErrorSite(n, failed.kind, failed.text, available_tools=available) for n, failed in chain.failures],
        info=info,
        metrics=usage,
        model_version=model,
        truncate_status="response_truncated" if is_cut else None,
    )


def _numbered(numbers: list[int], messages: list[Message], known: _Prefixes) -> list[int]:
    """Append the numbers of the prefixes that end with the next messages, and return all; ignores ids and reasoning."""
    number = numbers[-1]
    for message in messages:
        body: Any = message.content
        if type(body) is not str:
            body = canonical_content(body)
        if message.tool_calls or type(body) is not str:
            calls = [(call.name, canonical_arguments(call.arguments or "{}")) for call in message.tool_calls]
            body = _encode((body, calls))
        number = known.setdefault((number, message.role, body), len(known) + 1)
        numbers.append(number)
    return numbers

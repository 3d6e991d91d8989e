"""NAT intermediate steps: `{parent_id, payload{event_type, name, UUID, metadata, data{input, output, ...}}}`.

A file is a list of steps (JSONL), or workflow_output.json: items `{id, question, intermediate_steps[]}`.

Each TTC_END event is a candidate: one experience with `data.input` as prompt, `data.output` as completion and
`data.score` as reward. task = the item's id (without one: a hash of the prompt), run = the item's run, else how often
its id came before in the file, step = turn_index; candidates of one turn_id share a step, and different turn_ids never
do. The user may name the step (`step_name`); else all names are read, each kept in info, and where there are several
the name is the batch, so that they are not compared. What an END lacks is taken from its START; the model's and tools'
own events in such an item are not read again.

An item without TTC events is a trajectory: its LLM and TOOL events become experiences as call_chains.py says. An item
without either is its question and generated_answer.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.errors import PairwrightError
from pairwright.messages import Json
from pairwright.records import Experience
from pairwright.sources.boundary import guarded
from pairwright.sources.call_chains import read_trace
from pairwright.sources.failures import failure_kind
from pairwright.sources.fields import (
    BadRecord,
    identifier,
    index,
    items,
    mapping,
    optional_items,
    optional_mapping,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.message_shapes import answers, conversation, decoded
from pairwright.sources.nat_candidates import read_candidates
from pairwright.sources.nat_events import NAME, event_of, name_of, rejected
from pairwright.sources.traces import Failure, ModelCall, Score, ToolRun, Trace


def matches(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, dict):
        return False
    if isinstance(first.get("intermediate_steps"), list):
        return True
    payload = first.get("payload")
    return isinstance(payload, dict) and isinstance(payload.get("event_type"), str)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    listed = value if isinstance(value, list) else [value]
    if not any(isinstance(entry, dict) and "intermediate_steps" in entry for entry in listed):
        yield from _read_item({"intermediate_steps": listed}, 0, 0, origin, options)
        return
    seen: dict[int | str, int] = {}
    for number, entry in enumerate(listed):
        try:
            item = mapping(entry, f"[{number}]")
            task = identifier(item.get("id"))
            before = 0
            if task is not None:
                before = seen.get(task, 0)
                seen[task] = before + 1
            yield from _read_item(item, number, before, origin, options)
        except PairwrightError as error:
            yield rejected(f"item {number}: {error}", origin)


def _read_item(
    item: Json, number: int, before: int, origin: Origin, options: Options
) -> Iterator[Experience | Rejected]:
    steps = items(decoded(item.get("intermediate_steps")), "intermediate_steps")
    payloads: list[Json] = []
    for position, step in enumerate(steps):
        payload = step.get("payload", step) if isinstance(step, dict) else None
        if isinstance(payload, dict) and isinstance(payload.get("event_type"), str):
            parent = step.get("parent_id")
            payloads.append({**payload, "parent_id": parent if isinstance(parent, str) else None})
        else:
            yield rejected(f"item {number}, step {position}: no payload with an event_type", origin)
    given = index(item.get("run", item.get("run_index")))
    run = given if given is not None else before if "id" in item else origin.ordinal + number
    if any(event_of(payload).startswith("TTC_") for payload in payloads):
        yield from read_candidates(item, payloads, run, origin, options)
    else:
        yield from _read_trajectory(item, payloads, run, origin, options)


def _read_trajectory(
    item: Json, payloads: list[Json], run: int, origin: Origin, options: Options
) -> Iterator[Experience | Rejected]:
    starts = {p["UUID"]: p for p in payloads if event_of(p) == "LLM_START" and isinstance(p.get("UUID"), str)}
    events: list[ModelCall | ToolRun] = []
    for number, payload in enumerate(payloads):
        uuid = payload["UUID"] if isinstance(payload.get("UUID"), str) else f"#{number}"
        if event_of(payload) == "LLM_END":
            events.append(_model_call(payload, starts.get(uuid, {}), uuid))
        elif event_of(payload) == "TOOL_END":
            events.append(_tool_run(payload, uuid))
    if not any(isinstance(event, ModelCall) for event in events):
        prompt = conversation(item.get("question"), "question", role="user")
        output = conversation(item.get("generated_answer"), "generated_answer", role="assistant")
        if not prompt or not output:
            raise BadRecord("no TTC_END and no LLM_END event, and no question with a generated_answer")
        events.append(ModelCall(id="generated_answer", input=prompt, output=output))
    scores = [Score(key, item[key]) for key in ("reward", "score") if key in item]
    named = item.get("scores")
    scores += [Score(str(key), value) for key, value in named.items()] if isinstance(named, dict) else []
    info = {key: item[key] for key in ("question", "answer", "generated_answer") if item.get(key) is not None}
    trace = Trace(id=None, events=events, scores=scores, task=identifier(item.get("id")), info=info)
    yield from read_trace(NAME, trace, origin, options, position=run)


def _model_call(payload: Json, start: Json, uuid: str) -> ModelCall:
    begun, metadata = (
        optional_mapping(start.get("metadata"), "metadata"),
        optional_mapping(payload.get("metadata"), "metadata"),
    )
    data = optional_mapping(payload.get("data"), "data")
    first = optional_mapping(start.get("data"), "data")
    given = begun.get("chat_inputs") or metadata.get("chat_inputs")
    flat = not given
    if flat:
        given = data.get("input") if data.get("input") is not None else first.get("input")
        flat = not isinstance(decoded(given), list | dict)
    responses = optional_items(metadata.get("chat_responses"), "metadata.chat_responses")
    output = data.get("output")
    if len(responses) == 1 and isinstance(responses[0], dict):  # has the tool calls that the text lacks
        output = {"choices": responses}
    alternatives = answers(output, "data.output")
    usage = optional_mapping(
        optional_mapping(payload.get("usage_info"), "usage_info").get("token_usage"), "token_usage"
    )
    counts = {"input_tokens": usage.get("prompt_tokens"), "output_tokens": usage.get("completion_tokens")}
    schemas = optional_items(begun.get("tools_schema") or metadata.get("tools_schema"), "metadata.tools_schema")
    return ModelCall(
        id=uuid,
        input=conversation(given, "data.input", role="user"),
        output=alternatives[0] if alternatives else [],
        tools=[schema for schema in schemas if isinstance(schema, dict)],
        parent=payload["parent_id"],
        model=name_of(payload) or None,
        usage={key: count for key, count in counts.items() if type(count) is int and count},
        flat=flat,
    )


def _tool_run(payload: Json, uuid: str) -> ToolRun:
    data = optional_mapping(payload.get("data"), "data")
    output = decoded(data.get("output"))
    call_id = failure = None
    result = data.get("output")
    if isinstance(output, dict) and "tool_call_id" in output:
        call_id, result = output["tool_call_id"], output.get("content")
        if output.get("status") == "error":
            failure = Failure(failure_kind(result, "tool_error"), result if isinstance(result, str) else "")
    if failure is None and isinstance(result, str) and result.startswith("Error:"):
        failure = Failure(failure_kind(result, "tool_error"), result)
    return ToolRun(
        id=uuid,
        name=name_of(payload),
        output=result,
        arguments=data.get("input"),
        call_id=call_id if isinstance(call_id, str) else None,
        parent=payload["parent_id"],
        failure=failure,
    )


FORMAT = Format(name=NAME, unit="file", matches=matches, read=guarded(read), summary="NAT intermediate steps")

"""NAT intermediate steps: `{parent_id, payload{event_type, name, UUID, metadata, data{input, output, ...}}}`.

A file is a list of steps (JSON Lines), or workflow_output.json: items `{id, question, intermediate_steps[]}`.

Each TTC_END event is a candidate: one experience with `data.input` as prompt, `data.output` as completion and
`data.score` as reward. task = the item's id (else a hash of the prompt), run = the item's run, else the number of
earlier items with the same id, step = turn_index; candidates with one turn_id share a step, and different turn_ids
never do. The user may select a step by name (`step_name`); otherwise all are read, with the name in info. If there are
several names, each is a batch, so that candidates of different steps are not compared. Fields missing from an END event
are taken from its START. LLM and tool events of an item with TTC events are not converted separately.

An item without TTC events is a trajectory: its LLM and TOOL events are converted by
sources/tracing/trace_to_experiences.py. An item without any of these becomes its question and generated_answer.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from pairwright.errors import PairwrightError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import (
    BadRecord,
    filled,
    filled_text,
    has,
    identifier,
    index,
    items,
    json_text,
    mapping,
    object_or_empty,
    objects_in,
    optional_items,
    optional_mapping,
    score,
    text_or_none,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import answers, conversation, decode_json_text
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, ModelCall, Score, ToolRun, Trace
from pairwright.sources.tracing.span_nodes import usage_of
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "nat"


# Fields of a candidate that may occur in several places of its event.
_KEYS = ("turn_id", "turn_index", "candidate_index", "score")


def name_of(payload: Json) -> str:
    return filled_text(payload.get("name")) or ""


def read_candidates(
    item: Json, payloads: list[Json], run: int, origin: Origin, options: Options
) -> Iterator[Parts | Rejected]:
    """Yield one experience per TTC_END event of an item, and Rejected for those that are incomplete."""
    # By UUID, shared by START and END of a step.
    starts = {p["UUID"]: p for p in payloads if p["event_type"] == "TTC_START" and isinstance(p.get("UUID"), str)}
    ends = [payload for payload in payloads if payload["event_type"] == "TTC_END"]
    names = list(dict.fromkeys(name_of(payload) for payload in ends))
    ended = {payload["UUID"] for payload in ends if isinstance(payload.get("UUID"), str)}
    for uuid in (uuid for uuid in starts if uuid not in ended and options.step_name in (None, name_of(starts[uuid]))):
        reason = f"TTC_START {uuid!r} of {name_of(starts[uuid])!r} has no TTC_END: the candidate is missing"
        yield origin.rejected(reason, NAME)
    if options.step_name is not None and options.step_name not in names:
        reason = f"no TTC_END event named {options.step_name!r}; there are {', '.join(map(repr, names))}"
        yield origin.rejected(reason, NAME)
        return
    schemas = _schemas(payloads)
    prompts: dict[tuple[type, str], _Prompt] = {}  # candidates of one turn share their input
    turns = {name: _Turns() for name in names}
    for payload in ends:
        name = name_of(payload)
        if options.step_name not in (None, name):
            continue
        start = starts.get(payload["UUID"], {}) if isinstance(payload.get("UUID"), str) else {}
        try:
            fields = _fields(payload, start)
            step = turns[name].step(fields)
            # The key includes the type: text and the list that it decodes to are different inputs.
            key = (type(fields["input"]), json_text(fields["input"]))
            if key not in prompts:
                prompts[key] = _prompt(item, fields["input"], schemas)
            parts = _candidate(payload, fields, prompts[key], origin)
            parts.task, parts.run, parts.step = identifier(item.get("id")), run, step
            parts.batch = name if len(names) > 1 else ""
            yield parts
        except PairwrightError as error:
            yield origin.rejected(f"TTC_END {payload.get('UUID')!r}: {error}", NAME)


def _fields(payload: Json, start: Json) -> Json:
    """Collect a candidate's fields from `data`, data.payload, the metadata, or the START event's data."""
    data = optional_mapping(payload.get("data"), "data")
    begun = optional_mapping(start.get("data"), "data of TTC_START")
    metadata = optional_mapping(payload.get("metadata"), "metadata")
    input_value = data.get("input")
    fields: Json = {
        **{key: data.get(key) for key in _KEYS},
        "input": begun.get("input") if input_value is None else input_value,
        "output": data.get("output"),
        "data": data,
    }
    # Other places fill in fields missing from `data`; usually there are none.
    others = begun or metadata or data.get("payload")
    for place in (begun, metadata.get("provided_metadata"), metadata, data.get("payload"), data) if others else ():
        # the last value wins
        if isinstance(place, dict) and place:
            fields |= {key: place[key] for key in _KEYS if place.get(key) is not None}
    return fields


class _Prompt(msgspec.Struct):
    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    origin: str | None  # where the messages are from, if not from the event


def _prompt(item: Json, logged_input: Any, schemas: dict[str, list[Json]]) -> _Prompt:
    messages, origin = conversation(logged_input, "data.input", role="user", objects_as_text=True), None
    if not messages:
        messages = conversation(item.get("question"), "question", role="user", objects_as_text=True)
        origin = "the item's question: the event has no input" if messages else "nothing: no input was logged"
    return _Prompt(tuple(messages), tuple(schemas.get(_key(logged_input), ())) if schemas else (), origin)


class _Turns(msgspec.Struct):
    """Assigns a step to each turn: its turn_index, or the next free number if another turn_id has that step."""

    # turn_id -> step; used steps; the lowest number above all of them.
    steps: dict[int | str, int] = {}
    taken: set[int] = set()
    free: int = 0

    def step(self, fields: Json) -> int:
        turn, turn_index = identifier(fields["turn_id"]), index(fields["turn_index"])
        if turn is None:
            return 0 if turn_index is None else turn_index
        if turn not in self.steps:
            step = turn_index if turn_index is not None and turn_index not in self.taken else self.free
            self.steps[turn] = step
            self.taken.add(step)
            self.free = max(self.free, step + 1)
        return self.steps[turn]


def _candidate(payload: Json, fields: Json, prompt: _Prompt, origin: Origin) -> Parts:
    """Build the experience of a candidate; an empty output becomes an empty answer."""
    info: Json = {"step_name": name_of(payload), "uuid": payload.get("UUID")}
    info |= {key: fields[key] for key in ("turn_id", "turn_index", "candidate_index")}
    info = filled({**info, "metadata": payload.get("metadata"), "prompt_from": prompt.origin})
    output = fields["output"]
    alternatives = answers(output, "data.output", objects_as_text=True)
    if len(alternatives) > 1:
        raise BadRecord(f"data.output: {len(alternatives)} alternative answers under one score")
    if alternatives:
        completion = alternatives[0]
    else:  # an empty answer is kept, so that it can be rejected
        completion = [Message("assistant", "")]
        info["empty_output"] = "no output key" if "output" not in fields["data"] else json_text(output)
    return Parts(
        NAME,
        origin,
        prompt=prompt.messages,
        completion=completion,
        tools=prompt.tools,
        reward=score(fields["score"]),
        info=info,
    )


def _schemas(payloads: list[Json]) -> dict[str, list[Json]]:
    by_input: dict[str, list[Json]] = {}
    for payload in payloads:
        schemas = objects_in(value_at(payload.get("metadata"), "tools_schema"))
        if payload["event_type"] == "LLM_START" and isinstance(payload.get("data"), dict) and schemas:
            by_input[_key(payload["data"].get("input"))] = schemas
    return by_input


def _key(value: Any) -> str:
    return json_text(decode_json_text(value))


def matches(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    if has(first, intermediate_steps=list):
        return True
    return has(first) and has(first.get("payload"), event_type=str)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    listed = value if isinstance(value, list) else [value]
    if not any(isinstance(entry, dict) and "intermediate_steps" in entry for entry in listed):
        yield from _read_item({"intermediate_steps": listed}, 0, 0, origin, options)
        return
    # id -> number of earlier items with this id: the run of an item without a run number
    runs: Counter[int | str | None] = Counter()
    for number, entry in enumerate(listed):
        try:
            item = mapping(entry, f"[{number}]")
            task = identifier(item.get("id"))
            before = 0 if task is None else runs[task]
            runs[task] += 1  # a refused item counts, too: ids do not depend on other items
            yield from _read_item(item, number, before, origin, options)
        except PairwrightError as error:
            yield origin.rejected(f"item {number}: {error}", NAME)


def _read_item(item: Json, number: int, before: int, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Read one item as candidates if it has TTC events, else as a trajectory."""
    steps = items(decode_json_text(item.get("intermediate_steps")), "intermediate_steps")
    payloads: list[Json] = []
    for position, step in enumerate(steps):
        payload = step.get("payload", step) if isinstance(step, dict) else None
        if has(payload, event_type=str):
            parent = text_or_none(step.get("parent_id"))
            # Enums may be written as text: only the part after the last dot is the type.
            kind = payload["event_type"].rpartition(".")[2].upper()
            payloads.append({**payload, "parent_id": parent, "event_type": kind})
        else:
            yield origin.rejected(f"item {number}, step {position}: no payload with an event_type", NAME)
    run_index = index(item.get("run", item.get("run_index")))
    # The item's run number, else the number of earlier items with its id, else its position.
    run = run_index if run_index is not None else before if "id" in item else origin.ordinal + number
    if any(payload["event_type"].startswith("TTC_") for payload in payloads):
        yield from read_candidates(item, payloads, run, origin, options)
    else:
        yield from _read_trajectory(item, payloads, run, origin, options)


def _read_trajectory(
    item: Json, payloads: list[Json], run: int, origin: Origin, options: Options
) -> Iterator[Parts | Rejected]:
    starts = {p["UUID"]: p for p in payloads if p["event_type"] == "LLM_START" and isinstance(p.get("UUID"), str)}
    events: list[ModelCall | ToolRun] = []
    for number, payload in enumerate(payloads):
        uuid = payload["UUID"] if isinstance(payload.get("UUID"), str) else f"#{number}"
        if payload["event_type"] == "LLM_END":
            events.append(_model_call(payload, starts.get(uuid, {}), uuid))
        elif payload["event_type"] == "TOOL_END":
            events.append(_tool_run(payload, uuid))
    if not any(isinstance(event, ModelCall) for event in events):
        prompt = conversation(item.get("question"), "question", role="user")
        output = conversation(item.get("generated_answer"), "generated_answer", role="assistant")
        if not prompt or not output:
            raise BadRecord("no TTC_END and no LLM_END event, and no question with a generated_answer")
        events.append(ModelCall(id="generated_answer", input=prompt, output=output))
    scores = [Score(key, item[key]) for key in ("reward", "score") if key in item]
    scores += [Score(str(key), value) for key, value in object_or_empty(item.get("scores")).items()]
    info = filled({key: item.get(key) for key in ("question", "answer", "generated_answer")})
    trace = Trace(id=None, events=events, scores=scores, task=identifier(item.get("id")), info=info)
    yield from read_trace(NAME, trace, origin, position=run)


def _model_call(payload: Json, start: Json, uuid: str) -> ModelCall:
    begun, metadata = (optional_mapping(one.get("metadata"), "metadata") for one in (start, payload))
    first, data = (optional_mapping(one.get("data"), "data") for one in (start, payload))
    # Prefer the logged chat messages; `data.input` often holds the same as flat text.
    inputs = begun.get("chat_inputs") or metadata.get("chat_inputs")
    flat = not inputs
    if flat:
        inputs = data.get("input") if data.get("input") is not None else first.get("input")
        flat = not isinstance(decode_json_text(inputs), list | dict)
    responses = optional_items(metadata.get("chat_responses"), "metadata.chat_responses")
    output = data.get("output")
    if len(responses) == 1 and isinstance(responses[0], dict):  # has the tool calls that the text lacks
        output = {"choices": responses}
    alternatives = answers(output, "data.output")
    schemas = begun.get("tools_schema") or metadata.get("tools_schema")
    return ModelCall(
        id=uuid,
        input=conversation(inputs, "data.input", role="user"),
        output=alternatives[0] if alternatives else [],
        tools=objects_in(optional_items(schemas, "metadata.tools_schema")),
        parent=payload["parent_id"],
        model=name_of(payload) or None,
        usage=usage_of(value_at(payload, "usage_info.token_usage")),
        flat=flat,
    )


def _tool_run(payload: Json, uuid: str) -> ToolRun:
    data = optional_mapping(payload.get("data"), "data")
    result, call_id, has_failed = data.get("output"), None, False
    output = decode_json_text(result)
    if has(output, "tool_call_id"):
        call_id, result, has_failed = output["tool_call_id"], output.get("content"), output.get("status") == "error"
    shown = result if isinstance(result, str) else ""
    failure = None
    if has_failed or shown.startswith("Error:"):
        failure = Failure(failure_kind(result, "tool_error"), shown)
    return ToolRun(
        id=uuid,
        name=name_of(payload),
        output=result,
        arguments=data.get("input"),
        call_id=call_id if isinstance(call_id, str) else None,
        parent=payload["parent_id"],
        failure=failure,
    )


FORMAT = Format(NAME, "file", matches, read, "NAT intermediate steps")

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

import msgspec

from pairwright.errors import PairwrightError
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message
from pairwright.sources.fields import (
    BadRecord,
    identifier,
    index,
    items,
    json_text,
    mapping,
    optional_items,
    optional_mapping,
    score,
)
from pairwright.sources.format import Format, Options, Origin, Rejected, build, guarded
from pairwright.sources.shapes.any_messages import answers, conversation, decode_json_text, error_of_mark
from pairwright.sources.shapes.tool_errors import error_sites, failure_kind
from pairwright.sources.shapes.traces import Failure, ModelCall, Score, ToolRun, Trace
from pairwright.sources.tracing.trace_to_experiences import read_trace

# Events of the NeMo Agent Toolkit: what each says of itself.

NAME = "nat"


def event_of(payload: Json) -> str:
    """The event's type; enums that were written as text keep only their last word."""
    return str(payload["event_type"]).rpartition(".")[2].upper()


def name_of(payload: Json) -> str:
    name = payload.get("name")
    return name if isinstance(name, str) else ""


def rejected(reason: str, origin: Origin) -> Rejected:
    return Rejected(file=origin.file, line=origin.line, reason=reason, format=NAME)


# Candidates in NAT's intermediate steps: each TTC_END event is one, with its prompt, its answer and its score.

# Fields of a candidate that may stand at several places of its event.
_KEYS = ("turn_id", "turn_index", "candidate_index", "score")


def read_candidates(
    item: Json, payloads: list[Json], run: int, origin: Origin, options: Options
) -> Iterator[Experience | Rejected]:
    # By UUID, which START and END of a step share.
    starts = {p["UUID"]: p for p in payloads if event_of(p) == "TTC_START" and isinstance(p.get("UUID"), str)}
    ends = [payload for payload in payloads if event_of(payload) == "TTC_END"]
    names = list(dict.fromkeys(name_of(payload) for payload in ends))
    ended = {payload["UUID"] for payload in ends if isinstance(payload.get("UUID"), str)}
    for uuid in (uuid for uuid in starts if uuid not in ended and options.step_name in (None, name_of(starts[uuid]))):
        yield rejected(
            f"TTC_START {uuid!r} of {name_of(starts[uuid])!r} has no TTC_END: the candidate is not there", origin
        )
    if options.step_name is not None and options.step_name not in names:
        yield rejected(f"no TTC_END event named {options.step_name!r}; there are {', '.join(map(repr, names))}", origin)
        return
    prompts = _Prompts(item, _schemas(payloads))
    turns = {name: _Turns() for name in names}
    for payload in ends:
        name = name_of(payload)
        if options.step_name not in (None, name):
            continue
        start = starts.get(payload["UUID"], {}) if isinstance(payload.get("UUID"), str) else {}
        try:
            fields = _fields(payload, start)
            step = turns[name].step(fields)
            batch = name if len(names) > 1 else ""
            if options.reward not in (None, "score", "reward"):  # another number, which the importer looks for
                fields["score"] = None
            yield _candidate(
                payload, fields, prompts.of(fields["input"]), _Place(item.get("id"), run, step, batch), origin
            )
        except PairwrightError as error:
            yield rejected(f"TTC_END {payload.get('UUID')!r}: {error}", origin)


def _fields(payload: Json, start: Json) -> Json:
    """What an event says of its candidate: in `data`, in data.payload, in the metadata, or in its START's data."""
    data = optional_mapping(payload.get("data"), "data")
    begun = optional_mapping(start.get("data"), "data of TTC_START")
    metadata = optional_mapping(payload.get("metadata"), "metadata")
    fields: Json = dict.fromkeys(_KEYS)
    for place in (begun, metadata.get("provided_metadata"), metadata, data.get("payload"), data):  # the last one counts
        if isinstance(place, dict) and place:
            fields |= {key: place[key] for key in _KEYS if place.get(key) is not None}
    input_value = data.get("input")
    fields["input"] = begun.get("input") if input_value is None else input_value
    fields["output"], fields["data"] = data.get("output"), data
    return fields


class _Prompt(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    origin: str | None  # where the messages are from, if not from the event


class _Prompts:
    """What candidates were given. Those of one turn stand together and share it, so that it is read and hashed once."""

    def __init__(self, item: Json, schemas: dict[str, list[Json]]) -> None:
        self._item = item
        self._schemas = schemas
        self._last: tuple[tuple[type, str], _Prompt] | None = None

    def of(self, given: Any) -> _Prompt:
        # The type belongs to the key: text and the list that it would decode to are different inputs.
        key = (type(given), given if isinstance(given, str) else _key(given))
        if self._last is None or self._last[0] != key:
            self._last = (key, self._read(given))
        return self._last[1]

    def _read(self, given: Any) -> _Prompt:
        tools = tuple(self._schemas.get(_key(given), ()))
        if messages := conversation(given, "data.input", role="user"):
            return _Prompt(tuple(messages), tools, None)
        messages = conversation(self._item.get("question"), "question", role="user")
        origin = "the item's question: the event has no input" if messages else "nothing: no input was logged"
        return _Prompt(tuple(messages), tools, origin)


class _Place(msgspec.Struct, frozen=True):
    """Where a candidate belongs."""

    task: Any
    run: int
    step: int
    batch: str


class _Turns(msgspec.Struct):
    """The step of each turn: its turn_index, or the next free number where another turn_id has that already."""

    # turn_id -> step; the steps that are taken; the lowest number above all of them.
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


def _candidate(payload: Json, fields: Json, prompt: _Prompt, place: _Place, origin: Origin) -> Experience:
    info: Json = {"step_name": name_of(payload), "uuid": payload.get("UUID")}
    info |= {key: fields[key] for key in ("turn_id", "turn_index", "candidate_index")}
    info["metadata"] = payload.get("metadata")
    info["prompt_from"] = prompt.origin
    alternatives = answers(fields["output"], "data.output")
    if len(alternatives) > 1:
        raise BadRecord(f"data.output: {len(alternatives)} alternative answers under one score")
    if alternatives:
        completion = alternatives[0]
    else:  # kept, so that it can lose: an empty answer is an answer
        completion = [Message("assistant", "")]
        info["empty_output"] = "no output key" if "output" not in fields["data"] else json_text(fields["output"])
    return build(
        NAME,
        origin,
        task=identifier(place.task),
        batch=place.batch,
        run=place.run,
        step=place.step,
        prompt=prompt.messages,
        completion=completion,
        tools=prompt.tools,
        reward=score(fields["score"]),
        errors=error_sites([*prompt.messages, *completion], list(prompt.tools), error_of_mark),
        info={key: value for key, value in info.items() if value is not None},
    )


def _schemas(payloads: list[Json]) -> dict[str, list[Json]]:
    """The tools that the model had, by the input that it had them with."""
    by_function: dict[str, list[Json]] = {}
    for payload in payloads:
        metadata, data = payload.get("metadata"), payload.get("data")
        if event_of(payload) == "LLM_START" and isinstance(metadata, dict) and isinstance(data, dict):
            listed = metadata.get("tools_schema")
            schemas = [schema for schema in listed if isinstance(schema, dict)] if isinstance(listed, list) else []
            if schemas:
                by_function[_key(data.get("input"))] = schemas
    return by_function


def _key(value: Any) -> str:
    return json_text(decode_json_text(value))


# NAT intermediate steps: `{parent_id, payload{event_type, name, UUID, metadata, data{input, output, ...}}}`.


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
    # id -> how many items of this id came before: the run of one without a number
    runs: dict[int | str, int] = {}
    for number, entry in enumerate(listed):
        try:
            item = mapping(entry, f"[{number}]")
            task = identifier(item.get("id"))
            before = 0
            if task is not None:
                before = runs.get(task, 0)
                runs[task] = before + 1
            yield from _read_item(item, number, before, origin, options)
        except PairwrightError as error:
            yield rejected(f"item {number}: {error}", origin)


def _read_item(
    item: Json, number: int, before: int, origin: Origin, options: Options
) -> Iterator[Experience | Rejected]:
    steps = items(decode_json_text(item.get("intermediate_steps")), "intermediate_steps")
    payloads: list[Json] = []
    for position, step in enumerate(steps):
        payload = step.get("payload", step) if isinstance(step, dict) else None
        if isinstance(payload, dict) and isinstance(payload.get("event_type"), str):
            parent = step.get("parent_id")
            payloads.append({**payload, "parent_id": parent if isinstance(parent, str) else None})
        else:
            yield rejected(f"item {number}, step {position}: no payload with an event_type", origin)
    run_index = index(item.get("run", item.get("run_index")))
    # The item's own number, else its count among items of its id, else its position.
    run = run_index if run_index is not None else before if "id" in item else origin.ordinal + number
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
    # The chat messages, where they were logged; `data.input` is often the same as flat text.
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
    usage = optional_mapping(
        optional_mapping(payload.get("usage_info"), "usage_info").get("token_usage"), "token_usage"
    )
    counts = {"input_tokens": usage.get("prompt_tokens"), "output_tokens": usage.get("completion_tokens")}
    schemas = optional_items(begun.get("tools_schema") or metadata.get("tools_schema"), "metadata.tools_schema")
    return ModelCall(
        id=uuid,
        input=conversation(inputs, "data.input", role="user"),
        output=alternatives[0] if alternatives else [],
        tools=[schema for schema in schemas if isinstance(schema, dict)],
        parent=payload["parent_id"],
        model=name_of(payload) or None,
        usage={key: count for key, count in counts.items() if type(count) is int and count},
        flat=flat,
    )


def _tool_run(payload: Json, uuid: str) -> ToolRun:
    data = optional_mapping(payload.get("data"), "data")
    output = decode_json_text(data.get("output"))
    call_id = failure = None
    result = data.get("output")
    if isinstance(output, dict) and "tool_call_id" in output:
        call_id, result = output["tool_call_id"], output.get("content")
        if output.get("status") == "error":
            failure = Failure(failure_kind(result, "tool_error"), result if isinstance(result, str) else "")
    # No mark of a failure: how the text begins tells.
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

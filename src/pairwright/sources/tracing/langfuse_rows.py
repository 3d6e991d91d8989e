"""Plain Langfuse traces straight to their table rows.

A plain trace is one conversation whose calls log JSON text of plain messages, each of them all that was before it.
Everything else is for the general code (sources/tracing/langfuse.py). tests/sources/test_langfuse_rows.py compares.
"""

import re
from itertools import pairwise
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, identifier
from pairwright.sources.format import Origin, ReadyRow
from pairwright.sources.shapes.any_messages import decode_json_text, plain_messages, split_rendering
from pairwright.sources.shapes.chat_messages import PlainTurn, check_plain
from pairwright.sources.shapes.plain_rows import PlainPrompt, plain_row, read_prompt, read_turns
from pairwright.sources.shapes.traces import pick_reward, run_of, task_in

NAME = "langfuse"
# Field of the trace -> name in `info`.
INFO = {"name": "name", "sessionId": "session_id", "tags": "tags", "release": "release", "version": "version"}
_SYSTEM = ("system", "developer")


class _PlainScore(Struct, gc=False):
    value: int | float
    name: str = ""
    dataType: Literal["NUMERIC", "BOOLEAN"] | None = None
    observationId: None = None


class _PlainTrace(Struct, gc=False):
    id: str
    scores: list[_PlainScore] | None = None
    metadata: Any = None
    datasetItemId: Any = None
    name: Any = None
    sessionId: Any = None
    tags: Any = None
    release: Any = None
    version: Any = None


class _PlainObservation(Struct, gc=False):
    id: str
    type: str
    startTime: str
    input: Any = None
    output: Any = None
    parentObservationId: str | None = None
    model: Any = None
    modelParameters: Any = None
    usage: Any = None
    usageDetails: Any = UNSET
    level: Any = None
    metadata: None = None
    toolDefinitions: None = None


class _PlainExport(Struct, gc=False):
    trace: _PlainTrace
    observations: list[_PlainObservation]
    scores: None = None


_decode_export = msgspec.json.Decoder(_PlainExport).decode
_decode_turn = msgspec.json.Decoder(PlainTurn).decode
_decode_turns = msgspec.json.Decoder(list[PlainTurn]).decode
# Times of one form, which are in order if their texts are.
_TIMES = re.compile(r"(?:\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d(?:\.\d{1,6})?Z )+")


def read_plain(line: bytes, origin: Origin) -> ReadyRow | None:
    """Convert a plain trace to its table row; returns None or raises one of UNUSUAL for any other."""
    if not line.isascii():
        line.decode()  # strings that are skipped are not looked at
    export = _decode_export(line)
    trace, observations = export.trace, export.observations
    calls = [item for item in observations if item.type == "GENERATION"]
    if not calls or not trace.id or not _are_plain(observations, calls):
        return None
    prompt = _prompt_of(calls[0].input)
    if not prompt.has_system and any(call.modelParameters for call in calls):
        return None  # perhaps with instructions
    answer = _decode_turn(calls[0].output)
    turns = [answer]
    for before, call in pairwise(calls):
        if not _continues(before, call):
            return None
        answer = _decode_turn(call.output)
        turns = [*_decode_turns(call.input)[len(prompt.shared.messages) :], answer]
    for turn in turns:
        check_plain(turn)
    # The results of the last calls would be in runs of tools.
    completion = None if answer.tool_calls else read_turns(turns, prompt.shared)
    scores = trace.scores or ()
    components = {score.name or "score": score.value for score in reversed(scores)}
    if completion is None or len(components) < len(scores):
        return None
    info = {ours: value for theirs, ours in INFO.items() if (value := getattr(trace, theirs))}
    return plain_row(
        NAME,
        origin,
        prompt.shared,
        completion,
        task=identifier(trace.datasetItemId) or task_in(decode_json_text(trace.metadata)),
        run=run_of(trace.id, 0),
        reward=pick_reward(components, None),
        reward_components=components,
        info={**info, "trace_id": trace.id, "calls": [call.id for call in calls]},
        metrics=_plain_usage(calls),
        model=next((call.model for call in calls if isinstance(call.model, str) and call.model), None),
    )


def _are_plain(observations: list[_PlainObservation], calls: list[_PlainObservation]) -> bool:
    """Whether observations are in order, none failed, and nothing is inside a call."""
    times = [item.startTime for item in observations]
    if times != sorted(times) or len(set(map(len, times))) > 1 or not _TIMES.fullmatch(" ".join([*times, ""])):
        return False
    ids = {item.id for item in observations}
    parents = {item.parentObservationId for item in observations}
    if len(ids) < len(observations) or "" in ids or not parents.isdisjoint([call.id for call in calls]):
        return False
    for item in observations:
        output = item.output
        if item.level == "ERROR":
            return False
        if item.type == "GENERATION":
            if type(item.input) is not str or type(output) is not str or output[:1] != "{":
                return False
        # A run of a tool may have failed by its output.
        elif output is not None and (type(output) is not str or ('"status"' in output and "tool_call_id" in output)):
            return False
    return True


def _continues(before: _PlainObservation, call: _PlainObservation) -> bool:
    """Whether the text of a call's input is that of the input and the output before it, and perhaps more."""
    begin, text, output = before.input[:-1], call.input, before.output
    if not text.startswith(begin):
        return False
    rest = text[len(begin) :].lstrip(", ")
    return rest.startswith(output) and rest[len(output) : len(output) + 1] in (",", "]")


class _Opening(Struct, gc=False):
    """The input of the first call."""

    text: str
    shared: PlainPrompt
    has_system: bool


def _prompt_of(text: str) -> _Opening:
    """Return what the first input of a trace gives; mostly that of the trace before."""
    global _last_opening
    if _last_opening is None or _last_opening.text != text:
        messages = plain_messages(text) if text[:1] == "[" else None
        if messages is None or split_rendering(messages) is not messages:
            raise BadRecord("not plain")
        roles = [message.role for message in messages]
        if next((role for role in roles if role not in _SYSTEM), "tool") == "tool":
            raise BadRecord("begins with the result of a call, or with nothing")
        _last_opening = _Opening(text, read_prompt(messages), roles[0] in _SYSTEM)
    return _last_opening


_last_opening: _Opening | None = None


def _plain_usage(calls: list[_PlainObservation]) -> Json:
    total: Json = {}
    for call in calls:
        usage = call.usage if call.usageDetails is UNSET else call.usageDetails
        for name, key in (("input_tokens", "input"), ("output_tokens", "output")):
            count = usage.get(key) if isinstance(usage, dict) else None
            if isinstance(count, int | float) and not isinstance(count, bool):
                total[name] = total.get(name, 0) + count
    return total

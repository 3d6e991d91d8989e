"""Plain Langfuse traces straight to their table rows.

A plain trace is one conversation whose calls log JSON text of plain messages, each of them all that was before it.
Everything else is for the general code (sources/tracing/langfuse.py). tests/sources/test_langfuse_rows.py compares.
"""

from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, identifier
from pairwright.sources.format import Origin
from pairwright.sources.shapes.any_messages import decode_json_text, plain_messages, split_rendering
from pairwright.sources.shapes.chat_messages import PlainTurn, check_plain
from pairwright.sources.shapes.plain_rows import PlainPrompt, PlainRecord, plain_reader, read_prompt, read_turns
from pairwright.sources.shapes.traces import pick_reward, run_of, task_in

NAME = "langfuse"
# Field of the trace -> name in `info`.
INFO = {"name": "name", "sessionId": "session_id", "tags": "tags", "release": "release", "version": "version"}
_USAGE = (("input_tokens", "input"), ("output_tokens", "output"))
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
_time = datetime.fromisoformat
_INFO_NAMES, _info_of = tuple(INFO.values()), attrgetter(*INFO)


def _decode_line(line: bytes) -> _PlainExport:
    if not line.isascii():
        line.decode()  # strings that are skipped are not looked at
    return _decode_export(line)


def _read_plain(export: _PlainExport, origin: Origin) -> PlainRecord | None:
    """Read a plain trace; returns None or raises one of UNUSUAL for any other."""
    trace = export.trace
    calls = _plain_calls(export.observations)
    if not calls or not trace.id:
        return None
    prompt = _prompt_of(calls[0].input)
    if not prompt.has_system and any(call.modelParameters for call in calls):
        return None  # perhaps with instructions
    turns: list[PlainTurn] = []
    for before, call in pairwise(calls):
        turns += _turns_between(before, call)
    turns.append(answer := _decode_turn(calls[-1].output))
    for turn in turns:
        check_plain(turn)
    # The results of the last calls would be in runs of tools.
    completion = None if answer.tool_calls else read_turns(turns, prompt.shared)
    scores = trace.scores or ()
    components = {score.name or "score": score.value for score in reversed(scores)}
    if completion is None or len(components) < len(scores):
        return None
    info: Json = {}
    for name, value in zip(_INFO_NAMES, _info_of(trace), strict=True):
        if value:
            info[name] = value
    info["trace_id"], info["calls"] = trace.id, [call.id for call in calls]
    model = calls[0].model
    if not isinstance(model, str) or not model:
        model = next((call.model for call in calls if isinstance(call.model, str) and call.model), None)
    return PlainRecord(
        prompt.shared,
        completion,
        identifier(trace.datasetItemId) or _task_of(trace.metadata),
        run_of(trace.id, 0),
        pick_reward(components, None),
        info,
        reward_components=components,
        metrics=_plain_usage(calls),
        model=model,
    )


def _plain_calls(observations: list[_PlainObservation]) -> list[_PlainObservation] | None:
    """Return the model calls of observations that are in order, with none that failed and nothing inside a call."""
    calls: list[_PlainObservation] = []
    before: datetime | None = None
    for item in observations:
        output, start = item.output, item.startTime
        time = _time(start)
        # As `moment` of sources/tracing/otel_spans.py orders them; text without a "T" may be a number for it.
        if start[10:11] != "T" or (before is not None and time < before) or item.level == "ERROR" or not item.id:
            return None
        before = time
        if item.type == "GENERATION":
            if type(item.input) is not str or type(output) is not str or output[:1] != "{":
                return None
            calls.append(item)
        # A run of a tool may have failed by its output.
        elif output is not None and (type(output) is not str or ('"status"' in output and "tool_call_id" in output)):
            return None
    ids = {item.id for item in observations}
    parents = {item.parentObservationId for item in observations}
    if len(ids) < len(observations) or not parents.isdisjoint([call.id for call in calls]):
        return None
    return calls


def _turns_between(before: _PlainObservation, call: _PlainObservation) -> list[PlainTurn]:
    """Return what a call's input has behind the input of the call before: the output of that one, and perhaps more.

    Raises ValueError unless the text of the input is that of both.
    """
    begin, text, output = before.input[:-1], call.input, before.output
    start = len(begin) + (2 if text.startswith(", ", len(begin)) else 1)
    stop = start + len(output)
    is_joined = text.startswith(begin) and text[len(begin) : len(begin) + 1] == "," and text.startswith(output, start)
    if not is_joined or before.input[-1:] != "]" or text[stop : stop + 1] not in (",", "]"):
        raise ValueError("another conversation")
    _decode_turn(output)  # whole: else a longer object could begin with it
    return _decode_turns(f"[{text[start:]}")


def _task_of(metadata: Any) -> int | str | None:
    """Return the task in the metadata of a trace, which is often that of the trace before."""
    global _last_task
    if type(metadata) is not str:
        return task_in(metadata)
    if _last_task[0] != metadata:
        _last_task = metadata, task_in(decode_json_text(metadata))
    return _last_task[1]


_last_task: tuple[str, int | str | None] = ("", None)


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
        for name, key in _USAGE if isinstance(usage, dict) else ():
            count = usage.get(key)
            if type(count) is int or type(count) is float:
                total[name] = total.get(name, 0) + count
    return total


read_rows = plain_reader(NAME, _decode_line, _read_plain)

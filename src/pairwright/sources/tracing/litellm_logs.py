"""LiteLLM logs: a standard logging payload a row, `{id, trace_id, call_type, model, messages, response, status}`.

A file is a list or lines of payloads, as the callbacks (S3, GCS, custom loggers) write them, or of the proxy's spend
logs, which have `request_id` for `id`. Rows of one session_id, else of one trace_id, form a trace: calls that continue
each other become one experience. Tools are in `model_parameters`. A row whose messages were redacted by LiteLLM is
rejected, and so is a failed call without a response.

task = a task id in the metadata, else a hash of the prompt; run = a number derived from the id of session or trace.
Scores: `reward`, `score` or `scores{}` in the metadata.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.json_text import decode
from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts, guarded
from pairwright.sources.fields import BadRecord, items, mapping
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import decode_json_text
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, Score, task_in
from pairwright.sources.tracing.otel_spans import moment
from pairwright.sources.tracing.span_nodes import Node, trace_of_nodes
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "litellm"
_REDACTED = "redacted-by-litellm"
# Fields that a payload or a spend log has beside messages and response, and no other log.
_OWN = (("call_type", "model_parameters"), ("call_type", "request_id", "spend"))


def matches(value: Any) -> bool:
    rows = value if isinstance(value, list) else [value]
    return bool(rows) and all(map(_is_log, rows[:3]))


def _is_log(row: Any) -> bool:
    if not isinstance(row, dict) or "messages" not in row or "response" not in row:
        return False
    return any(all(key in row for key in keys) for keys in _OWN)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Group rows by session or trace and yield the experiences of each."""
    rows = items(value if isinstance(value, list) else [value], "logs")
    traces: dict[str, list[Json]] = {}
    for number, raw_row in enumerate(rows):
        row = mapping(raw_row, f"logs[{number}]")
        names = (_text(row.get(key)) for key in ("session_id", "trace_id", "id", "request_id"))
        traces.setdefault(next((name for name in names if name), f"#{number}"), []).append(row)
    if not traces:
        raise BadRecord("no logs")
    for position, (trace_id, members) in enumerate(traces.items()):
        metadata = [_mapping(row.get("metadata")) for row in members]
        trace = trace_of_nodes(
            trace_id,
            [_node(row, number) for number, row in enumerate(members)],
            scores=[score for row, place in zip(members, metadata, strict=True) for score in _scores(row, place)],
            task=task_in(*metadata, *(_mapping(place.get("requester_metadata")) for place in metadata)),
        )
        yield from read_trace(NAME, trace, origin, options, position=position)


def _node(row: Json, number: int) -> Node:
    error = _text(row.get("error_str"))
    parameters = _mapping(row.get("model_parameters"))
    inputs, output = decode_json_text(row.get("messages")), _decode(row.get("response"))
    if _is_redacted(inputs) or _is_redacted(output):
        inputs, output = {_REDACTED: None}, None  # of no shape: refused, with this key in the reason
    return Node(
        id=_text(row.get("id")) or _text(row.get("request_id")) or f"#{number}",
        parent=None,
        role="call",
        start=moment(row.get("startTime")),
        input=inputs,
        output=None if error else output,
        model=_text(row.get("model")),
        tools=parameters.get("tools") or parameters.get("functions"),
        usage=row,
        failure=Failure(failure_kind(error, "exception"), error) if error else None,
    )


def _is_redacted(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_redacted(item) for item in value[:3])
    if isinstance(value, dict):
        return _REDACTED in (value.get("content"), value.get("text"))
    return bool(value == _REDACTED)


def _scores(row: Json, metadata: Json) -> list[Score]:
    target = _text(row.get("id")) or _text(row.get("request_id"))
    own = _mapping(metadata.get("requester_metadata"))
    scores: list[Score] = []
    for place in (metadata, own):
        scores += [Score(key, place[key], target) for key in ("reward", "score") if place.get(key) is not None]
        scores += [Score(str(key), item, target) for key, item in _mapping(place.get("scores")).items()]
    return scores


def _decode(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return decode(value)
    except (ValueError, RecursionError):
        return value


def _mapping(value: Any) -> Json:
    value = decode_json_text(value)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


FORMAT = Format(name=NAME, unit="file", matches=matches, read=guarded(read), summary="LiteLLM logs")

"""Traces of the OpenAI Agents SDK: `{object: trace}` and `{object: trace.span, trace_id, parent_id, span_data{type}}`.

A file is a list or lines of what the exporters write: one trace or span each, or requests of the tracing API, `{data:
[...]}`. Model calls are spans with data of type generation (`input`, `output`, `model`, `usage`) or response, if an
exporter has added the input and the response; tool runs those of type function. The SDK's own export of a response span
has only its id: such a call is rejected, since what the model was given is not in the file.

task = a task id in the metadata of the trace, else a hash of the prompt; run = a number derived from the trace id.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts, guarded
from pairwright.sources.fields import BadRecord, mapping
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, task_in
from pairwright.sources.tracing.otel_spans import moment
from pairwright.sources.tracing.span_nodes import Node, Role, trace_of_nodes
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "openai-agents"
_ROLES: dict[str, Role] = {"generation": "call", "response": "call", "function": "tool"}


def matches(value: Any) -> bool:
    rows = _rows(value)
    return bool(rows) and any(map(_is_span, rows[:20])) and all(map(_is_part, rows[:20]))


def _rows(value: Any) -> list[Any]:
    """Return the traces and spans of a file, out of the requests that may hold them."""
    rows = value if isinstance(value, list) else [value]
    flat: list[Any] = []
    for row in rows:
        data = row.get("data") if isinstance(row, dict) else None
        flat += data if isinstance(data, list) and "object" not in row else [row]
    return flat


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and value.get("object") in ("trace", "trace.span")


def _is_span(value: Any) -> bool:
    return _is_part(value) and isinstance(value.get("span_data"), dict)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Group spans by trace and yield the experiences of each trace."""
    heads: dict[str, Json] = {}
    spans: dict[str, list[Json]] = {}
    for number, raw_row in enumerate(_rows(value)):
        row = mapping(raw_row, f"spans[{number}]")
        if row.get("object") == "trace":
            heads[str(row.get("id"))] = row
        elif _is_span(row):
            spans.setdefault(str(row.get("trace_id")), []).append(row)
    if not spans:
        raise BadRecord("no spans")
    for position, (trace_id, members) in enumerate(spans.items()):
        head = heads.get(trace_id, {})
        info = {"name": head.get("workflow_name"), "group": head.get("group_id")}
        trace = trace_of_nodes(
            trace_id,
            [_node(span, number) for number, span in enumerate(members)],
            task=task_in(head.get("metadata"), *(span.get("metadata") for span in members)),
            info={key: item for key, item in info.items() if isinstance(item, str) and item},
        )
        yield from read_trace(NAME, trace, origin, options, position=position)


def _node(span: Json, number: int) -> Node:
    data = span["span_data"]
    role = _ROLES.get(str(data.get("type")), "other")
    error = span.get("error")
    failure = None
    if isinstance(error, dict):
        message = f"{error.get('message') or ''} {_error_text(error.get('data'))}".strip()
        failure = Failure(failure_kind(message, "tool_error" if role == "tool" else "exception"), message)
    response = data.get("response")
    output = data.get("output") if response is None else response
    return Node(
        id=_text(span.get("id")) or f"#{number}",
        parent=_text(span.get("parent_id")),
        role=role,
        name=_text(data.get("name")) or "",
        start=moment(span.get("started_at")),
        input=data.get("input"),
        output=output,
        model=_text(data.get("model")),
        tools=response.get("tools") if isinstance(response, dict) else None,
        usage=data.get("usage"),
        failure=failure,
    )


def _error_text(data: Any) -> str:
    text = data.get("error") if isinstance(data, dict) else None
    return text if isinstance(text, str) else ""


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


FORMAT = Format(name=NAME, unit="file", matches=matches, read=guarded(read), summary="OpenAI Agents SDK traces")

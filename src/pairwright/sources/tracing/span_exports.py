"""Rows of tracing tools with one span or trace a row, declared by the names of their fields:

    braintrust   {span_id, root_span_id, span_parents[], span_attributes{type, name}, input, output, scores{}, expected}
    opik         {id, trace_id, parent_span_id, type, input, output, feedback_scores[{name, value}]}

Rows of one trace are joined (sources/tracing/span_nodes.py); a trace without spans is its own call. Scores are those of
the row and apply to what lies below it. task = a task id in the metadata, else a hash of the prompt; run = a number
derived from the trace id. Both are written from the schemas of the tools.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts, Reader, guarded
from pairwright.sources.fields import BadRecord, items, mapping, value_at
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, Score, task_in
from pairwright.sources.tracing.otel_spans import moment
from pairwright.sources.tracing.span_nodes import Node, Role, trace_of_nodes
from pairwright.sources.tracing.trace_to_experiences import read_trace

_ROLES: dict[str, Role] = {"llm": "call", "tool": "tool", "agent": "agent", "task": "agent"}


class _Fields(msgspec.Struct, frozen=True):
    """Where a tool keeps the parts of a span."""

    name: str
    keys: frozenset[str]  # that every row has
    id: tuple[str, ...]
    trace: tuple[str, ...]
    parent: tuple[str, ...]
    type: str
    title: str
    start: str
    scores: Callable[[Json], Json]


def _listed_scores(row: Json) -> Json:
    listed = row.get("feedback_scores")
    found = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return {str(item.get("name")): item.get("value") for item in found}


_BRAINTRUST = _Fields(
    "braintrust",
    frozenset({"span_id", "root_span_id", "span_attributes", "input", "output"}),
    ("span_id", "id"),
    ("root_span_id",),
    ("span_parents",),
    "span_attributes.type",
    "span_attributes.name",
    "metrics.start",
    lambda row: row["scores"] if isinstance(row.get("scores"), dict) else {},
)
_OPIK = _Fields(
    "opik",
    frozenset({"feedback_scores", "input", "output", "start_time"}),
    ("id",),
    ("trace_id", "id"),
    ("parent_span_id",),
    "type",
    "name",
    "start_time",
    _listed_scores,
)


def _format(fields: _Fields, summary: str) -> Format:
    def matches(value: Any) -> bool:
        rows = value if isinstance(value, list) else [value]
        return bool(rows) and all(isinstance(row, dict) and fields.keys <= row.keys() for row in rows[:3])

    return Format(name=fields.name, unit="file", matches=matches, read=_reader(fields), summary=summary)


def _reader(fields: _Fields) -> Reader:
    def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
        """Group rows by trace and yield the records of each."""
        traces: dict[str, list[Json]] = {}
        for number, item in enumerate(items(value if isinstance(value, list) else [value], "rows")):
            row = mapping(item, f"rows[{number}]")
            traces.setdefault(_first(row, fields.trace) or f"#{number}", []).append(row)
        if not traces:
            raise BadRecord("no rows")
        for position, (trace_id, rows) in enumerate(traces.items()):
            scores = [
                Score(str(name), item, _first(row, fields.id))
                for row in rows
                for name, item in fields.scores(row).items()
            ]
            root = next((row for row in rows if _first(row, fields.parent) is None), rows[0])
            trace = trace_of_nodes(
                trace_id,
                [_node(row, fields, number) for number, row in enumerate(rows)],
                scores=scores,
                task=task_in(root.get("metadata"), root),
                info={key: root[key] for key in ("name", "expected", "tags") if root.get(key)},
            )
            yield from read_trace(fields.name, trace, origin, options, position=position)

    return guarded(read)


def _node(row: Json, fields: _Fields, number: int) -> Node:
    kind, title, output = value_at(row, fields.type), value_at(row, fields.title), row.get("output")
    error = row.get("error") or row.get("error_info")
    message = "" if not error else error if isinstance(error, str) else str(value_at(error, "message") or error)
    # The choices of a response, without the response around them
    if isinstance(output, list) and output and all(isinstance(item, dict) and "message" in item for item in output):
        output = {"choices": output}
    return Node(
        id=_first(row, fields.id) or f"#{number}",
        parent=_first(row, fields.parent),
        role=_ROLES.get(str(kind), "other"),
        name=title if isinstance(title, str) else "",
        start=moment(value_at(row, fields.start)),
        input=row.get("input"),
        output=output,
        usage=row.get("usage") or row.get("metrics"),
        failure=Failure(failure_kind(message, "exception"), message) if message else None,
    )


def _first(row: Json, keys: tuple[str, ...]) -> str | None:
    """Return the first of these fields that is text; of a list of ids, the first one."""
    for key in keys:
        value = row.get(key)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str) and value:
            return value
    return None


BRAINTRUST_FORMAT = _format(_BRAINTRUST, "Braintrust spans")
OPIK_FORMAT = _format(_OPIK, "Opik traces and spans")

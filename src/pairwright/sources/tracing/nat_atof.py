"""Events of NeMo Agent Toolkit's ATOF: `{kind: scope | mark, scope_category: start | end, category, uuid, data}`.

A file is the lines of one run. A scope has an event for its start, with its input as `data`, and one for its end, with
its output. Model calls are scopes of category llm, tool runs those of category tool, whose `category_profile` has the
id of the call. Requests and responses have the shapes of their APIs (OpenAI, Gemini, Anthropic). A tool's result is the
`data` of its end. `metadata` of the first event may name the task; scores are marks of category "evaluation" or
"score" whose data has a `score` or `reward`.

task = a task id in the metadata, else a hash of the prompt; run = a number derived from the id of the root.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts, guarded
from pairwright.sources.fields import BadRecord, items, mapping
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, Score, task_in
from pairwright.sources.tracing.otel_spans import moment
from pairwright.sources.tracing.span_nodes import Node, Role, trace_of_nodes
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "nat-atof"
_ROLES: dict[str, Role] = {"llm": "call", "tool": "tool", "agent": "agent"}


def matches(value: Any) -> bool:
    rows = value if isinstance(value, list) else [value]
    return bool(rows) and all(isinstance(row, dict) and "atof_version" in row and "uuid" in row for row in rows[:3])


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Join the events of each scope to a node and yield the experiences of the file."""
    rows = items(value if isinstance(value, list) else [value], "events")
    starts: dict[str, Json] = {}
    ends: dict[str, Json] = {}
    scores: list[Score] = []
    places: list[Any] = []
    for number, raw_row in enumerate(rows):
        row = mapping(raw_row, f"events[{number}]")
        key, data = str(row.get("uuid")), row.get("data")
        places.append(row.get("metadata"))
        if row.get("kind") == "mark":
            if row.get("category") in ("evaluation", "score") and isinstance(data, dict):
                points = data.get("score", data.get("reward"))
                scores.append(Score(_text(row.get("name")) or "score", points, _text(row.get("parent_uuid"))))
        else:
            (ends if row.get("scope_category") == "end" else starts).setdefault(key, row)
    nodes = [_node(key, starts.get(key, {}), ends.get(key, {})) for key in {**starts, **ends}]
    if not nodes:
        raise BadRecord("no scopes")
    root = next((node for node in nodes if node.parent is None), nodes[0])
    trace = trace_of_nodes(root.id, nodes, scores=scores, task=task_in(*places), info={"name": root.name})
    yield from read_trace(NAME, trace, origin, options, position=origin.ordinal)


def _node(key: str, start: Json, end: Json) -> Node:
    row = start or end
    profile: Json = {}
    for event in (start, end):
        profile |= event["category_profile"] if isinstance(event.get("category_profile"), dict) else {}
    output = end.get("data")
    role = _ROLES.get(str(row.get("category")), "other")
    # The bare fields of an assistant's message: the message itself.
    if (
        role == "call"
        and isinstance(output, dict)
        and "role" not in output
        and ("content" in output or "tool_calls" in output)
    ):
        output = {"role": "assistant", **output} if not isinstance(output.get("content"), dict) else output
    error = output.get("error") if isinstance(output, dict) else None
    failure = Failure(failure_kind(error, "tool_error"), error) if isinstance(error, str) and error else None
    return Node(
        id=key,
        parent=_text(row.get("parent_uuid")),
        role=role,
        name=_text(row.get("name")) or "",
        start=moment(row.get("timestamp")),
        input=start.get("data"),
        output=output,
        model=_text(profile.get("model_name")),
        call_id=_text(profile.get("tool_call_id")),
        failure=failure,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


FORMAT = Format(name=NAME, unit="file", matches=matches, read=guarded(read), summary="NeMo Agent Toolkit ATOF events")

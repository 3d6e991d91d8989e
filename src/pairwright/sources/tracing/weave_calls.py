"""Weave calls: `{id, trace_id, parent_id, op_name, started_at, inputs, output, exception, summary}`, a call a row.

A file is a list or lines of calls, as `client.get_calls()` gives them or the query of the server streams them; calls of
one trace_id form a trace. The op of a call says what it is: ops of model clients (openai.chat.completions.create,
anthropic.Messages.create, google.genai..., litellm.completion, ...) are model calls; every other op is a tool run if
its attributes or its name say so.

task = a task id in the inputs or attributes of the root, else a hash of the prompt; run = a number derived from the
trace id. Scores: `feedback` of a call (`summary.weave.feedback`, or beside it), and the `scores` in the output of an
evaluation's predict_and_score.
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

NAME = "weave"
# The ends of names of ops that are model calls, without their version.
_CALL_OPS = (
    "completions.create", "completions.parse", "responses.create", "responses.parse", "messages.create",
    "messages.stream", "generate_content", "generatecontent", "litellm.completion", "litellm.acompletion",
    "chat.complete", "client.chat", "chat_completion", "bedrockruntime.converse", "completion.create",
)  # fmt: skip
_SCORE_PREFIXES = ("wandb.runnable.", "wandb.annotation.")


def matches(value: Any) -> bool:
    rows = value if isinstance(value, list) else [value]
    return bool(rows) and all(map(_is_call, rows[:3]))


def _is_call(value: Any) -> bool:
    keys = ("id", "trace_id", "op_name", "inputs", "started_at")
    return isinstance(value, dict) and all(key in value for key in keys)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Group calls by trace and yield the experiences of each trace."""
    rows = items(value if isinstance(value, list) else [value], "calls")
    traces: dict[str, list[Json]] = {}
    for number, raw_row in enumerate(rows):
        row = mapping(raw_row, f"calls[{number}]")
        traces.setdefault(_text(row.get("trace_id")) or f"#{number}", []).append(row)
    if not traces:
        raise BadRecord("no calls")
    for position, (trace_id, members) in enumerate(traces.items()):
        nodes = [_node(row) for row in members]
        ids = {node.id for node in nodes}
        root = next((row for row in members if _text(row.get("parent_id")) not in ids), members[0])
        info = {"name": _op(root), "thread": _text(root.get("thread_id"))}
        trace = trace_of_nodes(
            trace_id,
            nodes,
            scores=[score for row in members for score in _scores(row)],
            task=task_in(root.get("inputs"), root.get("attributes")),
            info={key: item for key, item in info.items() if item is not None},
        )
        yield from read_trace(NAME, trace, origin, options, position=position)


def _node(row: Json) -> Node:
    error = row.get("exception")
    role = _role(row)
    failure = None
    if isinstance(error, str) and error:
        failure = Failure(failure_kind(error, "tool_error" if role == "tool" else "exception"), error)
    inputs = row.get("inputs")
    if isinstance(inputs, dict):
        inputs = {key: item for key, item in inputs.items() if key != "self"}
    return Node(
        id=_text(row.get("id")) or "",
        parent=_text(row.get("parent_id")),
        role=role,
        name=_op(row),
        start=moment(row.get("started_at")),
        input=inputs,
        output=row.get("output"),
        failure=failure,
    )


def _role(row: Json) -> Role:
    name = _op(row).lower()
    attributes = row.get("attributes")
    kind = attributes.get("kind") if isinstance(attributes, dict) else None
    if kind == "llm" or name.endswith(_CALL_OPS):
        return "call"
    if kind == "tool" or name.endswith((".invoke_tool", "_tool", ".tool")):
        return "tool"
    return "agent" if kind == "agent" else "other"


def _op(row: Json) -> str:
    """Return the name of an op: weave:///entity/project/op/openai.chat.completions.create:abc -> the last part."""
    name = _text(row.get("op_name")) or ""
    return name.rpartition("/op/")[2].partition(":")[0]


def _scores(row: Json) -> list[Score]:
    """Return the scores of a call: its feedback, and those that an evaluation wrote to its output."""
    target = _text(row.get("id"))
    scores: list[Score] = []
    summary = row.get("summary")
    inside = summary.get("weave") if isinstance(summary, dict) else None
    for place in (row, inside):
        feedback = place.get("feedback") if isinstance(place, dict) else None
        for item in feedback if isinstance(feedback, list) else ():
            kind, payload = (item.get("feedback_type"), item.get("payload")) if isinstance(item, dict) else ("", None)
            prefix = next((prefix for prefix in _SCORE_PREFIXES if str(kind).startswith(prefix)), None)
            if prefix is not None and isinstance(payload, dict):
                scores += _score_values(str(kind)[len(prefix) :], payload.get("output", payload.get("value")), target)
    output = row.get("output")
    if _op(row).endswith("predict_and_score") and isinstance(output, dict) and isinstance(output.get("scores"), dict):
        for name, result in output["scores"].items():
            scores += _score_values(str(name), result, target)
    return scores


def _score_values(name: str, result: Any, target: str | None) -> list[Score]:
    """Return a scorer's result, a value or an object of values by name."""
    if isinstance(result, dict):
        return [
            Score(f"{name}.{key}", item, target) for key, item in result.items() if not isinstance(item, dict | list)
        ]
    return [] if result is None else [Score(name, result, target)]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


FORMAT = Format(name=NAME, unit="file", matches=matches, read=guarded(read), summary="Weave calls")

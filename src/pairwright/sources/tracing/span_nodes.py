"""Nodes: spans with an input and an output, converted to a Trace in the same way for all tools.

A `SpanFormat` declares how to recognise rows and convert them to nodes (sources/tracing/span_formats.py). Inputs and
outputs may be JSON text, in any shape of sources/shapes/any_messages.py. An unreadable call is refused with its reason;
the others are read. Without any call, the agents' spans are the calls, else the roots.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from pairwright.errors import PairwrightError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import BadRecord, filled_text, items, mapping, text_at, value_at
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import (
    answers,
    conversation,
    decode_input,
    decode_json_text,
    decode_output,
    instructions_in,
    tools_in,
)
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, ModelCall, Score, ToolRun, Trace, outermost_of
from pairwright.sources.tracing.otel_spans import moment
from pairwright.sources.tracing.trace_to_experiences import read_trace

Role = Literal["call", "tool", "agent", "other"]
_INPUT_TOKENS = ("input_tokens", "prompt_tokens", "promptTokens", "inputTokens")
_OUTPUT_TOKENS = ("output_tokens", "completion_tokens", "completionTokens", "outputTokens")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One span. Spans are sorted by `start`; None keeps file order."""

    id: str
    parent: str | None
    role: Role
    name: str = ""
    start: int | float | None = None
    input: Any = None
    output: Any = None
    model: str | None = None
    tools: Any = None
    usage: Any = None
    call_id: str | None = None
    failure: Failure | None = None


def trace_of_nodes(
    trace_id: str | None,
    nodes: list[Node],
    *,
    scores: list[Score] | None = None,
    task: int | str | None = None,
    info: Json | None = None,
) -> Trace:
    """Convert nodes to a Trace: model calls and tool runs in order, and the reasons for unreadable calls."""
    starts = {node.id: node.start for node in nodes if node.start is not None}
    if len(starts) == len(nodes):
        nodes = sorted(nodes, key=lambda node: starts[node.id])
    parents = {node.id: node.parent for node in nodes}
    # A provider's call inside a framework's call is the same call: keep the outer one.
    wanted = outermost_of([node.id for node in nodes if node.role == "call"], parents)
    if not wanted:
        agents = [node.id for node in nodes if node.role == "agent"]
        wanted = outermost_of(agents, parents) or {
            node.id for node in nodes if node.role != "tool" and node.parent not in parents
        }
    events: list[ModelCall | ToolRun] = []
    refused: list[str] = []
    for node in nodes:
        if node.id in wanted:
            try:
                events += _calls(node)
            except PairwrightError as error:  # other calls of the trace may be readable
                refused.append(f"span {node.id!r}: {error}")
        elif node.role == "tool":
            run = ToolRun(node.id, node.name, node.output, node.input, node.call_id, node.parent, node.failure)
            events.append(run)
    return Trace(trace_id, events, scores or [], parents, task, info or {}, refused)


def _calls(node: Node) -> list[ModelCall]:
    inputs, output = decode_input(node.input), decode_output(node.output)
    messages = conversation(inputs, "input", role="user")
    if not messages or messages[0].role not in ("system", "developer"):
        messages = (instructions_in(inputs) or instructions_in(output)) + messages
    call = ModelCall(
        id=node.id,
        input=messages,
        output=[],
        tools=tools_in(node.tools) or tools_in(inputs if isinstance(inputs, dict) else None),
        parent=node.parent,
        model=node.model or text_at(output, "model") or text_at(inputs, "model"),
        failure=node.failure,
        usage=usage_of(node.usage) or usage_of(output.get("usage") if isinstance(output, dict) else None),
    )
    return one_per_answer(call, answers(output, "output"))


def one_per_answer(call: ModelCall, alternatives: list[list[Message]]) -> list[ModelCall]:
    """Return a call once per alternative answer; an empty answer is still a call, which may have failed."""
    if len(alternatives) < 2:
        return [replace(call, output=alternatives[0] if alternatives else [])]
    return [replace(call, output=one, notes={**call.notes, "choice": n}) for n, one in enumerate(alternatives)]


def usage_of(value: Any) -> dict[str, int | float]:
    """Return the token counts of a usage object, under any of its usual names."""
    usage = decode_json_text(value)
    counts: dict[str, int | float] = {}
    if not isinstance(usage, dict):
        return counts
    for name, keys in (("input_tokens", _INPUT_TOKENS), ("output_tokens", _OUTPUT_TOKENS)):
        count = next((usage[key] for key in keys if usage.get(key) is not None), None)
        if isinstance(count, int | float) and not isinstance(count, bool):
            counts[name] = count
    return counts


_SAMPLE = 3  # rows checked by `matches`
_TEXTS = frozenset({"trace", "id", "parent", "error"})


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class SpanFormat:
    """A declared span format."""

    name: str
    summary: str
    is_row: Callable[[Any], bool]  # must hold for each of the first rows
    # Field of a node, "trace" or "error" -> paths in a row, best first; the first of a list of ids is used.
    # Without "trace", all rows are one trace.
    paths: Mapping[str, tuple[str, ...]]
    # (unit, rows of a trace) -> scores, task and info of the trace
    describe: Callable[[Any, list[Json]], Json]
    roles: Mapping[str, Role]  # value of the field "role" -> role; unlisted values are "other"
    hook: Callable[[Json], Json] = lambda row: {}  # fields of a row that paths cannot express
    rows: Callable[[Any], list[Any]] = listed
    failure: str | None = None  # default failure kind; None: by the role of the span
    unit: Literal["record", "file"] = "file"

    def matches(self, value: Any) -> bool:
        rows = self.rows(value)
        return bool(rows) and all(map(self.is_row, rows[:_SAMPLE]))

    def read(self, value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
        """Group rows by trace and yield the experiences of each trace."""
        traces: dict[str, list[Json]] = {}
        for number, item in enumerate(items(self.rows(value), "rows")):
            row = mapping(item, f"rows[{number}]")
            own = self._value(row, "trace") or f"#{number}" if "trace" in self.paths else ""
            traces.setdefault(own, []).append(row)
        if not traces:
            raise BadRecord("no spans")
        for position, (trace_id, rows) in enumerate(traces.items(), origin.ordinal):
            nodes = [self._node(row, number) for number, row in enumerate(rows)]
            trace = trace_of_nodes(**{"trace_id": trace_id, "nodes": nodes, **self.describe(value, rows)})
            yield from read_trace(self.name, trace, origin, position=position)

    def _node(self, row: Json, number: int) -> Node:
        fields = {name: self._value(row, name) for name in self.paths} | self.hook(row)
        role = self.roles.get(str(fields.get("role")), "other")
        error, failure = fields.get("error"), None
        if error is not None:
            kind = self.failure or ("tool_error" if role == "tool" else "exception")
            failure = Failure(failure_kind(error, kind), error)
        return Node(
            id=filled_text(fields.get("id")) or f"#{number}",
            parent=filled_text(fields.get("parent")),
            role=role,
            name=filled_text(fields.get("name")) or "",
            start=moment(fields.get("start")),
            model=filled_text(fields.get("model")),
            call_id=filled_text(fields.get("call_id")),
            failure=failure,
            **{name: fields.get(name) for name in ("input", "output", "tools", "usage")},
        )

    def _value(self, row: Json, name: str) -> Any:
        """Return the first value of a field; for an id or error, the first text."""
        for path in self.paths[name]:
            value = value_at(row, path)
            if name in _TEXTS:
                value = filled_text(value[0] if isinstance(value, list) and value else value)
            if value is not None:
                return value
        return None

    @property
    def format(self) -> Format:
        return Format(self.name, self.unit, self.matches, self.read, self.summary)

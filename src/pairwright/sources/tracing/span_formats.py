"""Formats of tracing tools that log one span a row, declared: how a row is told, where its fields are, and a hook.

A file is a list or lines of rows, which are joined to traces (sources/tracing/span_nodes.py); a trace without spans is
its own call. `paths` names the fields of a span; `hook` returns those that a path cannot name; `describe` returns the
scores, task and info of a trace. run = a number derived from the id of the trace; task = a task id in the places that
each format names, else a hash of the prompt.

    litellm        {id, trace_id, call_type, model, messages, response}: payloads of callbacks, and spend logs of the
                   proxy, which have `request_id`. Rows of one session_id, else of one trace_id, are a trace. Tools are
                   in `model_parameters`, scores in the metadata: `reward`, `score`, `scores{}`. A row whose messages
                   were redacted is refused, and so is a failed call without a response
    weave          {id, trace_id, parent_id, op_name, started_at, inputs, output, exception, summary}: the op says what
                   a call is. Scores are `feedback`, and `scores` in the output of an evaluation's predict_and_score
    mlflow         {info{trace_id, assessments[], tags, trace_metadata}, data{spans[]}} or rows of `search_traces`.
                   Attributes are JSON text each. Feedback of assessments are scores, of the span that they name or of
                   the trace ("yes" is 1, "no" is 0), unless overridden or failed; expectations are kept in info
    openai-agents  {object: trace} and {object: trace.span, trace_id, parent_id, span_data{type}}, or requests of the
                   tracing API, {data: [...]}. The SDK's own export of a response span has only its id: such a call is
                   refused, since what the model was given is not in the file
    nat-atof       {kind: scope | mark, scope_category: start | end, category, uuid, data}: the lines of one run. The
                   input is the `data` of a scope's start, the output that of its end. Scores are marks of category
                   "evaluation" or "score" whose data has a `score` or `reward`
    braintrust     {span_id, root_span_id, span_parents[], span_attributes{type, name}, input, output, scores{}}
    opik           {id, trace_id, parent_span_id, type, input, output, feedback_scores[{name, value}]}

Braintrust and Opik are written from the schemas of the tools.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pairwright.records.json_text import decode
from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import (
    BadRecord,
    filled_text,
    items,
    mapping,
    object_or_empty,
    optional_items,
    optional_mapping,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import decode_json_text
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, Score, task_in
from pairwright.sources.tracing.otel_spans import moment
from pairwright.sources.tracing.span_nodes import Node, Role, trace_of_nodes
from pairwright.sources.tracing.trace_to_experiences import read_trace

_SAMPLE = 3  # rows that a format is told by
_TEXTS = frozenset({"trace", "id", "parent", "error"})


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True)
class SpanFormat:
    """A declared format of spans."""

    name: str
    summary: str
    is_row: Callable[[Any], bool]  # of each of the first rows
    # Field of a node, "trace" or "error": where a row may have it, best first; of a list of ids, the first one counts.
    # Without "trace" all rows are one trace.
    paths: Mapping[str, tuple[str, ...]]
    # Scores, task and info of a trace, from the unit and the rows of the trace
    describe: Callable[[Any, list[Json]], Json]
    roles: Mapping[str, Role]  # by the field "role"; "other" for what is not listed
    hook: Callable[[Json], Json] = lambda row: {}  # fields of a row that paths cannot name
    rows: Callable[[Any], list[Any]] = _listed
    failure: str | None = None  # the kind of a failure that names none; None: by the role of the span
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
            yield from read_trace(self.name, trace, origin, options, position=position)

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
        """Return the first value of a field; of an id or error, the first text."""
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


def _has(*alternatives: str) -> Callable[[Any], bool]:
    """Return a test for rows that have all keys of one of these lists of names."""
    wanted = [frozenset(names.split()) for names in alternatives]
    return lambda row: isinstance(row, dict) and any(keys <= row.keys() for keys in wanted)


def _present(**values: Any) -> Json:
    return {key: value for key, value in values.items() if value is not None}


def _decoded(value: Any) -> Any:
    """Decode JSON text of any value; text that is none stays as it is."""
    try:
        return decode(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _object(value: Any) -> Json:
    return object_or_empty(decode_json_text(value))


_REDACTED = "redacted-by-litellm"


def _litellm(row: Json) -> Json:
    parameters = _object(row.get("model_parameters"))
    inputs, output = decode_json_text(row.get("messages")), _decoded(row.get("response"))
    if _is_redacted(inputs) or _is_redacted(output):
        inputs, output = {_REDACTED: None}, None  # of no shape: refused, with this key in the reason
    return {
        "role": "call",
        "input": inputs,
        "output": None if filled_text(row.get("error_str")) else output,
        "tools": parameters.get("tools") or parameters.get("functions"),
        "usage": row,
    }


def _is_redacted(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_redacted(item) for item in value[:3])
    if isinstance(value, dict):
        return _REDACTED in (value.get("content"), value.get("text"))
    return bool(value == _REDACTED)


def _describe_litellm(unit: Any, rows: list[Json]) -> Json:
    metadata = [_object(row.get("metadata")) for row in rows]
    own = [_object(place.get("requester_metadata")) for place in metadata]
    scores: list[Score] = []
    for row, *places in zip(rows, metadata, own, strict=True):
        target = filled_text(row.get("id")) or filled_text(row.get("request_id"))
        for place in places:
            scores += [Score(key, place[key], target) for key in ("reward", "score") if place.get(key) is not None]
            scores += [Score(str(key), item, target) for key, item in _object(place.get("scores")).items()]
    return {"scores": scores, "task": task_in(*metadata, *own)}


LITELLM = SpanFormat(
    "litellm",
    "LiteLLM logs",
    _has("messages response call_type model_parameters", "messages response call_type request_id spend"),
    {
        "trace": ("session_id", "trace_id", "id", "request_id"),
        "id": ("id", "request_id"),
        "start": ("startTime",),
        "model": ("model",),
        "error": ("error_str",),
    },
    _describe_litellm,
    hook=_litellm,
    roles={"call": "call"},
)

# The ends of names of ops that are model calls, without their version.
_CALL_OPS = (
    "completions.create", "completions.parse", "responses.create", "responses.parse", "messages.create",
    "messages.stream", "generate_content", "generatecontent", "litellm.completion", "litellm.acompletion",
    "chat.complete", "client.chat", "chat_completion", "bedrockruntime.converse", "completion.create",
)  # fmt: skip
_SCORE_PREFIXES = ("wandb.runnable.", "wandb.annotation.")


def _weave(row: Json) -> Json:
    op, inputs = _op(row), row.get("inputs")
    kind, name = object_or_empty(row.get("attributes")).get("kind"), op.lower()
    if name.endswith(_CALL_OPS):
        kind = "llm"
    elif kind != "llm" and name.endswith((".invoke_tool", "_tool", ".tool")):
        kind = "tool"
    if isinstance(inputs, dict):
        inputs = {key: item for key, item in inputs.items() if key != "self"}
    return {"role": kind, "name": op, "input": inputs}


def _op(row: Json) -> str:
    """Return the name of an op: weave:///entity/project/op/openai.chat.completions.create:abc -> the last part."""
    return (filled_text(row.get("op_name")) or "").rpartition("/op/")[2].partition(":")[0]


def _describe_weave(unit: Any, rows: list[Json]) -> Json:
    ids = {filled_text(row.get("id")) or f"#{number}" for number, row in enumerate(rows)}
    root = next((row for row in rows if filled_text(row.get("parent_id")) not in ids), rows[0])
    return {
        "scores": [score for row in rows for score in _weave_scores(row)],
        "task": task_in(root.get("inputs"), root.get("attributes")),
        "info": _present(name=_op(root), thread=filled_text(root.get("thread_id"))),
    }


def _weave_scores(row: Json) -> Iterator[Score]:
    """Yield the scores of a call: its feedback, and those that an evaluation wrote to its output."""
    results: list[tuple[str, Any]] = []
    for place in (row, object_or_empty(row.get("summary")).get("weave")):
        feedback = object_or_empty(place).get("feedback")
        for item in feedback if isinstance(feedback, list) else ():
            kind, payload = str(object_or_empty(item).get("feedback_type")), object_or_empty(item).get("payload")
            prefix = next((prefix for prefix in _SCORE_PREFIXES if kind.startswith(prefix)), None)
            if prefix is not None and isinstance(payload, dict):
                results.append((kind[len(prefix) :], payload.get("output", payload.get("value"))))
    if _op(row).endswith("predict_and_score"):
        results += object_or_empty(object_or_empty(row.get("output")).get("scores")).items()
    target = filled_text(row.get("id"))
    for name, result in results:  # a value, or an object of values by name
        if isinstance(result, dict):
            plain = {key: item for key, item in result.items() if not isinstance(item, dict | list)}
            yield from (Score(f"{name}.{key}", item, target) for key, item in plain.items())
        elif result is not None:
            yield Score(str(name), result, target)


WEAVE = SpanFormat(
    "weave",
    "Weave calls",
    _has("id trace_id op_name inputs started_at"),
    {
        "trace": ("trace_id",),
        "id": ("id",),
        "parent": ("parent_id",),
        "start": ("started_at",),
        "output": ("output",),
        "error": ("exception",),
    },
    _describe_weave,
    hook=_weave,
    roles={"llm": "call", "tool": "tool", "agent": "agent"},
)

_RATINGS = {"yes": 1.0, "no": 0.0}


def _mlflow_spans(value: Any) -> list[Any]:
    """Return the spans of a trace, or of a row of traces."""
    trace = object_or_empty(value)
    data = trace.get("data")
    spans = decode_json_text(data.get("spans") if isinstance(data, dict) else trace.get("spans"))
    return spans if isinstance(spans, list) else []


def _is_mlflow_span(span: Any) -> bool:
    attributes = object_or_empty(object_or_empty(span).get("attributes"))
    return any(str(key).startswith("mlflow.span") for key in attributes)


def _mlflow(span: Json) -> Json:
    """Return the fields of a span of version 3, or of one of version 2, whose ids stand in `context`."""
    attributes = {key: _decoded(item) for key, item in optional_mapping(span.get("attributes"), "attributes").items()}
    status = _object(span.get("status"))
    code = status.get("code", span.get("status_code"))
    message = status.get("message", span.get("status_message"))
    return {
        "id": filled_text(span.get("span_id")) or _object(span.get("context")).get("span_id"),
        "parent": span.get("parent_span_id", span.get("parent_id")),
        "start": span.get("start_time_unix_nano", span.get("start_time")),
        "role": attributes.get("mlflow.spanType"),
        "input": attributes.get("mlflow.spanInputs"),
        "output": attributes.get("mlflow.spanOutputs"),
        "model": attributes.get("mlflow.llm.model"),
        "tools": attributes.get("mlflow.chat.tools"),
        "usage": attributes.get("mlflow.chat.tokenUsage"),
        "call_id": attributes.get("tool_call_id"),
        # STATUS_CODE_ERROR or plain ERROR, by version.
        "error": (filled_text(message) or "") if isinstance(code, str) and code.endswith("ERROR") else None,
    }


def _describe_mlflow(trace: Any, spans: list[Json]) -> Json:
    # Rows of `search_traces` have the fields of `info` at the top level.
    info = optional_mapping(trace.get("info"), "info") or trace
    tags, metadata = (_object(info.get(key)) for key in ("tags", "trace_metadata"))
    listed = optional_items(decode_json_text(info.get("assessments")), "assessments")
    expectations: Json = {}
    scores: list[Score] = []
    for number, item in enumerate(listed):
        item = mapping(item, f"assessments[{number}]")
        name = filled_text(item.get("assessment_name")) or filled_text(item.get("name")) or "feedback"
        feedback = item.get("feedback")
        if isinstance(item.get("expectation"), dict):
            expectations[name] = item["expectation"].get("value")
        if isinstance(feedback, dict) and item.get("valid") is not False and not feedback.get("error"):
            value = feedback.get("value")
            value = _RATINGS.get(value.lower(), value) if isinstance(value, str) else value
            scores.append(Score(name, value, filled_text(item.get("span_id"))))
    trace_id = info.get("trace_id", info.get("request_id"))  # request_id: before version 3
    return {
        "trace_id": trace_id if isinstance(trace_id, str) else None,
        "scores": scores,
        "task": task_in(tags, metadata),
        "info": _present(
            name=tags.get("mlflow.traceName"),
            session_id=metadata.get("mlflow.trace.session"),
            expectations=expectations or None,
        ),
    }


MLFLOW = SpanFormat(
    "mlflow",
    "MLflow traces",
    _is_mlflow_span,
    {"name": ("name",)},
    _describe_mlflow,
    hook=_mlflow,
    roles={"CHAT_MODEL": "call", "LLM": "call", "TOOL": "tool", "AGENT": "agent"},
    rows=_mlflow_spans,
    unit="record",
)


def _agents_spans(value: Any) -> list[Any]:
    """Return the spans of a file, out of the requests that may hold them; the traces are left to `_describe_agents`."""
    return [row for row in _agents_rows(value) if object_or_empty(row).get("object") != "trace"]


def _agents_rows(value: Any) -> list[Any]:
    flat: list[Any] = []
    for row in _listed(value):
        data = row.get("data") if isinstance(row, dict) else None
        flat += data if isinstance(data, list) and "object" not in row else [row]
    return flat


def _is_agents_span(row: Any) -> bool:
    return isinstance(row, dict) and row.get("object") == "trace.span" and isinstance(row.get("span_data"), dict)


def _agents(span: Json) -> Json:
    data, error = object_or_empty(span.get("span_data")), span.get("error")
    response = data.get("response")
    message = None
    if isinstance(error, dict):
        reason = filled_text(object_or_empty(error.get("data")).get("error"))
        message = f"{error.get('message') or ''} {reason or ''}".strip()
    return {
        **{name: data.get(key) for name, key in (("role", "type"), ("name", "name"), ("input", "input"))},
        **{name: data.get(name) for name in ("model", "usage")},
        "output": data.get("output") if response is None else response,
        "tools": object_or_empty(response).get("tools"),
        "error": message,
    }


def _describe_agents(unit: Any, spans: list[Json]) -> Json:
    rows = [row for row in _agents_rows(unit) if isinstance(row, dict) and row.get("object") == "trace"]
    head = next((row for row in rows if row.get("id") == spans[0].get("trace_id")), {})
    return {
        "task": task_in(head.get("metadata"), *(span.get("metadata") for span in spans)),
        "info": _present(name=filled_text(head.get("workflow_name")), group=filled_text(head.get("group_id"))),
    }


OPENAI_AGENTS = SpanFormat(
    "openai-agents",
    "OpenAI Agents SDK traces",
    _is_agents_span,
    {"trace": ("trace_id",), "id": ("id",), "parent": ("parent_id",), "start": ("started_at",)},
    _describe_agents,
    hook=_agents,
    roles={"generation": "call", "response": "call", "function": "tool"},
    rows=_agents_spans,
)


def _scopes(value: Any) -> list[Any]:
    """Join the events of each scope: {start, end}; marks are left to `_describe_atof`."""
    scopes: dict[str, Any] = {}
    for number, row in enumerate(_listed(value)):
        if not isinstance(row, dict):
            scopes[f"#{number}"] = row
        elif row.get("kind") != "mark":
            side = "end" if row.get("scope_category") == "end" else "start"
            scopes.setdefault(str(row.get("uuid")), {}).setdefault(side, row)
    return list(scopes.values())


def _is_scope(scope: Any) -> bool:
    events = [scope[side] for side in ("start", "end") if side in scope] if isinstance(scope, dict) else []
    return any(isinstance(event, dict) and "atof_version" in event and "uuid" in event for event in events)


def _atof(scope: Json) -> Json:
    start, end = scope.get("start", {}), scope.get("end", {})
    row, output = start or end, end.get("data")
    profile = {**object_or_empty(start.get("category_profile")), **object_or_empty(end.get("category_profile"))}
    has_answer = isinstance(output, dict) and "role" not in output and ("content" in output or "tool_calls" in output)
    # The bare fields of an assistant's message: the message itself.
    if row.get("category") == "llm" and has_answer and not isinstance(output.get("content"), dict):
        output = {"role": "assistant", **output}
    return {
        "id": str(row.get("uuid")),
        "parent": row.get("parent_uuid"),
        "role": row.get("category"),
        "name": row.get("name"),
        "start": row.get("timestamp"),
        "input": start.get("data"),
        "output": output,
        "model": profile.get("model_name"),
        "call_id": profile.get("tool_call_id"),
        "error": filled_text(object_or_empty(output).get("error")),
    }


def _describe_atof(unit: Any, scopes: list[Json]) -> Json:
    fields = [_atof(scope) for scope in scopes]
    root = next((one for one in fields if filled_text(one["parent"]) is None), fields[0])
    scores: list[Score] = []
    for row in _listed(unit):
        data = row.get("data")
        if row.get("kind") == "mark" and row.get("category") in ("evaluation", "score") and isinstance(data, dict):
            name, points = filled_text(row.get("name")) or "score", data.get("score", data.get("reward"))
            scores.append(Score(name, points, filled_text(row.get("parent_uuid"))))
    return {
        "trace_id": root["id"],
        "scores": scores,
        "task": task_in(*(row.get("metadata") for row in _listed(unit))),
        "info": {"name": filled_text(root["name"]) or ""},
    }


NAT_ATOF = SpanFormat(
    "nat-atof",
    "NeMo Agent Toolkit ATOF events",
    _is_scope,
    {},
    _describe_atof,
    hook=_atof,
    roles={"llm": "call", "tool": "tool", "agent": "agent"},
    rows=_scopes,
    failure="tool_error",
)


def _logged(row: Json) -> Json:
    output, error = row.get("output"), row.get("error") or row.get("error_info")
    # The choices of a response, without the response around them
    if isinstance(output, list) and output and all(isinstance(item, dict) and "message" in item for item in output):
        output = {"choices": output}
    message = error if isinstance(error, str) else str(value_at(error, "message") or error)
    return {
        "output": output,
        "usage": row.get("usage") or row.get("metrics"),
        "error": message if error else None,
    }


def _describe_logged(id_key: str, parent_key: str) -> Callable[[Any, list[Json]], Json]:
    def describe(unit: Any, rows: list[Json]) -> Json:
        root = next((row for row in rows if not row.get(parent_key)), rows[0])
        scores: list[Score] = []
        for row in rows:
            listed = row.get("feedback_scores")
            found = [object_or_empty(item) for item in listed] if isinstance(listed, list) else []
            named = object_or_empty(row.get("scores")) | {str(item.get("name")): item.get("value") for item in found}
            target = filled_text(row.get(id_key)) or filled_text(row.get("id"))
            scores += [Score(str(name), item, target) for name, item in named.items()]
        return {
            "scores": scores,
            "task": task_in(root.get("metadata"), root),
            "info": {key: root[key] for key in ("name", "expected", "tags") if root.get(key)},
        }

    return describe


_LOGGED_ROLES: dict[str, Role] = {"llm": "call", "tool": "tool", "agent": "agent", "task": "agent"}
BRAINTRUST = SpanFormat(
    "braintrust",
    "Braintrust spans",
    _has("span_id root_span_id span_attributes input output"),
    {
        "trace": ("root_span_id",),
        "id": ("span_id", "id"),
        "parent": ("span_parents",),
        "role": ("span_attributes.type",),
        "name": ("span_attributes.name",),
        "start": ("metrics.start",),
        "input": ("input",),
    },
    _describe_logged("span_id", "span_parents"),
    hook=_logged,
    roles=_LOGGED_ROLES,
    failure="exception",
)
OPIK = SpanFormat(
    "opik",
    "Opik traces and spans",
    _has("feedback_scores input output start_time"),
    {
        "trace": ("trace_id", "id"),
        "id": ("id",),
        "parent": ("parent_span_id",),
        "role": ("type",),
        "name": ("name",),
        "start": ("start_time",),
        "input": ("input",),
    },
    _describe_logged("id", "parent_span_id"),
    hook=_logged,
    roles=_LOGGED_ROLES,
    failure="exception",
)

DECLARED = {one.name: one.format for one in (MLFLOW, WEAVE, BRAINTRUST, OPIK, OPENAI_AGENTS, LITELLM, NAT_ATOF)}

"""MLflow 3 traces: `{info{trace_id, assessments[], tags, trace_metadata}, data{spans[]}}`, as `Trace.to_json` writes.

A file is one trace, a list or lines of traces, or rows of `search_traces` with `spans` and `assessments`. Attributes of
a span are JSON text each: `mlflow.spanType`, `mlflow.spanInputs`, `mlflow.spanOutputs`, `mlflow.chat.tools`,
`mlflow.chat.tokenUsage`. Model calls are spans of type CHAT_MODEL or LLM, tool runs those of type TOOL.

task = a task id in the tags or metadata, else a hash of the prompt; run = a number derived from the trace id. Feedback
of assessments are scores, of the span they name or of the whole trace; "yes" and "no", which MLflow's judges answer,
are 1 and 0. Feedback that was overridden or has an error is left out; expectations are kept in `info`.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.json_text import decode
from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts, guarded
from pairwright.sources.fields import BadRecord, mapping, optional_items, optional_mapping
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import decode_json_text
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, Score, task_in
from pairwright.sources.tracing.otel_spans import moment
from pairwright.sources.tracing.span_nodes import Node, Role, trace_of_nodes
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "mlflow"
_ROLES: dict[str, Role] = {"CHAT_MODEL": "call", "LLM": "call", "TOOL": "tool", "AGENT": "agent"}
_RATINGS = {"yes": 1.0, "no": 0.0}


def matches(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    spans = _spans(value)
    return bool(spans) and all(map(_is_span, spans[:3]))


def _spans(value: Json) -> list[Any]:
    """Return the spans of a trace, or of a row of traces."""
    data = value.get("data")
    spans = decode_json_text(data.get("spans") if isinstance(data, dict) else value.get("spans"))
    return spans if isinstance(spans, list) else []


def _is_span(span: Any) -> bool:
    attributes = span.get("attributes") if isinstance(span, dict) else None
    return isinstance(attributes, dict) and any(str(key).startswith("mlflow.span") for key in attributes)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Convert the spans of a trace to nodes and yield its experiences."""
    trace = mapping(value, "trace")
    # Rows of `search_traces` have the fields of `info` at the top level.
    info = optional_mapping(trace.get("info"), "info") or trace
    nodes = [_node(mapping(span, f"spans[{n}]"), n) for n, span in enumerate(_spans(trace))]
    if not nodes:
        raise BadRecord("no spans")
    tags, metadata = (_plain_mapping(info.get(key)) for key in ("tags", "trace_metadata"))
    listed = optional_items(decode_json_text(info.get("assessments")), "assessments")
    assessments = [mapping(item, f"assessments[{n}]") for n, item in enumerate(listed)]
    expectations = {
        _name(item): item["expectation"].get("value") for item in assessments if _holds(item, "expectation")
    }
    facts = {
        "name": tags.get("mlflow.traceName"),
        "session_id": metadata.get("mlflow.trace.session"),
        "expectations": expectations or None,
    }
    trace_id = info.get("trace_id", info.get("request_id"))  # request_id: before version 3
    yield from read_trace(
        NAME,
        trace_of_nodes(
            trace_id if isinstance(trace_id, str) else None,
            nodes,
            scores=[_score(item) for item in assessments if _counts(item)],
            task=task_in(tags, metadata),
            info={key: item for key, item in facts.items() if item is not None},
        ),
        origin,
        options,
        position=origin.ordinal,
    )


def _node(span: Json, number: int) -> Node:
    """Convert a span of version 3, or one of version 2, whose ids stand in `context`."""
    attributes = optional_mapping(span.get("attributes"), "attributes")
    context = _plain_mapping(span.get("context"))
    parent = span.get("parent_span_id", span.get("parent_id"))
    status = _plain_mapping(span.get("status"))
    code = status.get("code", span.get("status_code"))
    message = status.get("message", span.get("status_message"))
    role = _ROLES.get(str(_decode(attributes.get("mlflow.spanType"))), "other")
    failure = None
    # STATUS_CODE_ERROR or plain ERROR, by version.
    if isinstance(code, str) and code.endswith("ERROR"):
        message = message if isinstance(message, str) else ""
        failure = Failure(failure_kind(message, "tool_error" if role == "tool" else "exception"), message)
    inputs = _decode(attributes.get("mlflow.spanInputs"))
    model = _decode(attributes.get("mlflow.llm.model"))
    return Node(
        # Without an id the position serves: the span is still read, only no other can name it as parent.
        id=_text(span.get("span_id")) or _text(context.get("span_id")) or f"#{number}",
        parent=_text(parent),
        role=role,
        name=_text(span.get("name")) or "",
        start=moment(span.get("start_time_unix_nano", span.get("start_time"))),
        input=inputs,
        output=_decode(attributes.get("mlflow.spanOutputs")),
        model=_text(model),
        tools=_decode(attributes.get("mlflow.chat.tools")),
        usage=_decode(attributes.get("mlflow.chat.tokenUsage")),
        call_id=_text(_decode(attributes.get("tool_call_id"))),
        failure=failure,
    )


def _decode(value: Any) -> Any:
    """Decode an attribute, which is JSON text; text that is none stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return decode(value)
    except (ValueError, RecursionError):
        return value


def _counts(item: Json) -> bool:
    return _holds(item, "feedback") and item.get("valid") is not False and not item["feedback"].get("error")


def _holds(item: Json, kind: str) -> bool:
    return isinstance(item.get(kind), dict)


def _score(item: Json) -> Score:
    value = item["feedback"].get("value")
    value = _RATINGS.get(value.lower(), value) if isinstance(value, str) else value
    return Score(_name(item), value, _text(item.get("span_id")))


def _name(item: Json) -> str:
    return _text(item.get("assessment_name")) or _text(item.get("name")) or "feedback"


def _plain_mapping(value: Any) -> Json:
    value = decode_json_text(value)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


FORMAT = Format(name=NAME, unit="record", matches=matches, read=guarded(read), summary="MLflow traces")

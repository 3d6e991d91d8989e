"""Read OpenTelemetry spans from all supported files into one structure.

    OTLP JSON   {resourceSpans[{resource, scopeSpans[{spans[]}]}]}, attributes as [{key, value: {stringValue, ...}}];
                log records of {resourceLogs} are attached to their span as events
    Phoenix     spans {name, context{trace_id, span_id}, span_kind, parent_id, status_code, attributes{}, events[]}, in
                a list, under {"spans"}, under user-defined names, or as rows with "attributes.*" columns
    SDK         the console exporter's spans: as Phoenix, with `status{status_code}`; the JavaScript SDK's have
                spanContext{traceId, spanId}, parentSpanContext, startTime [seconds, nanoseconds]
    Lightning   spans of agent-lightning's stores: {rollout_id, attempt_id, sequence_id, trace_id, span_id, ...}; all
                spans of an attempt are one trace, in the order of their sequence ids
    Tables      rows of the collector's ClickHouse exporter {TraceId, SpanId, ParentSpanId, SpanName, SpanAttributes,
                Timestamp, StatusCode, Events[]}, also with names such as span_attributes, and spans in `child_spans`

Attributes are flattened to one dict with dotted keys. The spans of a trace are sorted by start time, or kept in file
order if a span has no start time.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec

from pairwright.records.messages import Json
from pairwright.sources.fields import has, index, list_or_empty, object_or_empty, objects_in, text_at, texts_of
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, Score

_MAX_DEPTH = 12
Event = tuple[str, Json]  # (name, attributes)


class Span(msgspec.Struct, frozen=True):
    id: str
    trace: str
    parent: str | None
    name: str
    start: int | float | None
    attributes: Json
    events: list[Event]
    failure: Failure | None
    scores: list[Score]


# Paths of the ids of a span in all layouts; in a table, a path may be the name of a column.
_SPAN_IDS = ("spanId", "context.span_id", "spanContext.spanId")
_TRACE_IDS = ("traceId", "context.trace_id", "spanContext.traceId")


def is_span(value: Any) -> bool:
    if not has(value):
        return False
    contexts = (value.get("context"), value.get("spanContext"))
    if any(has(context, "trace_id", "span_id") or has(context, "traceId", "spanId") for context in contexts):
        return True
    is_logged = has(value, "traceId", "spanId", "name") or has(value, "rollout_id", "span_id", attributes=dict)
    return is_logged or _is_stored(value) or "context.span_id" in value


# Column of a table of spans (lower case, no underscores) -> name in OTLP JSON
_STORED = {
    "traceid": "traceId",
    "spanid": "spanId",
    "parentspanid": "parentSpanId",
    "spanname": "name",
    "spanattributes": "attributes",
    "timestamp": "startTime",
    "statuscode": "status_code",
    "statusmessage": "status_message",
    "events": "events",
    "annotations": "annotations",
}


def _is_stored(value: Any) -> bool:
    return has(value, SpanAttributes=dict, SpanId=str) or has(value, span_attributes=dict, span_id=str)


def holds_spans(value: Any) -> bool:
    """Whether a decoded file has one of the layouts above, judging by its first entries."""
    if isinstance(value, list):
        return bool(value) and (is_span(value[0]) or (isinstance(value[0], dict) and holds_spans(value[0])))
    if not isinstance(value, dict):
        return False
    if any(isinstance(value.get(key), list) for key in ("resourceSpans", "resourceLogs")) or is_span(value):
        return True
    groups = [next(iter(value.values()), None), value.get("spans") if "trace_id" in value else None]
    return any(map(is_span, [group[0] for group in groups if isinstance(group, list) and group]))


def traces_in(value: Any) -> list[list[Span]]:
    # By span id: log records, which become events of the span, and annotations stored outside the spans.
    logs: dict[str, list[Event]] = {}
    notes: dict[str, list[Any]] = {}
    raw = [span for span in _raw_spans(value, logs, notes, 0) if isinstance(span, dict)]  # also fills logs and notes
    traces: dict[str, list[Span]] = {}
    for number, raw_span in enumerate(raw):
        span = _span(raw_span, number, logs, notes)
        traces.setdefault(span.trace, []).append(span)
    start = attrgetter("start")
    for spans in traces.values():
        if None not in map(start, spans):
            spans.sort(key=start)
    return list(traces.values())


def _raw_spans(value: Any, logs: dict[str, list[Event]], notes: dict[str, list[Any]], depth: int) -> Iterator[Any]:
    """Yield the span objects in a value recursively, collecting log records in `logs` and annotations in `notes`."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _raw_spans(item, logs, notes, depth + 1)
    elif _is_stored(value):
        yield {name: item for key, item in value.items() if (name := _STORED.get(key.replace("_", "").lower()))}
        for child in list_or_empty(value.get("child_spans")):  # may be nested deeper than _MAX_DEPTH
            yield from _raw_spans(child, logs, notes, 1)
    elif is_span(value):
        yield value
    elif isinstance(value, dict):
        for note in objects_in(value.get("annotations")):
            notes.setdefault(str(note.get("span_id")), []).append(note)
        for resource in list_or_empty(value.get("resourceLogs")):
            _read_logs(resource, logs)
        # The levels of OTLP JSON; Phoenix has only `spans`.
        groups = [value[key] for key in ("resourceSpans", "scopeSpans", "spans") if key in value]
        if not groups and depth < 2:  # user-defined names
            groups = [item for item in value.values() if isinstance(item, list) and any(map(is_span, item[:1]))]
        for group in groups:
            yield from _raw_spans(group, logs, notes, depth + 1)


def _read_logs(resource: Any, logs: dict[str, list[Event]]) -> None:
    for scope in objects_in(object_or_empty(resource).get("scopeLogs")):
        for record in objects_in(scope.get("logRecords")):
            attributes = plain_attributes(record.get("attributes"))
            body = _any_value(record.get("body"), 0)
            name = record.get("eventName") or attributes.get("event.name")
            if isinstance(name, str):
                # Fields of the body override attributes of the same name.
                merged = {**attributes, **(body if isinstance(body, dict) else {"content": body})}
                logs.setdefault(str(record.get("spanId")), []).append((name, merged))


def _span(value: Json, number: int, logs: dict[str, list[Event]], notes: dict[str, list[Any]]) -> Span:
    """Convert a span object of any layout to a Span."""
    # Rows of a data frame have a column per attribute, e.g. "attributes.llm.model_name".
    columns = {key[len("attributes.") :]: item for key, item in value.items() if key.startswith("attributes.")}
    attributes = plain_attributes(value.get("attributes")) or _flat(columns)
    if isinstance(value.get("span_kind"), str):
        attributes.setdefault("openinference.span.kind", value["span_kind"])
    rollout = _rollout(value)
    span_id = text_at(value, *(("span_id",) if rollout is not None else ()), *_SPAN_IDS) or f"#{number}"
    events = [_event(event) for event in list_or_empty(value.get("events"))] + logs.get(span_id, [])
    for name, attributes_of_event in events:
        # This event holds attributes that newer conventions put on the span; the span's attributes override them.
        if name == "gen_ai.client.inference.operation.details":
            attributes = {**attributes_of_event, **attributes}
    if rollout is not None:
        start: int | float | None = index(value.get("sequence_id"))
    else:
        start = moment(value.get("startTimeUnixNano", value.get("start_time", value.get("startTime"))))
    return Span(
        id=span_id,
        trace=rollout or text_at(value, *_TRACE_IDS) or "",
        parent=text_at(value, "parentSpanId", "parent_id", "parentSpanContext.spanId"),
        name=text_at(value, "name") or "",
        start=start,
        attributes=attributes,
        events=events,
        failure=_failure(value, attributes, events),
        scores=_scores(value, attributes, events, span_id, notes),
    )


def _rollout(value: Json) -> str | None:
    """Return the rollout and attempt of an agent-lightning span, None for any other."""
    names = texts_of(value, "rollout_id", "attempt_id")
    return "/".join(names.values()) if "rollout_id" in names else None


def _failure(value: Json, attributes: Json, events: list[Event]) -> Failure | None:
    status = object_or_empty(value.get("status")) or {
        "code": value.get("status_code"),
        "message": value.get("status_message"),
    }
    code = status.get("code", status.get("status_code"))
    # The error code in OTLP JSON, the SDK and the ClickHouse exporter, and its protobuf number.
    if code not in ("STATUS_CODE_ERROR", "ERROR", "Error", 2, "2"):
        return None
    raised = next((event for name, event in events if name == "exception"), {})
    message = text_at(status, "message", "description") or text_at(raised, "exception.message") or ""
    kind = text_at(raised, "exception.type") or text_at(attributes, "exception.type", "error.type") or ""
    return Failure(failure_kind(f"{kind} {message}", "exception"), message or kind)


def _scores(
    value: Json, attributes: Json, events: list[Event], span_id: str, notes: dict[str, list[Any]]
) -> list[Score]:
    """Return the scores of a span: GenAI evaluation events, Phoenix annotations, `eval.<name>.score` attributes."""
    scores: list[Score] = []
    for name, event in events:
        if name == "gen_ai.evaluation.result":
            label = event.get("gen_ai.evaluation.name")
            points = event.get("gen_ai.evaluation.score.value", event.get("gen_ai.evaluation.score.label"))
            scores.append(Score(label if isinstance(label, str) else "score", points, span_id))
    listed = objects_in(value.get("annotations")) + objects_in(value.get("span_annotations"))
    for note in listed + notes.get(span_id, []):
        result = object_or_empty(note.get("result")) or note
        # The label ("correct") replaces a missing score.
        points = result.get("score") if result.get("score") is not None else result.get("label")
        scores.append(Score(note["name"] if isinstance(note.get("name"), str) else "score", points, span_id))
    for key, item in attributes.items():
        head, _, rest = key.partition(".")
        if head in ("eval", "annotation") and rest.endswith(".score"):
            scores.append(Score(rest.removesuffix(".score"), item, span_id))
        elif key == "reward":
            scores.append(Score("reward", item, span_id))
        elif key.startswith("agentlightning.reward.") and key.endswith(".value"):
            # A dimension of the rollout's reward: the first, unnamed or "primary" one is the reward.
            number = key.split(".")[2]
            label = attributes.get(f"agentlightning.reward.{number}.name")
            name = label if isinstance(label, str) and label != "primary" and number != "0" else "reward"
            scores.append(Score(name, item))
            if name == "reward" and isinstance(label, str) and label not in ("reward", "primary"):
                scores.append(Score(label, item))
    return scores


def _event(value: Any) -> Event:
    if not isinstance(value, dict):
        return "", {}
    name = value.get("name", value.get("Name"))
    return name if isinstance(name, str) else "", plain_attributes(value.get("attributes", value.get("Attributes")))


def plain_attributes(value: Any) -> Json:
    """Return attributes, a list of {key, value} or nested objects, as one flat dict."""
    if isinstance(value, list):
        pairs = [item for item in objects_in(value) if isinstance(item.get("key"), str)]
        return {item["key"]: _any_value(item.get("value"), 0) for item in pairs}
    return _flat(value) if isinstance(value, dict) else {}


def _any_value(value: Any, depth: int) -> Any:
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return None
    for key, item in value.items():
        if key in ("stringValue", "boolValue", "bytesValue", "doubleValue"):
            return item
        if key == "intValue":  # a 64-bit integer is text in protobuf's JSON
            return int(item) if isinstance(item, str) and len(item) < 30 and item.lstrip("-").isdecimal() else item
        if key == "arrayValue" and isinstance(item, dict):
            return [_any_value(inner, depth + 1) for inner in list_or_empty(item.get("values"))]
        if key == "kvlistValue" and isinstance(item, dict):
            pairs = objects_in(item.get("values"))
            return {str(pair.get("key")): _any_value(pair.get("value"), depth + 1) for pair in pairs}
    return None


def _flat(value: Json, prefix: str = "", depth: int = 0) -> Json:
    """Flatten nested attributes to dotted keys; lists of objects under `llm` get numbered keys, other lists are kept.

    >>> _flat({"llm": {"input_messages": [{"message": {"role": "user"}}]}, "tags": ["a"]})
    {'llm.input_messages.0.message.role': 'user', 'tags': ['a']}
    """
    flat: Json = {}
    for key, item in value.items():
        path = f"{prefix}{key}"
        in_llm = path.startswith("llm.")
        if isinstance(item, list) and in_llm and item and all(isinstance(inner, dict) for inner in item):
            item = {str(number): inner for number, inner in enumerate(item)}
        # At the top level, only known names are namespaces: an object under a user-defined name is a value.
        if isinstance(item, dict) and depth < _MAX_DEPTH and (depth or "." in key or key in _NESTED or in_llm):
            # Other objects, such as a schema, are values and are not flattened.
            is_level = not path.endswith(_VALUES) and path.split(".")[0] in _NESTED
            flat.update(_flat(item, f"{path}.", depth + 1) if is_level else {path: item})
        else:
            flat[path] = item
    return flat


_NESTED = frozenset(
    {"llm", "input", "output", "openinference", "tool", "session", "user", "gen_ai", "eval", "annotation"}
)
# Suffixes of paths whose object is a value: a schema, a list of messages, arguments.
_VALUES = (".json_schema", ".messages", ".arguments", ".value", ".invocation_parameters", "system_instructions")


def moment(value: Any) -> int | float | None:
    """Convert a timestamp to a sortable number: ISO text to seconds, [seconds, nanoseconds] to nanoseconds."""
    if isinstance(value, str) and not value.isdigit():
        try:
            parsed = datetime.fromisoformat(value)
            # A time without a zone is read as UTC, so that all spans are sortable.
            return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, float):
        return value if value == value else None
    if isinstance(value, list):  # [seconds, nanoseconds]
        seconds, nanoseconds = map(index, value) if len(value) == 2 else (None, None)
        return None if seconds is None or nanoseconds is None else seconds * 10**9 + nanoseconds
    return index(value)

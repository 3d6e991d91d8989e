"""Declared formats of tracing tools that log one span per row: a predicate for rows, paths of fields, and a hook.

A file is a list or lines of rows, which are grouped into traces (sources/tracing/span_nodes.py); a trace without spans
is a single call. `paths` locates the fields of a span; `hook` returns fields that a path cannot express; `describe`
returns the scores, task and info of a trace. run = a number derived from the trace id; task = a task id in the places
listed by each format, else a hash of the prompt.

    litellm        {id, trace_id, call_type, model, messages, response}: payloads of callbacks, and spend logs of the
                   proxy, which have `request_id`. Rows with the same session_id, else trace_id, are a trace. Tools are
                   in `model_parameters`, scores in the metadata: `reward`, `score`, `scores{}`. A row whose messages
                   were redacted is refused, and so is a failed call without a response
    weave          {id, trace_id, parent_id, op_name, started_at, inputs, output, exception, summary}: the kind of call
                   is `attributes.kind` or the end of `op_name`. Scores: `feedback`, and `scores` in the output of an
                   evaluation's predict_and_score
    mlflow         {info{trace_id, assessments[], tags, trace_metadata}, data{spans[]}} or rows of `search_traces`.
                   Each attribute is JSON text. Feedback in assessments is a score of the named span or of the trace
                   ("yes" is 1, "no" is 0), unless overridden or failed; expectations are kept in info
    openai-agents  {object: trace} and {object: trace.span, trace_id, parent_id, span_data{type}}, or requests of the
                   tracing API, {data: [...]}. The SDK's own export of a response span has only its id: such a call is
                   refused, since the model's input is not in the file
    nat-atof       {kind: scope | mark, scope_category: start | end, category, uuid, data}: the lines of one run. The
                   input is the `data` of a scope's start, the output that of its end. Scores are marks of category
                   "evaluation" or "score" whose data has a `score` or `reward`
    langsmith      {id, trace_id, parent_run_id, dotted_order, run_type, inputs, outputs, error, feedback_stats}: runs,
                   or an SDK batch {post: [runs], patch: [runs]}, where a patch completes the run with the same id or
                   dotted_order. Runs may hold their children in `child_runs`. Scores are `feedback[{key, score}]`, else
                   the averages of `feedback_stats`; the task may be the `reference_example_id`
    braintrust     {span_id, root_span_id, span_parents[], span_attributes{type, name}, input, output, scores{}}
    deepeval       {uuid, llmSpans[], toolSpans[], agentSpans[], baseSpans[], retrieverSpans[], metricsData[]}: a trace,
                   with spans {uuid, parentUuid, type, status, startTime, input, output, model}. Scores are the metrics
                   of the trace and of its spans. A traced test case of a test run is read with its own metrics
    opik           {id, trace_id, parent_span_id, type, input, output, feedback_scores[{name, value}]}

The readers of Braintrust and Opik are written from the schemas of these tools.
"""

from collections.abc import Callable, Iterator
from typing import Any

from pairwright.records.json_text import decode
from pairwright.records.messages import Json
from pairwright.sources.fields import (
    filled,
    filled_text,
    has,
    list_or_empty,
    object_or_empty,
    objects,
    objects_in,
    optional_items,
    optional_mapping,
    optional_objects,
    text_at,
    value_at,
)
from pairwright.sources.shapes.any_messages import decode_json_text, tools_in
from pairwright.sources.shapes.traces import Score, task_in
from pairwright.sources.tracing.span_nodes import Role, SpanFormat, listed


def _has(*alternatives: str) -> Callable[[Any], bool]:
    """Return a predicate for rows that have all keys of at least one alternative (names separated by spaces)."""
    wanted = [frozenset(names.split()) for names in alternatives]
    return lambda row: isinstance(row, dict) and any(keys <= row.keys() for keys in wanted)


def _decoded(value: Any) -> Any:
    """Decode text that is JSON; other text is returned unchanged."""
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
        inputs, output = {_REDACTED: None}, None  # unknown shape: refused, with this key in the reason
    return {
        "role": "call",
        "input": inputs,
        "output": None if filled_text(row.get("error_str")) else output,
        "tools": parameters.get("tools") or parameters.get("functions"),
        "usage": row,
    }


def _is_redacted(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_redacted, value[:3]))
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

# Suffixes of op names (without version) that are model calls.
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
        "info": filled({"name": _op(root), "thread": filled_text(root.get("thread_id"))}),
    }


def _weave_scores(row: Json) -> Iterator[Score]:
    """Yield the scores of a call: its feedback, and scores that an evaluation wrote to its output."""
    results: list[tuple[str, Any]] = []
    for place in (row, value_at(row, "summary.weave")):
        for item in objects_in(object_or_empty(place).get("feedback")):
            kind, payload = str(item.get("feedback_type")), item.get("payload")
            prefix = next((prefix for prefix in _SCORE_PREFIXES if kind.startswith(prefix)), None)
            if prefix is not None and isinstance(payload, dict):
                results.append((kind[len(prefix) :], payload.get("output", payload.get("value"))))
    if _op(row).endswith("predict_and_score"):
        results += object_or_empty(value_at(row, "output.scores")).items()
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
    trace = object_or_empty(value)
    data = trace.get("data")
    spans = decode_json_text(data.get("spans") if isinstance(data, dict) else trace.get("spans"))
    return spans if isinstance(spans, list) else []


def _mlflow(span: Json) -> Json:
    """Return the fields of a span of version 3, or of version 2, which has its ids in `context`."""
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
    for _, item in objects(listed, "assessments"):
        name = filled_text(item.get("assessment_name")) or filled_text(item.get("name")) or "feedback"
        feedback = item.get("feedback")
        if isinstance(item.get("expectation"), dict):
            expectations[name] = item["expectation"].get("value")
        if isinstance(feedback, dict) and item.get("valid") is not False and not feedback.get("error"):
            value = feedback.get("value")
            value = _RATINGS.get(value.lower(), value) if isinstance(value, str) else value
            scores.append(Score(name, value, filled_text(item.get("span_id"))))
    trace_id = info.get("trace_id", info.get("request_id"))  # request_id: before version 3
    title, session = tags.get("mlflow.traceName"), metadata.get("mlflow.trace.session")
    return {
        "trace_id": trace_id if isinstance(trace_id, str) else None,
        "scores": scores,
        "task": task_in(tags, metadata),
        "info": filled({"name": title, "session_id": session, "expectations": expectations or None}),
    }


MLFLOW = SpanFormat(
    "mlflow",
    "MLflow traces",
    lambda span: has(span, attributes=dict) and any(str(key).startswith("mlflow.span") for key in span["attributes"]),
    {"name": ("name",)},
    _describe_mlflow,
    hook=_mlflow,
    roles={"CHAT_MODEL": "call", "LLM": "call", "TOOL": "tool", "AGENT": "agent"},
    rows=_mlflow_spans,
    unit="record",
)


def _agents_rows(value: Any) -> list[Any]:
    """Return the rows of a file, unwrapped from API requests."""
    flat: list[Any] = []
    for row in listed(value):
        data = row.get("data") if isinstance(row, dict) else None
        flat += data if isinstance(data, list) and "object" not in row else [row]
    return flat


def _agents(span: Json) -> Json:
    data, error = object_or_empty(span.get("span_data")), span.get("error")
    response = data.get("response")
    message = None
    if isinstance(error, dict):
        reason = text_at(error, "data.error")
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
        "info": filled({"name": filled_text(head.get("workflow_name")), "group": filled_text(head.get("group_id"))}),
    }


OPENAI_AGENTS = SpanFormat(
    "openai-agents",
    "OpenAI Agents SDK traces",
    lambda row: has(row, span_data=dict) and row.get("object") == "trace.span",
    {"trace": ("trace_id",), "id": ("id",), "parent": ("parent_id",), "start": ("started_at",)},
    _describe_agents,
    hook=_agents,
    roles={"generation": "call", "response": "call", "function": "tool"},
    # `_describe_agents` reads the traces.
    rows=lambda value: [row for row in _agents_rows(value) if object_or_empty(row).get("object") != "trace"],
)


def _scopes(value: Any) -> list[Any]:
    """Join the events of each scope: {start, end}; `_describe_atof` reads the marks."""
    scopes: dict[str, Any] = {}
    for number, row in enumerate(listed(value)):
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
    # The bare fields of an assistant message are the message itself.
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
    for row in listed(unit):
        data = row.get("data")
        if row.get("kind") == "mark" and row.get("category") in ("evaluation", "score") and isinstance(data, dict):
            name, points = filled_text(row.get("name")) or "score", data.get("score", data.get("reward"))
            scores.append(Score(name, points, filled_text(row.get("parent_uuid"))))
    return {
        "trace_id": root["id"],
        "scores": scores,
        "task": task_in(*(row.get("metadata") for row in listed(unit))),
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
    # The choices of a response, without the enclosing response
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
            found = objects_in(row.get("feedback_scores"))
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


def _deepeval_spans(value: Any) -> list[Any]:
    """Return the spans of a trace; DeepEval writes the spans of each kind in reverse order."""
    trace = object_or_empty(value)
    kinds = [trace.get(f"{kind}Spans") for kind in ("base", "agent", "retriever", "llm", "tool")]
    return [span for spans in kinds for span in reversed(list_or_empty(spans))]


def _describe_deepeval(trace: Any, spans: list[Json]) -> Json:
    scores: list[Score] = []
    for place, target in ((trace, None), *((span, filled_text(span.get("uuid"))) for span in spans)):
        for _, metric in optional_objects(place.get("metricsData"), "metricsData"):
            scores.append(Score(filled_text(metric.get("name")) or "score", metric.get("score"), target))
    return {
        "trace_id": filled_text(trace.get("uuid")),
        "scores": scores,
        "task": task_in(trace.get("metadata")),
        "info": filled({key: trace.get(key) for key in ("name", "threadId", "expectedOutput")}),
    }


DEEPEVAL = SpanFormat(
    "deepeval",
    "DeepEval traces",
    _has("uuid status type startTime"),
    {
        "id": ("uuid",),
        "parent": ("parentUuid",),
        "role": ("type",),
        "name": ("name",),
        "start": ("startTime",),
        "input": ("input",),
        "output": ("output",),
        "model": ("model",),
        "error": ("error",),
    },
    _describe_deepeval,
    hook=lambda span: {
        "usage": {"input_tokens": span.get("inputTokenCount"), "output_tokens": span.get("outputTokenCount")}
    },
    roles={"llm": "call", "tool": "tool", "agent": "agent"},
    rows=_deepeval_spans,
    unit="record",
)

_MAX_DEPTH = 50  # of nested runs


def _is_run(value: Any) -> bool:
    # A patch may lack the inputs, but has its dotted_order.
    return isinstance(value, dict) and ("dotted_order" in value or ("run_type" in value and "inputs" in value))


def _runs(value: Any) -> list[Any]:
    """Return the merged runs of a file: non-empty values of later records of a run override earlier ones."""
    by_id: dict[str, Json] = {}
    ids: dict[str, str] = {}  # by dotted_order, since patches of some SDKs have no id
    for run in _nested_runs(value, 0):
        order = filled_text(run.get("dotted_order"))
        # The id, else the id of the run with the same dotted_order, else the dotted_order, else a number.
        key = filled_text(run.get("id")) or ids.get(order or "") or (order or f"#{len(by_id)}")
        if order is not None:
            ids.setdefault(order, key)
        # dotted_order is "<time>Z<run id>.<time>Z<run id>...", from the root down to the run.
        root = order.split(".")[0].partition("Z")[2] if order else ""
        known = by_id.setdefault(key, {"id": key, "trace_id": root or key})
        known.update({name: item for name, item in run.items() if name != "id" and item not in (None, {}, [])})
    runs = list(by_id.values())
    # Every part begins with a time, so text order is start order, with parents before children.
    if all(filled_text(run.get("dotted_order")) for run in runs):
        runs.sort(key=lambda run: str(run["dotted_order"]))
    return runs


def _nested_runs(value: Any, depth: int) -> Iterator[Json]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _nested_runs(item, depth + 1)
    elif _is_run(value):
        yield value
        yield from _nested_runs(value.get("child_runs"), depth + 1)
    elif isinstance(value, dict):
        yield from _nested_runs([value.get("post"), value.get("patch")], depth + 1)


def _langsmith(run: Json) -> Json:
    inputs, outputs = decode_json_text(run.get("inputs")), decode_json_text(run.get("outputs"))
    extra, metadata = object_or_empty(run.get("extra")), object_or_empty(value_at(run, "extra.metadata"))
    fields: Json = {"error": filled_text(run.get("error")) or ("" if run.get("status") == "error" else None)}
    if run.get("run_type") == "tool":
        inner = decode_json_text(outputs.get("output", outputs) if isinstance(outputs, dict) else outputs)
        # A serialized LangChain message: its fields are in `kwargs`.
        if isinstance(inner, dict) and isinstance(inner.get("kwargs"), dict):
            inner = inner["kwargs"]
        call_id = metadata.get("tool_call_id")
        if isinstance(inner, dict) and "tool_call_id" in inner:
            call_id, content = filled_text(inner["tool_call_id"]) or call_id, inner.get("content")
            if inner.get("status") == "error" and fields["error"] is None:
                fields["error"] = str(content or "")
            inner = content
        # A tool of one argument logs {"input": value}.
        is_single = isinstance(inputs, dict) and set(inputs) == {"input"}
        return {
            **fields,
            "input": inputs["input"] if is_single else run.get("inputs"),
            "output": inner,
            "call_id": call_id,
        }
    # Completion models log {"prompts": [text]}; a batch of one is its only text.
    prompts = inputs.get("prompts") if isinstance(inputs, dict) and "messages" not in inputs else None
    usage = object_or_empty(outputs)
    return {
        **fields,
        "input": prompts[0] if isinstance(prompts, list) and len(prompts) == 1 else inputs,
        "output": outputs or None,
        "tools": inputs if isinstance(inputs, dict) and tools_in(inputs) else extra.get("invocation_params"),
        "model": filled_text(usage.get("model")) or metadata.get("ls_model_name"),
        "usage": usage.get("usage_metadata", usage.get("usage")),
    }


def _describe_langsmith(unit: Any, runs: list[Json]) -> Json:
    ids = {run["id"] for run in runs}
    root = next((run for run in runs if filled_text(run.get("parent_run_id")) not in ids), runs[0])
    scores: list[Score] = []
    for run in runs:
        feedback = objects_in(run.get("feedback"))
        for item in feedback:
            number = item.get("value") if item.get("score") is None else item["score"]
            name, target = filled_text(item.get("key")) or "score", filled_text(item.get("run_id")) or run["id"]
            scores.append(Score(name, number, target))
        averages = {} if feedback else object_or_empty(run.get("feedback_stats"))
        for key, item in averages.items():
            scores.append(Score(str(key), item.get("avg") if isinstance(item, dict) else item, run["id"]))
    # A failure of the root is kept, unless the root is the call itself and already has the failure.
    error = root.get("error") if any(run.get("run_type") == "llm" for run in runs if run is not root) else None
    session = filled_text(root.get("session_name")) or filled_text(root.get("session_id"))
    return {
        "scores": scores,
        "task": task_in(root, value_at(root, "extra.metadata"), root.get("inputs")),
        "info": filled({"name": root.get("name"), "session": session, "error": error}),
    }


LANGSMITH = SpanFormat(
    "langsmith",
    "LangSmith runs and batches",
    _is_run,
    {"trace": ("trace_id",), "id": ("id",), "parent": ("parent_run_id",), "role": ("run_type",), "name": ("name",)},
    _describe_langsmith,
    {"llm": "call", "tool": "tool"},
    hook=_langsmith,
    rows=_runs,
)

DECLARED = {
    one.name: one.format for one in (LANGSMITH, MLFLOW, WEAVE, BRAINTRUST, OPIK, OPENAI_AGENTS, LITELLM, NAT_ATOF)
}

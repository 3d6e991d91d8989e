"""LangSmith runs: `{id, trace_id, parent_run_id, dotted_order, run_type, inputs, outputs, error, feedback_stats}`.

A file is one run, a list of runs, or an SDK batch `{post: [runs], patch: [runs]}`, where a patch completes the run with
the same id (or dotted_order). Runs may contain their children in `child_runs`. Runs with one trace_id form a trace,
sorted by `dotted_order`. Model calls are runs of type llm, tool runs those of type tool; without any llm run, the
inputs and outputs of the root are the call. Inputs and outputs have any shape of sources/shapes/any_messages.py.

task = `reference_example_id` (the dataset's example) or a task id in the root's metadata or inputs, else a hash of the
prompt; run = a number derived from the trace id. Scores: `feedback[{key, score, run_id}]`, else the averages of
`feedback_stats{key: {avg, n}}`. Runs with an `error` are error sites.
"""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from pairwright.errors import PairwrightError
from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import answers, conversation, decode_json_text, instructions_in, tools_in
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, ModelCall, Score, ToolRun, Trace, outermost_of, task_in
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "langsmith"
_MAX_DEPTH = 50


def matches(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict) and matches(value[0])
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("post"), list) or isinstance(value.get("patch"), list):
        return any(map(_is_run, [*_list(value.get("post")), *_list(value.get("patch"))]))
    return _is_run(value)


def _is_run(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    # A patch may lack the inputs, but has its dotted_order.
    return "dotted_order" in value or ("run_type" in value and "inputs" in value)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Group runs by trace and yield the experiences of each trace."""
    runs = _merge_patches(list(_runs(value, 0)))
    if not runs:
        raise BadRecord("no runs")
    traces: dict[str, list[Json]] = {}  # trace id -> its runs
    for run in runs:
        traces.setdefault(_text(run.get("trace_id")) or _root_id(run), []).append(run)
    for number, (trace_id, members) in enumerate(traces.items()):
        try:
            trace = _trace(trace_id, members)
        except PairwrightError as error:
            reason = f"trace {trace_id!r}: {error}"
            yield Rejected(file=origin.file, line=origin.line, reason=reason, format=NAME)
            continue
        yield from read_trace(NAME, trace, origin, options, position=number)


def _runs(value: Any, depth: int) -> Iterator[Json]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _runs(item, depth + 1)
    elif isinstance(value, dict) and _is_run(value):
        yield value
        yield from _runs(value.get("child_runs"), depth + 1)
    elif isinstance(value, dict):
        yield from _runs(value.get("post"), depth + 1)
        yield from _runs(value.get("patch"), depth + 1)


def _merge_patches(runs: list[Json]) -> list[Json]:
    """Merge records of the same run; non-empty values of later records override earlier ones."""
    by_id: dict[str, Json] = {}
    ids: dict[str, str] = {}  # by dotted_order, since patches of some SDKs have no id
    for run in runs:
        order = _text(run.get("dotted_order"))
        # The id, else that of a run at the same place in the tree, else the place itself, else a number.
        key = _text(run.get("id")) or ids.get(order or "") or (order or f"#{len(by_id)}")
        if order is not None:
            ids.setdefault(order, key)
        known = by_id.setdefault(key, {"id": key})
        known.update({name: item for name, item in run.items() if name != "id" and item not in (None, {}, [])})
    return list(by_id.values())


def _root_id(run: Json) -> str:
    """Return the root id of a run without a trace_id: from its dotted_order, else its own id."""
    order = _text(run.get("dotted_order"))
    # dotted_order is "<time>Z<run id>.<time>Z<run id>...", from the root down to the run.
    return order.split(".")[0].partition("Z")[2] or run["id"] if order else str(run["id"])


def _trace(trace_id: str, members: list[Json]) -> Trace:
    """Convert the runs of one trace to a Trace."""
    # Times lead every part, so the order of texts is that of starting, with parents before children.
    if all(_text(run.get("dotted_order")) for run in members):
        members = sorted(members, key=lambda run: str(run["dotted_order"]))
    parents = {run["id"]: _text(run.get("parent_run_id")) for run in members}
    wanted = outermost_of([run["id"] for run in members if run.get("run_type") == "llm"], parents)
    roots = [run for run in members if parents[run["id"]] not in parents]
    # No run of a model: the root's inputs and outputs are the one call.
    if not wanted:
        wanted = {run["id"] for run in roots[:1]}
    events: list[ModelCall | ToolRun] = []
    for run in members:
        if run["id"] in wanted:
            events += _calls(run)
        elif run.get("run_type") == "tool":
            events.append(_tool_run(run))
    root = roots[0] if roots else members[0]
    session = _text(root.get("session_name")) or _text(root.get("session_id"))
    info: Json = {"name": root.get("name"), "session": session}
    # A failure of the root is kept here, unless the root is itself the call and has it as its own.
    if wanted != {root["id"]} and root.get("error"):
        info["error"] = root["error"]
    return Trace(
        id=trace_id,
        events=events,
        scores=[score for run in members for score in _scores(run)],
        parents=parents,
        task=task_in(root, _metadata(root), root.get("inputs")),
        info={key: item for key, item in info.items() if item is not None},
    )


def _calls(run: Json) -> list[ModelCall]:
    """Convert a run to model calls, one per alternative answer."""
    inputs, outputs = decode_json_text(run.get("inputs")), decode_json_text(run.get("outputs"))
    extra = run.get("extra") if isinstance(run.get("extra"), dict) else {}
    parameters = extra.get("invocation_params") if isinstance(extra, dict) else None
    # Completion models log {"prompts": [text]}; a batch of one is its only text.
    prompt = inputs.get("prompts") if isinstance(inputs, dict) and "messages" not in inputs else None
    prompt = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else inputs
    messages = conversation(prompt, "inputs", role="user")
    if not messages or messages[0].role not in ("system", "developer"):
        messages = (instructions_in(inputs) or instructions_in(outputs)) + messages
    metadata = _metadata(run)
    call = ModelCall(
        id=run["id"],
        input=messages,
        output=[],
        tools=tools_in(inputs if isinstance(inputs, dict) else None) or tools_in(parameters),
        parent=_text(run.get("parent_run_id")),
        model=_model(outputs) or _text(metadata.get("ls_model_name")),
        failure=_failure(run, "exception"),
        usage=_usage(outputs),
    )
    alternatives = answers(outputs, "outputs") if outputs not in (None, {}) else []
    if len(alternatives) < 2:
        return [replace(call, output=alternatives[0] if alternatives else [])]
    return [replace(call, output=one, notes={"choice": n}) for n, one in enumerate(alternatives)]


def _tool_run(run: Json) -> ToolRun:
    """Convert a run of type tool to a ToolRun."""
    outputs = decode_json_text(run.get("outputs"))
    inner = outputs.get("output") if isinstance(outputs, dict) and "output" in outputs else outputs
    inner = decode_json_text(inner)
    failure = _failure(run, "tool_error")
    call_id = None
    # A serialized LangChain message: its fields are in `kwargs`.
    if isinstance(inner, dict) and isinstance(inner.get("kwargs"), dict):
        inner = inner["kwargs"]
    if isinstance(inner, dict) and "tool_call_id" in inner:
        call_id = _text(inner["tool_call_id"])
        if failure is None and inner.get("status") == "error":
            failure = Failure(failure_kind(inner.get("content"), "tool_error"), str(inner.get("content") or ""))
        inner = inner.get("content")
    inputs = run.get("inputs")
    # A tool of one argument logs {"input": value}.
    if isinstance(inputs, dict) and set(inputs) == {"input"}:
        inputs = inputs["input"]
    return ToolRun(
        id=run["id"],
        name=_text(run.get("name")) or "",
        output=inner,
        arguments=inputs,
        call_id=call_id or _text(_metadata(run).get("tool_call_id")),
        parent=_text(run.get("parent_run_id")),
        failure=failure,
    )


def _scores(run: Json) -> list[Score]:
    """Return the feedback scores of a run; those of the root apply to the whole trace."""
    scores = []
    for item in _list(run.get("feedback")):
        if isinstance(item, dict):
            points = item.get("score") if item.get("score") is not None else item.get("value")
            scores.append(Score(_text(item.get("key")) or "score", points, _text(item.get("run_id")) or run["id"]))
    stats = run.get("feedback_stats")
    if not scores and isinstance(stats, dict):
        for key, item in stats.items():
            points = item.get("avg") if isinstance(item, dict) else item
            scores.append(Score(str(key), points, run["id"]))
    return scores


def _failure(run: Json, default: str) -> Failure | None:
    message = run.get("error")
    if not isinstance(message, str) or not message:
        return Failure(default, "") if run.get("status") == "error" else None
    return Failure(failure_kind(message, default), message)


def _usage(outputs: Any) -> dict[str, int | float]:
    usage = outputs.get("usage_metadata", outputs.get("usage")) if isinstance(outputs, dict) else None
    if not isinstance(usage, dict):
        return {}
    counts = {
        "input_tokens": usage.get("input_tokens", usage.get("prompt_tokens")),
        "output_tokens": usage.get("output_tokens", usage.get("completion_tokens")),
    }
    return {key: n for key, n in counts.items() if isinstance(n, int | float) and not isinstance(n, bool)}


def _model(outputs: Any) -> str | None:
    return _text(outputs.get("model")) if isinstance(outputs, dict) else None


def _metadata(run: Json) -> Json:
    extra = run.get("extra")
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


FORMAT = Format(NAME, "file", matches, read, "LangSmith runs and batches")

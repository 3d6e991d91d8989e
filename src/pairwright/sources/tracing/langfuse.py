"""Langfuse exports: `{trace{id, input, output, metadata, scores[]}, observations[]}`, or a trace containing both.

Model calls are observations of type GENERATION, tool runs those of type TOOL (or whose output is a tool message, or
whose attributes mark a tool). Inputs and outputs may be JSON text, in any shape of sources/shapes/any_messages.py; if
they have no known shape, the OpenTelemetry attributes in the metadata are read instead. Calls are converted to
experiences by sources/tracing/trace_to_experiences.py; without any GENERATION, the input and output of the agent, the
root or the trace are the call. Tools that LangChain logs as messages of role "tool" become tool schemas; `instructions`
become the system message. An unreadable call is refused with its reason; the other calls of its trace are read.

task = `datasetItemId` or a task id in the trace's metadata, else a hash of the prompt; run = a number derived from the
trace id. Scores without an observationId apply to the whole trace; the value of a CATEGORICAL score is its label. An
observation of level ERROR is an error site. A score of type CORRECTION is a better output of the call that it names,
else of the last call of the trace. It yields a preference without a reward, in addition to the call's experience: the
correction is chosen, the call's output rejected (written from the schema).
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import msgspec

from pairwright.errors import PairwrightError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import (
    BadRecord,
    filled_text,
    has,
    identifier,
    mapping,
    object_or_empty,
    objects,
    optional_items,
    optional_mapping,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import (
    answers,
    conversation,
    decode_input,
    decode_json_text,
    decode_output,
    instructions_in,
    join_calls,
    split_rendering,
    tools_in,
)
from pairwright.sources.shapes.genai_attributes import (
    add_finish_reason,
    answers_in_attributes,
    input_in_attributes,
    role_of_span,
    system_in_attributes,
    tools_of_attributes,
)
from pairwright.sources.shapes.langchain_messages import unwrap
from pairwright.sources.shapes.plain_messages import plain_messages
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import Failure, ModelCall, Score, ToolRun, Trace, outermost_of, run_of, task_in
from pairwright.sources.tracing.otel_spans import moment
from pairwright.sources.tracing.span_nodes import one_per_answer
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "langfuse"
_TOOL_ATTRIBUTES = ("gen_ai.tool.call.id", "ai.toolCall.id", "gen_ai.tool.name", "ai.toolCall.name")
_CORRECTION = "CORRECTION"  # the type of a score that is a better output
# Field of the trace -> name in `info`.
INFO = {"name": "name", "sessionId": "session_id", "tags": "tags", "release": "release", "version": "version"}
# Field of the usage -> name in the metrics.
_COUNTS = (("input", "input_tokens"), ("output", "output_tokens"))


class _Observation(msgspec.Struct, frozen=True, gc=False):
    """An observation; its attributes are those of OpenTelemetry, from the metadata."""

    id: str
    parent: str | None
    type: Any
    start: int | float | None
    attributes: Json
    fields: Json


def matches(value: Any) -> bool:
    if not has(value, observations=list):
        return False
    if has(value, trace=dict):  # next to its observations; below, it contains them
        return True
    has_marks = "id" in value and ("scores" in value or "htmlPath" in value)
    return has_marks and all(has(one, "type", "startTime") for one in value["observations"])


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    export = mapping(value, "export")
    trace = optional_mapping(export.get("trace"), "trace") or export
    observations = _observations(export, trace)
    parents = {one.id: one.parent for one in observations}
    refused: list[str] = []
    events = _events(trace, observations, parents, refused)
    listed = optional_items(trace.get("scores"), "trace.scores")
    if export is not trace:
        listed = listed + optional_items(export.get("scores"), "scores")
    scores, corrections = [], []
    for _, score in objects(listed, "scores"):
        if score.get("dataType") == _CORRECTION:
            corrections.append(score)
            continue
        value = score.get("value")
        # The number of a category is arbitrary; the label has the meaning.
        if score.get("dataType") == "CATEGORICAL" or value is None:
            value = score.get("stringValue", value)
        scores.append(Score(filled_text(score.get("name")) or "score", value, filled_text(score.get("observationId"))))
    read_out = Trace(
        id=identifier(trace.get("id")),
        events=events,
        scores=scores,
        parents=parents,
        task=identifier(trace.get("datasetItemId")) or task_in(decode_json_text(trace.get("metadata"))),
        info={ours: field for theirs, ours in INFO.items() if (field := trace.get(theirs))},
        refused=refused,
    )
    yield from read_trace(NAME, read_out, origin, position=origin.ordinal)
    for score in corrections:
        yield _correction(score, read_out, origin)


def _correction(score: Json, trace: Trace, origin: Origin) -> Parts | Rejected:
    """Return a preference of a correction over the output of its call, or of the last call if it names none."""
    target = filled_text(score.get("observationId"))
    calls = [event for event in trace.events if isinstance(event, ModelCall) and target in (None, event.id)]
    corrected = filled_text(score.get("stringValue")) or filled_text(score.get("value"))
    if not calls or not calls[-1].output or corrected is None:
        reason = "a correction without its text, or of something that is not a model call"
        return origin.rejected(f"trace {trace.id!r}: {reason}", NAME)
    call = calls[-1]
    return Parts(
        NAME,
        origin,
        f"trace {trace.id!r}, correction of {call.id!r}",
        task=trace.task,
        run=run_of(trace.id, origin.ordinal),
        prompt=call.input,
        chosen=answers(decode_output(corrected), "correction")[0],
        rejected=call.output,
        tools=call.tools,
        info={**trace.info, "trace_id": trace.id, "corrected_call": call.id},
    )


def _observations(export: Json, trace: Json) -> list[_Observation]:
    """Return the observations in order of time; in file order if any time is missing."""
    listed = optional_items(export.get("observations"), "observations")
    listed = listed or optional_items(trace.get("observations"), "trace.observations")
    observations = [_observation(item) for _, item in objects(listed, "observations")]
    start = attrgetter("start")
    return observations if None in map(start, observations) else sorted(observations, key=start)


def _observation(fields: Json) -> _Observation:
    metadata, attributes = fields.get("metadata"), None
    if metadata is not None:
        attributes = object_or_empty(decode_json_text(metadata)).get("attributes")
    return _Observation(
        filled_text(fields.get("id")) or "",
        filled_text(fields.get("parentObservationId")),
        fields.get("type"),
        moment(fields.get("startTime")),
        object_or_empty(attributes),
        fields,
    )


def _events(
    trace: Json, observations: list[_Observation], parents: dict[str, str | None], refused: list[str]
) -> list[ModelCall | ToolRun]:
    """Return the model calls and tool runs in order; raise BadRecord if there is no output at all."""
    types, generations = {}, {}
    for one in observations:
        types[one.id] = one.type
        if one.type == "GENERATION":
            generations[one.id] = one
    # An operation of the Vercel AI SDK encloses its calls; it counts as a call only if it contains none.
    enclosing = set(map(parents.get, generations))
    for name, one in list(generations.items()):
        if name in enclosing and "ai.operationId" in one.attributes and role_of_span(one.attributes) == "agent":
            del generations[name]
    # A generation inside another is the same call, logged by the framework and by the provider.
    wanted = outermost_of(generations, parents)
    events: list[ModelCall | ToolRun] = []
    for one in observations:
        if one.id in wanted:
            try:
                events += _calls(one, types.get(parents[one.id] or ""))
            except PairwrightError as error:  # other calls of the trace may be readable
                refused.append(f"observation {one.id!r}: {error}")
        elif (run := _tool_run(one)) is not None:
            events.append(run)
    if wanted:
        return events
    # Without a generation, the outermost logged input and output are the only call.
    agents = [one for one in observations if one.type == "AGENT"]
    roots = [one for one in observations if not one.fields.get("parentObservationId")]
    whole = {**trace, "input": _unquote(trace.get("input")), "output": _unquote(trace.get("output"))}
    for candidate in [*agents, *roots, _observation(whole)]:
        if candidate.fields.get("output") is not None:
            return [*_calls(candidate, None), *events]
    raise BadRecord("no GENERATION among the observations, and no output of an agent or of the trace")


def _unquote(value: Any) -> Any:
    """Decode a quoted JSON string: input and output of a trace are encoded once more than those of observations."""
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        # In brackets, since `decode_json_text` decodes only lists and objects.
        inside = decode_json_text(f"[{value}]")
        return inside[0] if isinstance(inside, list) and len(inside) == 1 else value
    return value


def _calls(one: _Observation, parent_type: Any) -> list[ModelCall]:
    fields, attributes = one.fields, one.attributes
    inputs, output = fields.get("input"), fields.get("output")
    # Plain messages need no further decoding, and contain no tools or instructions.
    messages = None if attributes else plain_messages(inputs)
    answer = None if attributes else plain_messages(output)
    tools: list[Json] = []
    flat = False
    if messages is None:
        inputs, tools = _without_tool_schemas(decode_input(inputs, attributes.get("input.mime_type")))
        messages = _input_messages(inputs, attributes)
        # Places of tools, best first: messages, input, output, definitions, OpenTelemetry attributes.
        tools = tools or tools_in(inputs if isinstance(inputs, dict) else None)
        flat = isinstance(inputs, str) and parent_type == "AGENT"
    else:
        messages = split_rendering(messages)
    if answer is None:
        output = decode_output(output, attributes.get("output.mime_type"))
        tools = tools or tools_in(output if isinstance(output, dict) else None)
        flat = flat and isinstance(decode_json_text(output), str)
    if not messages or messages[0].role not in ("system", "developer"):
        instructions = instructions_in(fields.get("output")) or instructions_in(fields.get("modelParameters"))
        messages = (instructions or system_in_attributes(attributes)) + messages
    if not tools and fields.get("toolDefinitions") is not None:
        tools = _tool_definitions(fields["toolDefinitions"])
    if attributes and not tools:
        tools, _ = tools_of_attributes(attributes)
    usage = object_or_empty(fields.get("usageDetails", fields.get("usage")))
    counts = {ours: usage[theirs] for theirs, ours in _COUNTS if type(usage.get(theirs)) in (int, float)}
    alternatives = _answers(output, attributes) if answer is None else [join_calls(answer)]
    if attributes:
        alternatives = [add_finish_reason(found, attributes) for found in alternatives]
    call = ModelCall(
        id=one.id,
        input=messages,
        output=[],
        tools=tools,
        parent=one.parent,
        model=filled_text(fields.get("model")),
        failure=_failure(fields, "exception"),
        usage=counts,
        # An agent's call with plain text as input and output logs only the opening prompt: the turns are rebuilt.
        flat=flat and answer is None,
    )
    return one_per_answer(call, alternatives)


def _input_messages(inputs: Any, attributes: Json) -> list[Message]:
    """Convert the input of a call; without a known message shape, the attributes are read."""
    try:
        if messages := split_rendering(conversation(inputs, "input", role="user")):
            return messages
    except BadRecord as error:
        messages = input_in_attributes(attributes)
        if not messages:
            raise error
        return messages
    return input_in_attributes(attributes)


def _answers(output: Any, attributes: Json) -> list[list[Message]]:
    """Convert the output of a call; without a known message shape, the attributes are read."""
    try:
        if alternatives := answers(output, "output"):
            return alternatives
    except BadRecord:
        # Structured output of the Vercel AI SDK: the object is the text that the model wrote.
        if str(attributes.get("ai.operationId")).startswith(("ai.generateObject", "ai.streamObject")):
            return answers(output, "output", objects_as_text=True)
        if alternatives := answers_in_attributes(attributes):
            return alternatives
        raise
    return answers_in_attributes(attributes)


def _without_tool_schemas(value: Any) -> tuple[Any, list[Json]]:
    """Split off tool schemas, which LangChain logs as {role: tool, content: {type: function, function: {...}}}."""
    if not isinstance(value, list):
        return value, []
    tools = [item["content"] for item in value if _is_tool_schema(item)]
    return [item for item in value if not _is_tool_schema(item)] if tools else value, tools


def _is_tool_schema(item: Any) -> bool:
    # A result has the id of its call; a schema in a tool message has none.
    if not has(item, content=dict) or item.get("role") != "tool" or item.get("tool_call_id") is not None:
        return False
    return has(item["content"], function=dict) and item["content"].get("type") == "function"


def _tool_definitions(definitions: Any) -> list[Json]:
    """Return the schemas in `toolDefinitions`: a list, or objects or JSON text by name."""
    if isinstance(definitions, dict):
        named = [(name, decode_json_text(schema)) for name, schema in definitions.items()]
        return [{"name": name, **schema} for name, schema in named if isinstance(schema, dict)]
    return tools_in(definitions)


def _tool_run(one: _Observation) -> ToolRun | None:
    fields, attributes = one.fields, one.attributes
    result = fields.get("output")
    failure = _failure(fields, "tool_error")
    output, call_id = decode_json_text(result), None
    message = unwrap(output) if isinstance(output, dict) else None
    if has(message, tool_call_id=str):
        call_id, result = message["tool_call_id"], message.get("content")
        if failure is None and message.get("status") == "error":
            failure = Failure(failure_kind(result, "tool_error"), result if isinstance(result, str) else "")
    elif one.type != "TOOL" and role_of_span(attributes) != "tool":
        return None
    tool = filled_text(fields.get("name")) or ""
    if attributes:
        named = [filled_text(attributes.get(key)) for key in _TOOL_ATTRIBUTES]
        call_id, tool = call_id or named[0] or named[1], named[2] or named[3] or tool
    return ToolRun(
        id=one.id,
        name=tool,
        output=result,
        arguments=fields.get("input"),
        call_id=call_id or None,
        parent=one.parent,
        failure=failure,
    )


def _failure(fields: Json, default: str) -> Failure | None:
    if fields.get("level") != "ERROR":
        return None
    message = filled_text(fields.get("statusMessage")) or ""
    return Failure(failure_kind(message, default), message)


FORMAT = Format(NAME, "record", matches, read, "Langfuse trace exports")

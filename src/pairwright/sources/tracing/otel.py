"""OpenTelemetry traces of agents: spans with GenAI or OpenInference attributes.

sources/tracing/otel_spans.py reads the files. Input and output of a model call are taken from the first of these that a
span has:

    gen_ai.system_instructions, gen_ai.input.messages, gen_ai.output.messages    JSON text or structured
    gen_ai.prompt.N.*, gen_ai.completion.N.*                                     numbered attributes
    llm.input_messages.N.*, llm.output_messages.N.*                              OpenInference
    ai.prompt.messages, ai.response.{text, toolCalls, object}                    Vercel AI SDK
    gen_ai.{system,user,assistant,tool}.message and gen_ai.choice                span events, log records, `events`
    input.value, output.value                                                    messages as JSON text, or plain text

Calls are converted to experiences by sources/tracing/trace_to_experiences.py; without any call, the agent's span is the
call. Each message of gen_ai.output.messages is an alternative answer. task = a task id attribute of the trace, else
a hash of the prompt; run = a number derived from the trace id. Scores are evaluation events, annotations,
`eval.<name>.score` and `reward` attributes. Spans with an error status become error sites.
"""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from pairwright.errors import PairwrightError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.fields import BadRecord, objects_in, plain_numbers, text_or_none
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import (
    answers,
    conversation,
    decode_input,
    decode_json_text,
    decode_output,
    instructions_in,
    is_torn,
    split_rendering,
)
from pairwright.sources.shapes.genai_attributes import (
    add_finish_reason,
    alternatives_of,
    answers_in_attributes,
    input_in_attributes,
    messages_of_events,
    role_of_span,
    system_in_attributes,
    tools_of_attributes,
)
from pairwright.sources.shapes.traces import ModelCall, Score, ToolRun, Trace, outermost_of, task_in
from pairwright.sources.tracing.otel_spans import Event, Span, holds_spans, traces_in
from pairwright.sources.tracing.span_nodes import one_per_answer
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "otel"
# Attribute names of the conventions, newest first.
_NUM_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_NUM_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_USAGE = {
    "input_tokens": (*_NUM_INPUT, "ai.usage.inputTokens"),
    "output_tokens": (*_NUM_OUTPUT, "ai.usage.outputTokens"),
}
_TOOL_INPUT = ("gen_ai.tool.call.arguments", "tool_arguments", "input.value", "tool.parameters", "ai.toolCall.args")
_TOOL_OUTPUT = (
    "gen_ai.tool.call.result",
    "tool_response",
    "output.value",
    "traceloop.entity.output",
    "ai.toolCall.result",
)
_MODEL = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "ai.response.model", "ai.model.id")


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    traces = traces_in(value)
    if not traces:
        raise BadRecord("no spans")
    for position, spans in enumerate(traces):
        try:
            trace = _trace(spans)
        except PairwrightError as error:
            yield origin.rejected(f"trace {spans[0].trace!r}: {error}", NAME)
            continue
        if not trace.refused and not any(isinstance(event, ModelCall) for event in trace.events):
            yield origin.rejected(f"trace {trace.id!r}: no model call among its spans: {len(spans)}", NAME)
            continue
        yield from read_trace(NAME, trace, origin, position=position)


def _trace(spans: list[Span]) -> Trace:
    by_id = {span.id: span for span in spans}
    parents = {span.id: span.parent for span in spans}
    # A provider's call inside a framework's call is the same call: keep the outer one.
    outermost = outermost_of([span.id for span in spans if _is_call(span)], parents)
    calls = [span for span in spans if span.id in outermost]
    if not calls:
        # No model call was traced: use the agents' spans instead, else the roots.
        tops = [span for span in spans if span.parent not in by_id and not _is_tool(span) and not _is_embedding(span)]
        calls = [span for span in spans if _is_agent(span)] or tops
    wanted = {span.id for span in calls}
    events: list[ModelCall | ToolRun] = []
    refused: list[str] = []
    shared: dict[str, tuple[list[Json], int]] = {}  # tools of the agents, read once for all their calls
    for span in spans:
        if span.id in wanted:
            try:
                events += _calls(span, by_id.get(span.parent or ""), shared)
            except PairwrightError as error:  # other calls of the trace may be readable
                refused.append(f"span {span.id!r}: {error}")
        elif _is_tool(span):
            events.append(_tool_run(span))
    roots = [span for span in spans if span.parent not in by_id]
    # Roots first: their attributes take precedence.
    attributes = [place.attributes for place in [*roots, *spans]]
    task = task_in(*attributes, *(decode_json_text(place.get("metadata")) for place in attributes))
    info: Json = {"name": roots[0].name} if roots else {}
    for key in ("session.id", "gen_ai.conversation.id", "gen_ai.agent.name", "agent.name"):
        name = next((place[key] for place in attributes if isinstance(place.get(key), str)), None)
        if name is not None:
            info[key] = name
    # The first failure outside calls and tool runs.
    failed = next((span for span in spans if span.failure and span.id not in wanted and not _is_tool(span)), None)
    if failed is not None and failed.failure is not None:
        info["failed_span"] = {"name": failed.name, "kind": failed.failure.kind, "text": failed.failure.text}
    scores = [score for span in spans for score in span.scores] + _evaluator_scores(spans)
    return Trace(spans[0].trace, events, scores, parents, task, info, refused)


def _is_call(span: Span) -> bool:
    role = role_of_span(span.attributes)
    # A span with another declared kind is not a call, even if it has messages.
    if role:
        return role == "call"
    return any(key in span.attributes for key in ("gen_ai.input.messages", "gen_ai.prompt.0.role"))


def _is_tool(span: Span) -> bool:
    return role_of_span(span.attributes) == "tool"


def _is_agent(span: Span) -> bool:
    return role_of_span(span.attributes) == "agent"


def _is_embedding(span: Span) -> bool:
    operation = str(span.attributes.get("ai.operationId", span.attributes.get("gen_ai.operation.name")))
    kind = str(span.attributes.get("openinference.span.kind")).upper()
    return operation.startswith("ai.embed") or operation == "embeddings" or kind in ("EMBEDDING", "RERANKER")


def _calls(span: Span, parent: Span | None, shared: dict[str, tuple[list[Json], int]]) -> list[ModelCall]:
    notes: Json = {}
    inputs, flat_input = _input(span)
    # Exporters truncate long attributes; a truncated list of messages is not a prompt.
    if flat_input and is_torn(span.attributes.get("input.value")):
        if parent is None or not isinstance(parent.attributes.get("input.value"), str):
            raise BadRecord("input.value is JSON text that its exporter truncated")
        inputs = conversation(parent.attributes["input.value"], "input.value", role="user")
        notes["prompt_from"] = "the agent's span: the calls' own input was cut by its exporter"
    alternatives, flat_output = _outputs(span)
    if not alternatives and not inputs and isinstance(span.attributes.get("pydantic_ai.all_messages"), str | list):
        messages = conversation(span.attributes["pydantic_ai.all_messages"], "pydantic_ai.all_messages", role="user")
        inputs, rest = split_at_first_answer(messages)
        alternatives = [rest]
    alternatives = [add_finish_reason(messages, span.attributes) for messages in alternatives]
    tools, num_cut = tools_of_attributes(span.attributes)
    # Some frameworks describe the tools once, on the agent's span.
    if not tools and not num_cut and parent is not None:
        if parent.id not in shared:
            shared[parent.id] = tools_of_attributes(parent.attributes)
        tools, num_cut = shared[parent.id]
    if num_cut:
        notes["tools_dropped"] = f"{num_cut} schemas are cut JSON text"
    counts = {name: _any(span.attributes, *keys) for name, keys in _USAGE.items()}
    call = ModelCall(
        id=span.id,
        input=inputs,
        output=[],
        tools=tools,
        parent=span.parent,
        model=text_or_none(_any(span.attributes, *_MODEL)),
        failure=span.failure,
        usage=plain_numbers(counts),
        # An agent's call with plain text as input and output logs only the opening prompt: the turns are rebuilt.
        flat=flat_input and flat_output and parent is not None and _is_agent(parent),
        notes=notes,
    )
    return one_per_answer(call, alternatives)


def _input(span: Span) -> tuple[list[Message], bool]:
    """Return the input messages, and whether they come from `input.value` only."""
    attributes = span.attributes
    if prompt := input_in_attributes(attributes):
        return prompt, False
    messages = system_in_attributes(attributes)
    if prompt := messages_of_events(_all_events(span), answers_wanted=False):
        return messages + prompt, False
    value = _value(attributes, "input")
    messages += instructions_in(attributes.get("output.value")) + instructions_in(value)
    return messages + split_rendering(conversation(value, "input.value", role="user")), True


def _outputs(span: Span) -> tuple[list[list[Message]], bool]:
    """Return the alternative answers, and whether they come from `output.value` only."""
    if alternatives := answers_in_attributes(span.attributes):
        return alternatives, False
    if messages := messages_of_events(_all_events(span), answers_wanted=True):
        return alternatives_of(messages), False
    return answers(_value(span.attributes, "output"), "output.value"), True


def _value(attributes: Json, side: str) -> Any:
    """Return the plain input or output of a span; JSON text of an object is decoded."""
    other = "gen_ai.prompt" if side == "input" else "gen_ai.completion"
    value = _any(attributes, f"{side}.value", f"traceloop.entity.{side}", other)
    mime_type = attributes.get(f"{side}.mime_type")
    return decode_input(value, mime_type) if side == "input" else decode_output(value, mime_type)


def _all_events(span: Span) -> list[Event]:
    """Return span events and log records, including the `events` attribute (a JSON list) of older pydantic-ai spans."""
    inside = objects_in(decode_json_text(span.attributes.get("events")))
    return span.events + [(item["event.name"], item) for item in inside if isinstance(item.get("event.name"), str)]


def _tool_run(span: Span) -> ToolRun:
    attributes = span.attributes
    call_id = _any(attributes, "gen_ai.tool.call.id", "tool.id", "tool_call.id", "ai.toolCall.id")
    name = _any(attributes, "gen_ai.tool.name", "tool.name", "ai.toolCall.name")
    failure = span.failure
    # "exception" is the default kind for a span; the default for a tool run is "tool_error".
    if failure is not None and failure.kind == "exception":
        failure = replace(failure, kind="tool_error")
    return ToolRun(
        id=span.id,
        name=name if isinstance(name, str) and name else span.name,
        output=_any(attributes, *_TOOL_OUTPUT),
        arguments=_any(attributes, *_TOOL_INPUT),
        call_id=call_id if isinstance(call_id, str) and call_id else None,
        parent=span.parent,
        failure=failure,
    )


def _any(attributes: Json, *keys: str) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) is not None), None)


def _evaluator_scores(spans: list[Span]) -> list[Score]:
    """Return the scores in the output of EVALUATOR spans, for the whole trace."""
    scores: list[Score] = []
    for span in spans:
        is_evaluator = str(span.attributes.get("openinference.span.kind")).upper() == "EVALUATOR"
        result = decode_json_text(span.attributes.get("output.value"))
        if is_evaluator and isinstance(result, dict) and ("score" in result or "label" in result):
            scores.append(Score(span.name or "score", result.get("score", result.get("label"))))
    return scores


FORMAT = Format(NAME, "file", holds_spans, read, "OpenTelemetry GenAI and OpenInference spans")

"""OpenTelemetry traces of agents: spans with GenAI or OpenInference attributes.

sources/tracing/otel_spans.py reads the files. Input and output of a model call are taken from the first of these that a
span has:

    gen_ai.system_instructions, gen_ai.input.messages, gen_ai.output.messages    JSON text or structured
    gen_ai.prompt.N.*, gen_ai.completion.N.*                                     numbered attributes
    llm.input_messages.N.*, llm.output_messages.N.*                              OpenInference
    gen_ai.{system,user,assistant,tool}.message and gen_ai.choice                span events, log records, `events`
    input.value, output.value                                                    messages as JSON text, or plain text

Calls are converted to experiences by sources/tracing/trace_to_experiences.py; without any call, the agent's own span is
the call. Each message of gen_ai.output.messages is an alternative answer. task = a task id attribute of the trace, else
a hash of the prompt; run = a number derived from the trace id. Scores are evaluation events, annotations,
`eval.<name>.score` and `reward` attributes. Spans with an error status become error sites.
"""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from pairwright.errors import PairwrightError
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Format, Options, Origin, Rejected, guarded, split_at_first_answer
from pairwright.sources.shapes.any_messages import answers, conversation, decode_json_text, instructions_in, is_torn
from pairwright.sources.shapes.genai_attributes import (
    messages_of_events,
    openinference_messages,
    read_numbered_messages,
    tools_of_attributes,
)
from pairwright.sources.shapes.traces import ModelCall, Score, ToolRun, Trace, outermost_of, task_in
from pairwright.sources.tracing.otel_spans import Event, Span, holds_spans, traces_in
from pairwright.sources.tracing.trace_to_experiences import read_trace

NAME = "otel"
# Values of gen_ai.operation.name for model calls, and below for agents.
_CALL_OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "completion", "generate"})
_AGENT_OPERATIONS = frozenset({"invoke_agent", "create_agent", "invoke_workflow"})
# Metric name -> attributes of the conventions, newest first.
_USAGE = {
    "input_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
}


def matches(value: Any) -> bool:
    return holds_spans(value)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    """Yield the experiences of each trace in a file."""
    traces = traces_in(value)
    if not traces:
        raise BadRecord("no spans")
    for position, spans in enumerate(traces):
        try:
            trace = _trace(spans)
        except PairwrightError as error:
            reason = f"trace {spans[0].trace!r}: {error}"
            yield Rejected(file=origin.file, line=origin.line, reason=reason, format=NAME)
            continue
        if not any(isinstance(event, ModelCall) for event in trace.events):
            reason = f"trace {trace.id!r}: no model call among {len(spans)} spans"
            yield Rejected(file=origin.file, line=origin.line, reason=reason, format=NAME)
            continue
        yield from read_trace(NAME, trace, origin, options, position=position)


def _trace(spans: list[Span]) -> Trace:
    """Convert the spans of one trace to a Trace."""
    by_id = {span.id: span for span in spans}
    parents = {span.id: span.parent for span in spans}
    # A provider's call inside a framework's is the same call: the outer one counts.
    outermost = outermost_of([span.id for span in spans if _is_call(span)], parents)
    calls = [span for span in spans if span.id in outermost]
    if not calls:
        # No model call was traced: the agents' own spans stand for it, else the roots.
        tops = [span for span in spans if span.parent not in by_id and not _is_tool(span)]
        calls = [span for span in spans if _is_agent(span)] or tops
    wanted = {span.id for span in calls}
    events: list[ModelCall | ToolRun] = []
    for span in spans:
        if span.id in wanted:
            events += _calls(span, by_id.get(span.parent or ""))
        elif _is_tool(span):
            events.append(_tool_run(span))
    roots = [span for span in spans if span.parent not in by_id]
    # Roots first: their attributes speak for the trace.
    attributes = [place.attributes for place in [*roots, *spans]]
    task = task_in(*attributes, *(decode_json_text(place.get("metadata")) for place in attributes))
    info: Json = {"name": roots[0].name} if roots else {}
    for key in ("session.id", "gen_ai.conversation.id", "gen_ai.agent.name", "agent.name"):
        name = next((place[key] for place in attributes if isinstance(place.get(key), str)), None)
        if name is not None:
            info[key] = name
    # The first failure that no call and no tool run tells of.
    failed = next((span for span in spans if span.failure and span.id not in wanted and not _is_tool(span)), None)
    if failed is not None and failed.failure is not None:
        info["failed_span"] = {"name": failed.name, "kind": failed.failure.kind, "text": failed.failure.text}
    scores = [score for span in spans for score in span.scores] + _evaluator_scores(spans)
    return Trace(id=spans[0].trace, events=events, scores=scores, parents=parents, task=task, info=info)


def _kind(span: Span) -> str:
    kind = span.attributes.get("openinference.span.kind", span.attributes.get("traceloop.span.kind"))
    return kind.upper() if isinstance(kind, str) else ""


def _operation(span: Span) -> str:
    name = span.attributes.get("gen_ai.operation.name", span.attributes.get("llm.request.type"))
    return name if isinstance(name, str) else ""


def _is_call(span: Span) -> bool:
    if _kind(span) == "LLM" or _operation(span) in _CALL_OPERATIONS:
        return True
    # A span that says it is something else is no call, whatever messages it holds.
    if _operation(span) or _kind(span):
        return False
    return any(key in span.attributes for key in ("gen_ai.input.messages", "gen_ai.prompt.0.role"))


def _is_tool(span: Span) -> bool:
    return _operation(span) == "execute_tool" or _kind(span) == "TOOL" or "gen_ai.tool.call.id" in span.attributes


def _is_agent(span: Span) -> bool:
    return _operation(span) in _AGENT_OPERATIONS or _kind(span) == "AGENT"


def _calls(span: Span, parent: Span | None) -> list[ModelCall]:
    """Convert a span to model calls, one per alternative answer."""
    notes: Json = {}
    inputs, flat_input = _input(span)
    # Exporters cut long attributes; half a list of messages is no prompt.
    if flat_input and is_torn(span.attributes.get("input.value")):
        if parent is None or not isinstance(parent.attributes.get("input.value"), str):
            raise BadRecord(f"span {span.id!r}: input.value is JSON text that ends too soon, cut by its exporter")
        inputs = conversation(parent.attributes["input.value"], "input.value", role="user")
        notes["prompt_from"] = "the agent's span: the calls' own input was cut by its exporter"
    alternatives, flat_output = _outputs(span)
    if not alternatives and not inputs and isinstance(span.attributes.get("pydantic_ai.all_messages"), str | list):
        messages = conversation(span.attributes["pydantic_ai.all_messages"], "pydantic_ai.all_messages", role="user")
        inputs, rest = split_at_first_answer(messages)
        alternatives = [rest]
    tools, num_cut = tools_of_attributes(span.attributes)
    # Some frameworks describe the tools once, on the agent's span.
    if not tools and not num_cut and parent is not None:
        tools, num_cut = tools_of_attributes(parent.attributes)
    if num_cut:
        notes["tools_dropped"] = f"{num_cut} schemas are cut JSON text"
    model = span.attributes.get("gen_ai.response.model", span.attributes.get("gen_ai.request.model"))
    model = model if model is not None else span.attributes.get("llm.model_name")
    usage: dict[str, int | float] = {}
    for name, keys in _USAGE.items():
        count = _any(span.attributes, *keys)
        if isinstance(count, int | float) and not isinstance(count, bool):
            usage[name] = count
    call = ModelCall(
        id=span.id,
        input=inputs,
        output=alternatives[0] if alternatives else [],
        tools=tools,
        parent=span.parent,
        model=model if isinstance(model, str) else None,
        failure=span.failure,
        usage=usage,
        # Plain text below an agent: the calls log only the opening prompt, and the turns are rebuilt.
        flat=flat_input and flat_output and parent is not None and _is_agent(parent),
        notes=notes,
    )
    if len(alternatives) < 2:
        return [call]
    return [replace(call, output=one, notes={**notes, "choice": n}) for n, one in enumerate(alternatives)]


def _input(span: Span) -> tuple[list[Message], bool]:
    """Return the input messages, and whether they come from `input.value` only."""
    attributes = span.attributes
    system = decode_json_text(attributes.get("gen_ai.system_instructions"))
    # Parts without a role are the content of one system message.
    if isinstance(system, list) and system and all(isinstance(p, dict) and "role" not in p for p in system):
        system = [{"role": "system", "parts": system}]
    messages = conversation(system, "gen_ai.system_instructions", role="system")
    if "gen_ai.input.messages" in attributes:
        prompt = conversation(attributes["gen_ai.input.messages"], "gen_ai.input.messages", role="user")
        return messages + prompt, False
    for reader, prefix in ((read_numbered_messages, "gen_ai.prompt"), (openinference_messages, "llm.input_messages")):
        if prompt := reader(attributes, prefix):
            return messages + prompt, False
    if prompt := messages_of_events(_all_events(span), answers_wanted=False):
        return messages + prompt, False
    value = _any(attributes, "input.value", "traceloop.entity.input", "gen_ai.prompt")
    messages += instructions_in(attributes.get("output.value")) + instructions_in(value)
    return messages + conversation(value, "input.value", role="user"), True


def _outputs(span: Span) -> tuple[list[list[Message]], bool]:
    """Return the alternative answers, and whether they come from `output.value` only."""
    attributes = span.attributes
    if "gen_ai.output.messages" in attributes:
        messages = conversation(attributes["gen_ai.output.messages"], "gen_ai.output.messages", role="assistant")
        return _alternatives(messages), False
    if messages := read_numbered_messages(attributes, "gen_ai.completion"):
        return _alternatives(messages), False
    if messages := openinference_messages(attributes, "llm.output_messages"):
        return [messages], False
    if messages := messages_of_events(_all_events(span), answers_wanted=True):
        return _alternatives(messages), False
    value = _any(attributes, "output.value", "traceloop.entity.output", "gen_ai.completion")
    return answers(value, "output.value"), True


def _alternatives(messages: list[Message]) -> list[list[Message]]:
    # Several answers of the assistant are alternatives; with other roles among them they are one conversation.
    if all(message.role == "assistant" for message in messages):
        return [[message] for message in messages]
    return [messages]


def _all_events(span: Span) -> list[Event]:
    """Return span events and log records, including the `events` attribute (a JSON list) of older pydantic-ai spans."""
    listed = decode_json_text(span.attributes.get("events"))
    inside = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return span.events + [(item["event.name"], item) for item in inside if isinstance(item.get("event.name"), str)]


def _tool_run(span: Span) -> ToolRun:
    """Convert a tool span to a ToolRun."""
    attributes = span.attributes
    call_id = attributes.get("gen_ai.tool.call.id", attributes.get("tool.id", attributes.get("tool_call.id")))
    name = attributes.get("gen_ai.tool.name", attributes.get("tool.name"))
    failure = span.failure
    # "exception" is the default kind for a span; the default for a tool run is "tool_error".
    if failure is not None and failure.kind == "exception":
        failure = replace(failure, kind="tool_error")
    return ToolRun(
        id=span.id,
        name=name if isinstance(name, str) and name else span.name,
        output=_any(attributes, "gen_ai.tool.call.result", "tool_response", "output.value", "traceloop.entity.output"),
        arguments=_any(attributes, "gen_ai.tool.call.arguments", "tool_arguments", "input.value", "tool.parameters"),
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
        result = decode_json_text(span.attributes.get("output.value")) if _kind(span) == "EVALUATOR" else None
        if isinstance(result, dict) and ("score" in result or "label" in result):
            scores.append(Score(span.name or "score", result.get("score", result.get("label"))))
    return scores


FORMAT = Format(
    name=NAME, unit="file", matches=matches, read=guarded(read), summary="OpenTelemetry GenAI and OpenInference spans"
)

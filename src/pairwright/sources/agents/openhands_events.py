"""OpenHands rows and request logs in the OpenAI chat shape, and the conversion of single events to messages.

sources/agents/openhands.py reads files of events.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import (
    BadRecord,
    identifier,
    items,
    json_text,
    mapping,
    optional_items,
    optional_mapping,
    optional_text,
    score,
    text,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import (
    call_from_chat,
    content_from_chat,
    message_from_chat,
    messages_from_chat,
    tools_from_chat,
)
from pairwright.sources.shapes.recorded_tokens import tokens_of_turns, turn_tokens
from pairwright.sources.shapes.session_entries import as_past

NAME = "openhands"
# Footer of a shell result; with several commands, the last footer counts.
_EXIT_CODE = re.compile(r"\[(?:Command finished|The command completed) with exit code (-?\d{1,12})\.?\]")
# Start of failed results; the first match wins, and the last pattern is the broadest.
_FAILURES = (
    ("file_not_found", re.compile(r"Ran into \[Errno 2\]|(ERROR:\s*)?The path .{1,500} does not exist")),
    ("invalid_arguments", re.compile(r"(ERROR:\s*)?(Invalid `|Error validating|Parameter `)")),
    ("unknown_tool", re.compile(r"(ERROR:\s*)?Tool .{1,200} not found")),
    ("tool_error", re.compile(r"ERROR:|Error: |Cannot execute multiple commands")),
)


def is_row(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return False
    return "instance_id" in value and ("resolved" in value or "test_result" in value)


def is_log(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return False
    response = value.get("response")
    has_choices = isinstance(response, dict) and isinstance(response.get("choices"), list)
    return has_choices and ("latency_sec" in value or "cost" in value)


def matches(value: Any) -> bool:
    return is_row(value) or is_log(value)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    value = mapping(value, "row")
    if is_log(value):
        yield from _choices(value, origin)
    else:
        yield _row(value, origin)


def scores_of(row: Json) -> tuple[float | None, Json, Json]:
    """Return the reward of a row, the scores it was selected from, and fields that may hold other scores."""
    result = row.get("test_result")
    report = result.get("report") if isinstance(result, dict) else None
    # Places of scores; the first one with the number wins.
    fields: Json = {}
    for place in (result, report, row):
        fields |= {key: item for key, item in place.items() if item is not None} if isinstance(place, dict) else {}
    resolved = score(fields.get("resolved"))
    return resolved, {} if resolved is None else {"resolved": resolved}, fields


def info_of(row: Json) -> Json:
    """Return the metadata of a row, without its test logs."""
    info: Json = {key: row[key] for key in ("run_id", "error", "attempt") if row.get(key) is not None}
    result = row.get("test_result")
    if isinstance(result, dict):
        info["test_result"] = {
            key: item for key, item in result.items() if key not in ("test_output", "apply_patch_output")
        }
    return info


def error_kind_of_text(text: str) -> str | None:
    """Return the failure kind indicated by the text of a tool result, or None."""
    text = text.removeprefix("OBSERVATION:\n").lstrip()
    for kind, start in _FAILURES:
        if start.match(text):
            return kind
    # Only the end of the text: a command may print such a line, and outputs may be long.
    codes = _EXIT_CODE.findall(text[-2000:])
    if not codes or int(codes[-1]) == 0:
        return None
    return "timeout" if codes[-1] == "-1" else "nonzero_exit"  # -1: still running at the timeout


def _row(row: Json, origin: Origin) -> Parts:
    """Build the experience of a row."""
    messages = messages_from_chat(row.get("messages"), "messages")
    tools = tools_from_chat(row.get("tools"), "tools")
    reward, components, fields = scores_of(row)
    return Parts(
        NAME,
        origin,
        task=identifier(row.get("instance_id")),
        messages=messages,
        tools=tools,
        reward=reward,
        reward_components=components,
        row=fields,
        error_kind=_error_kind,
        info=info_of(row),
    )


def _choices(log: Json, origin: Origin) -> Iterator[Parts | Rejected]:
    """Yield one experience per choice of a request log."""
    prompt = messages_from_chat(log.get("messages"), "messages")
    schemas_in_log = log.get("tools")
    tools = tools_from_chat(
        # Older logs have the tools in the keyword arguments of the request.
        optional_mapping(log.get("kwargs"), "kwargs").get("tools") if schemas_in_log is None else schemas_in_log,
        "tools",
    )
    response = mapping(log.get("response"), "response")
    choices = items(response.get("choices"), "response.choices")
    if not choices:
        raise BadRecord("response.choices: empty, so there is no completion")
    model = response.get("model")
    for number, value in enumerate(choices):
        where = f"response.choices[{number}]"
        try:
            choice = mapping(value, where)
            answer = message_from_chat(choice.get("message"), f"{where}.message")
            arrays, dropped = _tokens(response, choice)
            info: Json = {"timestamp": log["timestamp"]} if "timestamp" in log else {}
            yield Parts(
                NAME,
                origin,
                task=None,
                # Choices of one request are runs of one task; a single choice has its position in the file as run.
                run=number if len(choices) > 1 else None,
                prompt=prompt,
                completion=[answer],
                tools=tools,
                error_kind=_error_kind,
                info={**info, **dropped},
                metrics=_metrics(log, response),
                model_version=model if isinstance(model, str) else None,
                truncate_status="response_truncated" if choice.get("finish_reason") == "length" else None,
                arrays=arrays,
            )
        except (BadRecord, RecordError) as error:
            yield Rejected(origin.file, origin.line, str(error), format=NAME)


def _tokens(response: Json, choice: Json) -> tuple[Json | None, Json]:
    """Return the recorded token fields of a request, and the reason if they are dropped."""
    fields = choice.get("provider_specific_fields")
    ids = choice.get("token_ids") or (fields.get("token_ids") if isinstance(fields, dict) else None)
    if not ids:
        return None, {}
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    values = [item.get("logprob") if isinstance(item, dict) else None for item in content or []] if content else None
    arrays = tokens_of_turns([turn_tokens(response.get("prompt_token_ids"), ids, values)])
    return arrays, {} if arrays else {"tokens_dropped": "the ids of the prompt or of the answer are not usable"}


def _metrics(log: Json, response: Json) -> Json:
    metrics: Json = {key: log[key] for key in ("cost", "latency_sec") if isinstance(log.get(key), int | float)}
    usage = response.get("usage")
    for key in ("prompt_tokens", "completion_tokens"):
        if isinstance(usage, dict) and isinstance(usage.get(key), int):
            metrics[key] = usage[key]
    return metrics


def _error_kind(position: int, message: Message) -> str | None:
    return error_kind_of_text(message.text)


FORMAT = Format("openhands-rows", "record", matches, read, "OpenHands rows and request logs")


_ENTRIES = (
    "SystemPromptEvent",
    "MessageEvent",
    "ActionEvent",
    "ObservationEvent",
    "AgentErrorEvent",
    "UserRejectObservation",
)
KINDS = frozenset({*_ENTRIES, "Condensation", "ConversationStateUpdateEvent", "TokenEvent", "ConversationErrorEvent"})


@dataclass(eq=False)
class Entry:
    """A message with the ids of its events, the id of its model response, and its failure kind."""

    message: Message
    ids: set[str]
    response: str | None = None
    error: str | None = None

    def add(self, other: "Entry") -> None:
        """Merge another action of the same model response."""
        left, right = self.message, other.message
        self.ids |= other.ids
        self.message = Message(
            left.role,
            # Each action of an answer repeats its thought: equal texts are kept once.
            left.content if right.content in (None, left.content) else [*_parts(left.content), *_parts(right.content)],
            left.reasoning
            if right.reasoning in (None, left.reasoning)
            else _join_texts(left.reasoning, right.reasoning),
            left.tool_calls + right.tool_calls,
            generated=left.generated,
            extra={**left.extra, **right.extra},
        )

    def as_context(self) -> "Entry":
        return Entry(as_past(self.message), self.ids, self.response, self.error)


def entry_of_event(event: Json) -> Entry | None:
    """Convert an event to an entry; None if it is not part of the conversation."""
    kind = event.get("kind")
    if kind not in _ENTRIES:
        return None
    event_id = event.get("id")
    ids = {event_id} if isinstance(event_id, str) else set()
    if kind == "SystemPromptEvent":
        return Entry(Message("system", _content(event.get("system_prompt"), "system_prompt")), ids)
    if kind == "MessageEvent":
        return Entry(_message(event), ids)
    if kind == "ActionEvent":
        response = event.get("llm_response_id")
        return Entry(_action(event), ids, response if isinstance(response, str) and response else None)
    if kind == "ObservationEvent":
        message = _observation(event)
        return Entry(message, ids, error=_error_of_event(message))
    # Remaining kinds: an error of the agent, or an action refused by the user.
    key = "error" if kind == "AgentErrorEvent" else "rejection_reason"
    content = text(event.get(key), key)
    error = error_kind_of_text(content) or "tool_error"
    return Entry(_result(event, content, {"is_error": True}), ids, error=error)


def _message(event: Json) -> Message:
    message = message_from_chat(event.get("llm_message"), "llm_message")
    content = _content(message.content, "llm_message.content")
    added = optional_items(event.get("extended_content"), "extended_content")
    if added:  # text that the program added for the model
        content = [*_parts(content), *_parts(_content(added, "extended_content"))]
    reasoning = message.reasoning or _thinking(event.get("llm_message"))
    return Message(message.role, content, reasoning, message.tool_calls, message.tool_call_id, message.name)


def _action(event: Json) -> Message:
    """Convert an action event to an assistant message with one tool call."""
    if event.get("tool_call") is not None:
        call = call_from_chat(event["tool_call"], "tool_call")
    else:
        call = ToolCall(text(event.get("tool_name"), "tool_name"), json_text(event.get("action")))
    if call.id is None:
        call = ToolCall(call.name, call.arguments, optional_text(event.get("tool_call_id"), "tool_call_id"), call.type)
    reasoning = optional_text(event.get("reasoning_content"), "reasoning_content") or _thinking(event)
    return Message(
        "assistant",
        _content(event.get("thought"), "thought"),
        reasoning,
        (call,),
        # Actions of the user or the environment were not generated.
        generated=None if event.get("source") in ("agent", None) else False,
    )


def _observation(event: Json) -> Message:
    observation = mapping(event.get("observation"), "observation")
    extra: Json = {
        key: observation[key]
        for key in ("is_error", "exit_code", "timeout")
        if observation.get(key) not in (None, False)
    }
    if "content" in observation:
        return _result(event, _content(observation["content"], "observation.content"), extra)
    output = observation.get("output")  # older versions
    return _result(event, output if isinstance(output, str) else json_text(observation), extra)


def _result(event: Json, content: str | list[Json] | None, extra: Json) -> Message:
    return Message(
        "tool",
        content,
        tool_call_id=optional_text(event.get("tool_call_id"), "tool_call_id"),
        name=optional_text(event.get("tool_name"), "tool_name"),
        extra=extra,
    )


def _error_of_event(message: Message) -> str | None:
    if message.extra.get("timeout") is True:
        return "timeout"
    if message.extra.get("is_error") is True:
        return error_kind_of_text(message.text) or "tool_error"
    # A negative code means that the command was still running.
    exit_code = message.extra.get("exit_code")
    return "nonzero_exit" if isinstance(exit_code, int) and exit_code > 0 else None


def _content(value: Any, where: str) -> str | list[Json] | None:
    """Return content without prompt cache markers: a single text part becomes text, no parts None, others are kept."""
    content = content_from_chat(value, where)
    if not isinstance(content, list):
        return content
    # `cache_prompt` is a hint for the provider's prompt cache, not content.
    parts = [{key: item for key, item in part.items() if key != "cache_prompt"} for part in content]
    if len(parts) == 1 and parts[0].keys() == {"type", "text"} and isinstance(parts[0]["text"], str):
        return str(parts[0]["text"])
    return parts or None


def _parts(content: str | list[Json] | None) -> list[Json]:
    if isinstance(content, list):
        return content
    return [] if content is None else [{"type": "text", "text": content}]


def _thinking(value: Any) -> str | None:
    blocks = value.get("thinking_blocks") if isinstance(value, dict) else None
    if not isinstance(blocks, list):
        return None
    thoughts = [block.get("thinking") for block in blocks if isinstance(block, dict)]
    return "\n\n".join(thought for thought in thoughts if isinstance(thought, str)) or None


def _join_texts(left: str | None, right: str | None) -> str | None:
    return "\n\n".join(thought for thought in (left, right) if thought) or None

"""One OpenHands event as an entry of the conversation: its message, and the failure that it tells of."""

from dataclasses import dataclass
from typing import Any

from pairwright.messages import Json, Message, ToolCall
from pairwright.sources.chat import call_from_chat, content_from_chat, message_from_chat
from pairwright.sources.fields import json_text, mapping, optional_items, optional_text, text
from pairwright.sources.openhands_rows import said_error_kind

_ENTRIES = (
    "SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "AgentErrorEvent", "UserRejectObservation",
)  # fmt: skip
KINDS = frozenset({*_ENTRIES, "Condensation", "ConversationStateUpdateEvent", "TokenEvent", "ConversationErrorEvent"})


@dataclass(eq=False)
class Entry:
    """A message with the ids of its events, the request that it came from, and the kind of error that it shows."""

    message: Message
    ids: set[str]
    response: str | None = None
    error: str | None = None

    def add(self, other: "Entry") -> None:
        """Take in a further action of the same answer."""
        left, right = self.message, other.message
        self.ids |= other.ids
        self.message = Message(
            left.role,
            left.content if right.content in (None, left.content) else [*_parts(left.content), *_parts(right.content)],
            left.reasoning if right.reasoning in (None, left.reasoning) else _joined(left.reasoning, right.reasoning),
            left.tool_calls + right.tool_calls,
            generated=left.generated,
            extra={**left.extra, **right.extra},
        )

    def as_context(self) -> "Entry":
        m = self.message
        if not m.is_generated:
            return Entry(m, self.ids, self.response, self.error)
        context = Message(m.role, m.content, m.reasoning, m.tool_calls, m.tool_call_id, m.name, False, m.extra)
        return Entry(context, self.ids, self.response, self.error)


def entry_of_event(event: Json) -> Entry | None:
    """The entry of an event; None where the event is not part of the conversation."""
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
        return Entry(message, ids, error=_observed_error(event, message))
    key = "error" if kind == "AgentErrorEvent" else "rejection_reason"
    said = text(event.get(key), key)
    error = said_error_kind(said) or "tool_error"
    return Entry(_result(event, said, {"is_error": True}), ids, error=error)


def _message(event: Json) -> Message:
    message = message_from_chat(event.get("llm_message"), "llm_message")
    content = _content(message.content, "llm_message.content")
    added = optional_items(event.get("extended_content"), "extended_content")
    if added:  # what the program put after the user's words, for the model to see
        content = [*_parts(content), *_parts(_content(added, "extended_content"))]
    reasoning = message.reasoning or _thinking(event.get("llm_message"))
    return Message(message.role, content, reasoning, message.tool_calls, message.tool_call_id, message.name)


def _action(event: Json) -> Message:
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


def _observed_error(event: Json, message: Message) -> str | None:
    if message.extra.get("timeout") is True:
        return "timeout"
    if message.extra.get("is_error") is True:
        return said_error_kind(message.text) or "tool_error"
    exit_code = message.extra.get("exit_code")
    return "nonzero_exit" if isinstance(exit_code, int) and exit_code > 0 else None


def _content(value: Any, where: str) -> str | list[Json] | None:
    """Content without the marks for the prompt cache: one text part is text, none is None, more stay parts."""
    content = content_from_chat(value, where)
    if not isinstance(content, list):
        return content
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


def _joined(left: str | None, right: str | None) -> str | None:
    return "\n\n".join(thought for thought in (left, right) if thought) or None

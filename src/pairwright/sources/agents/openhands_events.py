"""Events of OpenHands' SDK as messages, and the context that a condensation leaves."""

from dataclasses import dataclass, replace
from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.agents.openhands_rows import error_kind_of_text
from pairwright.sources.fields import (
    index,
    json_text,
    mapping,
    object_or_empty,
    objects_in,
    optional_items,
    optional_text,
    text,
)
from pairwright.sources.shapes.anthropic import parts_of
from pairwright.sources.shapes.chat_messages import call_from_chat, content_from_chat, message_from_chat
from pairwright.sources.shapes.session_entries import as_past

# Kinds of events that become messages
_ENTRIES = ["SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent"]
_ENTRIES += ["AgentErrorEvent", "UserRejectObservation"]
KINDS = frozenset({*_ENTRIES, "Condensation", "ConversationStateUpdateEvent", "TokenEvent", "ConversationErrorEvent"})


@dataclass(eq=False)
class Entry:
    """A message with the ids of its events, the id of its model response, and its failure kind."""

    message: Message
    ids: set[Any]
    response: str | None = None
    error: str | None = None

    def add(self, other: "Entry") -> None:
        """Merge another action of the same model response."""
        left, right = self.message, other.message
        content, reasoning = left.content, left.reasoning
        # Each action of an answer repeats its thought: equal texts are kept once.
        if right.content not in (None, content):
            content = [*parts_of(content), *parts_of(right.content)]
        if right.reasoning not in (None, reasoning):
            reasoning = "\n\n".join(thought for thought in (reasoning, right.reasoning) if thought) or None
        calls, extra = left.tool_calls + right.tool_calls, {**left.extra, **right.extra}
        self.ids |= other.ids
        self.message = Message(left.role, content, reasoning, calls, generated=left.generated, extra=extra)


def condensed(entries: list[Entry], fields: Json, *, generated: bool | None = None) -> list[Entry]:
    """Return the context after a condensation: the entries without the forgotten events, and the summary."""
    listed = optional_items(fields.get("forgotten_event_ids"), "forgotten_event_ids")
    forgotten = {event_id for event_id in listed if isinstance(event_id, int | str)}
    first, last = fields.get("forgotten_events_start_id"), fields.get("forgotten_events_end_id")
    # Either a list of ids or an inclusive range.
    if isinstance(first, int) and isinstance(last, int):
        ids = {event_id for entry in entries for event_id in entry.ids}
        forgotten = {event_id for event_id in ids if isinstance(event_id, int) and first <= event_id <= last}
    # A merged message is forgotten if any of its events is.
    remaining = [replace(entry, message=as_past(entry.message)) for entry in entries if entry.ids.isdisjoint(forgotten)]
    if isinstance(fields.get("summary"), str):
        place = index(fields.get("summary_offset"))
        summary = Message("user", fields["summary"], generated=generated, extra={"is_summary": True})
        remaining.insert(len(remaining) if place is None else place, Entry(summary, set()))
    return remaining


def entry_of_event(event: Json) -> Entry | None:
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
        exit_code = message.extra.get("exit_code")
        error = None
        if message.extra.get("timeout") is True:
            error = "timeout"
        elif message.extra.get("is_error") is True:
            error = error_kind_of_text(message.text) or "tool_error"
        # A negative code means that the command was still running.
        elif isinstance(exit_code, int) and exit_code > 0:
            error = "nonzero_exit"
        return Entry(message, ids, error=error)
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
        content = [*parts_of(content), *parts_of(_content(added, "extended_content"))]
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
        # Actions of the user or the environment were not generated.
        generated=None if event.get("source") in ("agent", None) else False,
    )


def _observation(event: Json) -> Message:
    observation = mapping(event.get("observation"), "observation")
    marks = {key: observation.get(key) for key in ("is_error", "exit_code", "timeout")}
    extra = {key: mark for key, mark in marks.items() if mark not in (None, False)}
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


def _thinking(value: Any) -> str | None:
    blocks = objects_in(object_or_empty(value).get("thinking_blocks"))
    return "\n\n".join(thought for block in blocks if isinstance(thought := block.get("thinking"), str)) or None

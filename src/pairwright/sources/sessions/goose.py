"""goose sessions: `{id, working_dir, conversation[]}` as exported, or JSON Lines of the session and its messages.

The output of `goose run` is also read: {messages[]}, or a stream of {type: message, message}.

    text, image       content                   thinking, reasoning      reasoning
    toolRequest       id, toolCall{status, value{name, arguments}} or toolCall{status: error, error}
    toolResponse      id, toolResult{status, value: content[] or {content[], isError}} or {status: error, error}

A result is linked to its call by id. An unreadable call (status error) has no name and stays a part. A compaction hides
the previous messages from the model (`metadata.agentVisible` false) and begins with a summary hidden from the user.
Neither system prompt nor tools are logged: prompts are incomplete. There is no reward.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import identifier, mapping, object_or_empty, objects, objects_in, text, text_at, value_at
from pairwright.sources.format import Origin
from pairwright.sources.shapes.anthropic import call_block, result_block, thought_block, user_from_blocks
from pairwright.sources.shapes.session_entries import Entry, Session, SessionFormat, turn_messages

_SESSION_KEYS = ("working_dir", "extension_data", "accumulated_total_tokens", "message_count")
_RESTARTS = "$restarts"  # set by us on summaries
_NOTES = ("toolConfirmationRequest", "actionRequired", "systemNotification", "conversationCompacted")


def matches(value: Any) -> bool:
    if isinstance(value, dict):
        if isinstance(value.get("conversation"), list):
            return "working_dir" in value
        return isinstance(value.get("messages"), list) and any(map(_has_tool_block, value["messages"]))
    lines = objects_in(value)
    head = lines[0] if lines else {}
    if "role" not in head and any(key in head for key in _SESSION_KEYS):
        return any("role" in line and "created" in line for line in lines[1:])
    return any(_has_tool_block(_unwrap(line)) for line in lines if "role" not in line)


def _begin(value: Any, session: Session, origin: Origin) -> Any:
    head = object_or_empty(value[0] if isinstance(value, list) and value else value)
    if isinstance(value, list) and not {"role", "type"}.isdisjoint(head):
        head = {}
    session.id = identifier(head.get("id")) or origin.path.stem
    session.model = text_at(head, "model_config.model_name")
    session.note(head, "working_dir", "description", "name")
    return {"messages": value.get("conversation", value.get("messages"))} if isinstance(value, dict) else value


def _with_summaries(lines: list[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the messages; mark a summary, which is visible only to the model and follows messages hidden from it."""
    was_hidden = False
    for number, item in enumerate(lines):
        message = _unwrap(item) if isinstance(item, dict) else item
        if isinstance(message, dict) and "role" in message:
            is_visible = _is_set(message, "agentVisible")
            message = {**message, _RESTARTS: was_hidden and is_visible and not _is_set(message, "userVisible")}
            was_hidden = not is_visible
        yield number, message


def _take(message: Json, session: Session) -> Entry | None:
    if "role" not in message:  # the session, the end of a stream, or a notice
        return None
    blocks = [own for where, block in objects(message.get("content"), "content") for own in _block(block, where)]
    if text(message.get("role"), "role") == "assistant":
        messages = turn_messages(blocks, "content")
    else:
        messages = user_from_blocks(blocks, "content") if blocks else []
    if message[_RESTARTS]:
        mark: Json = {"is_compact_summary": True}
        messages = [Message(turn.role, turn.content, generated=False, extra=mark) for turn in messages]
    return Entry(messages, restarts=message[_RESTARTS])


def _unwrap(line: Json) -> Json:
    """Return the message of a line; in a stream it is under `message`."""
    inner = line.get("message")
    return inner if line.get("type") == "message" and isinstance(inner, dict) else line


def _has_tool_block(message: Any) -> bool:
    blocks = objects_in(object_or_empty(message).get("content"))
    return any(block.get("type") in ("toolRequest", "toolResponse") for block in blocks)


def _is_set(message: Json, key: str) -> bool:
    return object_or_empty(message.get("metadata")).get(key) is not False


def _block(block: Json, where: str) -> list[Json]:
    kind = block.get("type")
    if kind in ("toolRequest", "frontendToolRequest"):
        call = mapping(block.get("toolCall"), f"{where}.toolCall")
        if call.get("status") == "error":
            return [block]
        value = mapping(call.get("value"), f"{where}.toolCall.value")
        return [call_block(block.get("id"), value.get("name"), value.get("arguments"))]
    if kind == "toolResponse":
        result = mapping(block.get("toolResult"), f"{where}.toolResult")
        if result.get("status") == "error":
            return [result_block(block.get("id"), result.get("error"), is_error=True)]
        output = result.get("value")
        is_error = isinstance(output, dict) and output.get("isError") is True
        content = output.get("content", output) if isinstance(output, dict) else output
        return [result_block(block.get("id"), _for_model(content), is_error=is_error)]
    if kind == "reasoning":
        return [thought_block(block.get("text"))]
    return [] if kind in _NOTES else [_without_notes(block)]


def _for_model(content: Any) -> Any:
    """Drop the parts of a result that were shown only to the user."""
    if not isinstance(content, list):
        return content
    audiences = [value_at(part, "annotations.audience") for part in content]
    return [
        _without_notes(part) if isinstance(part, dict) else part
        for part, audience in zip(content, audiences, strict=True)
        if not isinstance(audience, list) or "assistant" in audience
    ]


def _without_notes(part: Json) -> Json:
    return {key: item for key, item in part.items() if key not in ("annotations", "_meta") and item is not None}


FORMAT = SessionFormat(
    "goose", "goose sessions", matches, _take, paths={"lines": "messages"}, begin=_begin, lines=_with_summaries
).format

"""Message histories of pydantic-ai (`all_messages_json`): requests and responses made of parts.

    [{kind: request, parts: [{part_kind: system-prompt | user-prompt | tool-return | retry-prompt}], instructions},
     {kind: response, parts: [{part_kind: text | thinking | tool-call | ...}], model_name, finish_reason}]

also under `messages`, `message_history`, `all_messages` or `new_messages` of a row. The instructions of the first
request follow its system prompts, as pydantic-ai sends them. A retry prompt becomes the result of its tool, marked as
an error, or a user turn if it has no tool. Provider-side tools stay parts of the answer. Tool schemas are not recorded.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.datasets.row_format import history, history_format, history_in
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    items,
    json_text,
    objects,
    optional_objects,
    optional_text,
    text,
    text_or_none,
)
from pairwright.sources.shapes.anthropic import plain_content, text_block
from pairwright.sources.shapes.chat_messages import read_call

_KEYS = ("messages", "message_history", "all_messages", "new_messages")
_FAILED = ("failed", "denied", "retried", "interrupted")
# Bookkeeping parts that are not sent to the model.
_SILENT = ("instruction-digest", "instruction-baseline", "model-settings-delta")


def matches(value: Any) -> bool:
    messages = history_in(value, _KEYS)[0]
    if not isinstance(messages, list) or not messages:
        return False
    return all(has(message, parts=list) and message.get("kind") in ("request", "response") for message in messages)


def _take(row: Json) -> Iterator[Json]:
    listed, where = history_in(row, _KEYS)
    messages: list[Message] = []
    model = reason = None
    for number, (at, item) in enumerate(objects(listed, where)):
        parts = [part for _, part in optional_objects(item.get("parts"), f"{at}.parts")]
        if item.get("kind") == "response":
            messages.append(_answer(parts, at))
            model, reason = item.get("model_name"), item.get("finish_reason")
            continue
        messages += [message for part in parts for message in _request(part, at)]
        instructions = optional_text(item.get("instructions"), f"{at}.instructions")
        if number == 0 and instructions:
            # After the system prompts, before all other messages.
            place = next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
            messages.insert(place, Message("system", instructions))
    yield history(
        messages,
        read_fields=frozenset({where}),
        model_version=text_or_none(model),
        truncate_status="response_truncated" if reason == "length" else None,
    )


def _request(part: Json, where: str) -> list[Message]:
    """Convert a part of a request to at most one message."""
    kind, content = part.get("part_kind"), part.get("content")
    if kind == "system-prompt":
        return [Message("system", text(content, f"{where}.content"))]
    if kind == "user-prompt":
        return [Message("user", _user_content(content, where))]
    if kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
        is_failed = kind == "retry-prompt" or part.get("outcome") in _FAILED
        return [
            Message(
                "tool",
                json_text(content),
                tool_call_id=optional_text(part.get("tool_call_id"), f"{where}.tool_call_id"),
                name=optional_text(part.get("tool_name"), f"{where}.tool_name"),
                extra={"is_error": True} if is_failed else {},
            )
        ]
    if kind in ("retry-prompt", "retry-feedback"):
        return [Message("user", json_text(content))]
    if kind in _SILENT:
        return []
    raise BadRecord(f"{where}: a part of unknown kind {kind!r} in a request")


def _user_content(content: Any, where: str) -> str | list[Json]:
    if isinstance(content, str):
        return content
    listed = [text_block(part) if isinstance(part, str) else part for part in items(content, f"{where}.content")]
    parts = [part for _, part in objects(listed, f"{where}.content")]
    return [part if "type" in part else {"type": part.get("kind", "unknown"), **part} for part in parts]


def _answer(parts: list[Json], where: str) -> Message:
    content: list[Json] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for part in parts:
        kind = part.get("part_kind")
        if kind == "text":
            content.append(text_block(text(part.get("content"), f"{where}.content")))
        elif kind == "thinking":
            thoughts.append(text(part.get("content"), f"{where}.content"))
        elif kind == "tool-call":
            calls.append(read_call(part, where, name="tool_name", arguments="args", call_id="tool_call_id"))
        elif isinstance(kind, str):
            content.append({"type": kind, **filled(part)})
        else:
            raise BadRecord(f"{where}: a part without a kind in a response")
    reasoning = "\n".join(thoughts) if thoughts else None
    return Message("assistant", plain_content(content), reasoning, tuple(calls))


FORMAT = history_format("pydantic-ai", "pydantic-ai message histories", matches, _take)

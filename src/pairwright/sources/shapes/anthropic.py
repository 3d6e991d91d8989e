"""Anthropic messages: content blocks, a separate system prompt, results inside user turns.

    text, image, document, ...   content                  thinking            reasoning
    tool_use                     tool_calls               redacted_thinking   a flag in `extra`
    tool_result                  a tool message; `is_error` is kept in `extra`

Results precede the rest of their user turn, since they answer the calls of the previous turn. Blocks of server-side
tools (server_tool_use, web_search_tool_result) stay in the assistant's content. `cache_control` is dropped: it is a
caching hint that differs between requests.
"""

from collections.abc import Sequence
from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import (
    BadRecord,
    has,
    json_text,
    kind_of,
    mapping,
    objects,
    optional_objects,
    optional_text,
    text,
)
from pairwright.sources.shapes.chat_messages import content_from_chat, read_call

BLOCK_TYPES = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"})
_ROLES = frozenset({"user", "assistant", "system"})


def messages_from_anthropic(system: Any, messages: Any, where: str) -> list[Message]:
    """Convert the `system` (text, text blocks or None) and the `messages` of a request."""
    turns = system_from_anthropic(system, f"{where}.system")
    for place, message in objects(messages, where):
        turns += turn_from_anthropic(message, place)
    return turns


def system_from_anthropic(system: Any, where: str) -> list[Message]:
    """Convert a system prompt, text or text blocks, to at most one message."""
    if system is None or system == "" or system == []:
        return []
    if isinstance(system, dict):
        system = [system]
    content = system if isinstance(system, str) else plain_content(_blocks(system, where))
    return [Message("system", content)]


def turn_from_anthropic(message: Any, where: str) -> list[Message]:
    """Convert one message, or the response of the API, whose `stop_reason` becomes `finish_reason` in `extra`."""
    message = mapping(message, where)
    # A message without a role is a response of the assistant.
    role = text(message.get("role", "assistant"), f"{where}.role")
    if role not in _ROLES:
        raise BadRecord(f"{where}.role: expected user or assistant, got {role!r}")
    blocks = _blocks(message.get("content"), f"{where}.content")
    if role != "assistant":
        return user_from_blocks(blocks, f"{where}.content", role=role)
    reason = message.get("stop_reason")
    extra = {"finish_reason": reason} if isinstance(reason, str) else {}
    return [assistant_from_blocks(blocks, f"{where}.content", extra=extra)]


def assistant_from_blocks(
    blocks: Sequence[Json],
    where: str,
    *,
    calls: Sequence[ToolCall] = (),
    generated: bool | None = None,
    extra: Json | None = None,
) -> Message:
    """Convert the blocks of an assistant turn; `calls` are already known from another field and not repeated."""
    parts: list[Json] = []
    thoughts: list[str] = []
    tool_calls = list(calls)
    known_ids = {call.id for call in calls if call.id is not None}
    extra = dict(extra or {})
    for number, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text":
            parts.append(block)
        elif kind == "thinking":
            thoughts.append(text(block.get("thinking"), f"{where}[{number}].thinking"))
        elif kind == "redacted_thinking":
            extra["redacted_thinking"] = True  # encrypted: only its presence is known
        elif kind == "tool_use":
            # A call without an id cannot be matched to a known one, so it is added.
            if not isinstance(block.get("id"), str) or block["id"] not in known_ids:
                tool_calls.append(read_call(block, f"{where}[{number}]", arguments="input", missing="{}"))
        else:
            parts.append(block)
    return Message(
        "assistant",
        content=plain_content(parts),
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=tuple(tool_calls),
        generated=generated,
        extra=extra,
    )


def user_from_blocks(
    blocks: Sequence[Json], where: str, *, role: str = "user", generated: bool | None = None, extra: Json | None = None
) -> list[Message]:
    """Convert the blocks of a user turn: its tool results as tool messages, then the rest as a user message."""
    messages: list[Message] = []
    parts: list[Json] = []
    for number, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            messages.append(_result(block, f"{where}[{number}]"))
        else:
            parts.append(block)
    # A turn with only results yields no user message; an empty turn yields an empty one.
    if parts or not blocks:
        messages.append(Message(role, plain_content(parts), generated=generated, extra=extra or {}))
    return messages


def _result(block: Json, where: str) -> Message:
    content = content_from_chat(block.get("content"), f"{where}.content")
    return Message(
        "tool",
        content=plain_content(content) if isinstance(content, list) else content,
        tool_call_id=optional_text(block.get("tool_use_id"), f"{where}.tool_use_id"),
        extra={"is_error": True} if block.get("is_error") is True else {},
    )


def plain_content(parts: list[Json]) -> str | list[Json] | None:
    """Return None for no parts, text for a single text part, else the parts without hints to the server."""
    if not parts:
        return None
    if len(parts) == 1 and parts[0].get("type") == "text" and isinstance(parts[0].get("text"), str):
        return str(parts[0]["text"])
    return [
        {key: item for key, item in part.items() if key != "cache_control"} if "cache_control" in part else part
        for part in parts
    ]


def parts_of(content: str | list[Json] | None) -> list[Json]:
    """Return the parts of a message's content in a new list; text is one part."""
    if isinstance(content, list):
        return list(content)
    return [] if content is None else [text_block(content)]


def text_block(text: Any) -> Json:
    return {"type": "text", "text": text}


def thought_block(text: Any) -> Json:
    return {"type": "thinking", "thinking": text}


def call_block(call_id: Any, name: Any, arguments: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if arguments is None else arguments}


def result_block(call_id: Any, content: Any, *, is_error: bool = False) -> Json:
    """Return a tool result block; values other than text or parts become JSON text."""
    is_parts = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
    if content is not None and not isinstance(content, str) and not is_parts:
        content = json_text(content)
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}


def _blocks(content: Any, where: str) -> list[Json]:
    """Return content as a list of blocks; text is one text block."""
    if content is None:
        return []
    if isinstance(content, str):
        return [text_block(content)]
    if not isinstance(content, list):
        raise BadRecord(f"{where}: expected text or a list of blocks, got {kind_of(content)}")
    blocks = [text_block(block) if isinstance(block, str) else block for block in content]
    return [block for _, block in objects(blocks, where)]


def tools_from_anthropic(tools: Any, where: str) -> list[Json]:
    """Return tools as function schemas; server-side tools ({type: web_search_...}) are unchanged."""
    schemas: list[Json] = []
    for _, tool in optional_objects(tools, where):
        # A tool with `function` is already a function schema.
        if "input_schema" in tool and "function" not in tool:
            function = {key: tool[key] for key in ("name", "description") if tool.get(key) is not None}
            tool = {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}
        schemas.append(tool)
    return schemas


def has_blocks(content: Any) -> bool:
    """Whether content is a list with at least one Anthropic-specific block."""
    return isinstance(content, list) and any(has(block, type=str) and block["type"] in BLOCK_TYPES for block in content)


def is_anthropic_response(value: Any) -> bool:
    """Whether the value is a response of the Messages API: {type: message, role: assistant, content[], stop_reason}."""
    if not has(value, content=list) or value.get("role") != "assistant":
        return False
    # Messages of OpenAI's Responses API differ only in their output_text blocks.
    is_own = all(has(block) and block.get("type") != "output_text" for block in value["content"])
    return is_own and ("stop_reason" in value or value.get("type") == "message")

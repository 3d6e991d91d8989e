"""The messages of Claude Code lines: content blocks to messages, the lines of one message to one message.

text, image, ...   content           thinking     reasoning        tool_use  tool_calls
tool_result        a tool message; `is_error` is kept in `extra`
"""

from collections.abc import Iterator

from pairwright.messages import Json, Message, ToolCall
from pairwright.sources.chat import content_from_chat
from pairwright.sources.claude_tree import Turn
from pairwright.sources.fields import json_text, optional_text, text


def assistant_messages(line: Json, message: Json, blocks: list[Json]) -> Iterator[Message]:
    parts, thoughts, calls, extra = [], [], [], {}
    for number, block in enumerate(blocks):
        where = f"message.content[{number}]"
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(text(block.get("thinking"), f"{where}.thinking"))
        elif kind == "redacted_thinking":
            extra["redacted_thinking"] = True
        elif kind == "tool_use":
            calls.append(
                ToolCall(
                    name=text(block.get("name"), f"{where}.name"),
                    arguments=json_text(block.get("input", {})),
                    id=optional_text(block.get("id"), f"{where}.id"),
                )
            )
        else:
            parts.append(block)
    is_copy = line.get("forkedFrom") is not None
    is_notice = line.get("isApiErrorMessage") is True or message.get("model") == "<synthetic>"
    if line.get("isApiErrorMessage") is True:
        extra["is_api_error"] = True
    yield Message(
        "assistant",
        content=_plain(parts),
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=tuple(calls),
        generated=False if is_copy or is_notice else None,
        extra=extra,
    )


def user_messages(line: Json, message: Json, blocks: list[Json]) -> Iterator[Message]:
    """The tool results of a line, each a message, and what the user said beside them."""
    parts = []
    for number, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts.append(block)
            continue
        where = f"message.content[{number}]"
        content = content_from_chat(block.get("content"), f"{where}.content")
        yield Message(
            "tool",
            content=_plain(content) if isinstance(content, list) else content,
            tool_call_id=optional_text(block.get("tool_use_id"), f"{where}.tool_use_id"),
            extra={"is_error": True} if block.get("is_error") is True else {},
        )
    if parts or not blocks:
        is_summary = line.get("isCompactSummary") is True
        extra: Json = {"is_compact_summary": True} if is_summary else {}
        if line.get("isMeta") is True:
            extra["is_meta"] = True
        yield Message("user", content=_plain(parts), generated=False if is_summary else None, extra=extra)


def _plain(parts: list[Json]) -> str | list[Json] | None:
    """No part is None, one text is text, anything more stays parts."""
    if not parts:
        return None
    if len(parts) == 1 and parts[0].get("type") == "text" and isinstance(parts[0].get("text"), str):
        return str(parts[0]["text"])
    return parts


def messages_of(turn: Turn) -> list[Message]:
    """The messages of a turn: the lines of an assistant message merged, tool results in file order."""
    lines = sorted(turn.lines, key=lambda line: line.number)
    if not turn.first.is_assistant:
        return [message for line in lines for message in line.messages]
    merged = lines[0].messages[0]
    for line in lines[1:]:
        merged = _merged(merged, line.messages[0])
    return [merged]


def _merged(left: Message, right: Message) -> Message:
    """Two lines of one message. What a line repeats of an earlier one (some versions do) is taken once."""
    parts = _parts(left)
    parts += [part for part in _parts(right) if part not in parts]
    thoughts = [left.reasoning] if left.reasoning is not None else []
    if right.reasoning is not None and right.reasoning not in thoughts:
        thoughts.append(right.reasoning)
    calls = left.tool_calls + tuple(call for call in right.tool_calls if call not in left.tool_calls)
    return Message(
        "assistant",
        content=_plain(parts),
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=calls,
        generated=False if False in (left.generated, right.generated) else None,
        extra={**left.extra, **right.extra},
    )


def _parts(message: Message) -> list[Json]:
    if isinstance(message.content, list):
        return list(message.content)
    return [] if message.content is None else [{"type": "text", "text": message.content}]

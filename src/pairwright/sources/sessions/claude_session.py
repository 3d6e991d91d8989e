"""Claude Code sessions: the tree of turns and branches, and the messages of their lines.

Content blocks become messages in shapes/anthropic.py; the lines of one assistant message are merged into one message.
Lines with the usual blocks are decoded by type (`decode_line`), to the same messages.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import json_text
from pairwright.sources.shapes.anthropic import assistant_from_blocks, plain_content, user_from_blocks
from pairwright.sources.shapes.chat_messages import content_from_chat

# Lines decoded by type: fields that are not named here are not read by anybody.


class _Text(Struct, gc=False, tag="text", forbid_unknown_fields=True):
    text: str


class _Thinking(Struct, gc=False, tag="thinking"):
    thinking: str


class _ToolUse(Struct, gc=False, tag="tool_use"):
    name: str
    id: str | None = None
    input: Any = {}


class _ToolResult(Struct, gc=False, tag="tool_result"):
    tool_use_id: str | None = None
    content: Any = None
    is_error: Any = None


class _LineMessage(Struct, gc=False):
    content: str | list[_Text | _Thinking | _ToolUse | _ToolResult]
    id: Any = None
    model: Any = None
    usage: Any = None
    stop_reason: Any = None


class PlainLine(Struct, gc=False):
    """A line of the user or the assistant with blocks of the usual types; `raw` is its JSON text."""

    type: Literal["user", "assistant"]
    message: _LineMessage
    uuid: str | None = None
    parentUuid: Any = None
    sessionId: Any = None
    isSidechain: Any = None
    agentId: Any = None
    forkedFrom: Any = None
    isApiErrorMessage: Any = None
    isCompactSummary: Any = None
    isMeta: Any = None
    cwd: Any = None
    gitBranch: Any = None
    version: Any = None
    slug: Any = None
    raw: bytes = msgspec.field(default=b"", name="")


_decode_plain = msgspec.json.Decoder(PlainLine).decode


def decode_line(text: bytes) -> PlainLine:
    """Decode a line; raises ValidationError for one that is not plain, and UnicodeError as any decoder does."""
    if not text.isascii():
        text.decode()  # strings that are skipped are not looked at
    line = _decode_plain(text)
    line.raw = text
    return line


def field(value: Json | PlainLine, name: str) -> Any:
    """Return a field of a line, decoded by type or not."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name)


def message_field(value: Json | PlainLine, name: str) -> Any:
    """Return a field of the message of a line, or None."""
    if not isinstance(value, dict):
        return getattr(value.message, name)
    message = value.get("message")
    return message.get(name) if isinstance(message, dict) else None


def plain_line_messages(line: PlainLine) -> tuple[Message, ...] | None:
    """Return the messages of a plain line, as `assistant_messages` and `user_messages` do; None if it is not plain."""
    content = line.message.content
    blocks = [_Text(content)] if isinstance(content, str) else content
    texts: list[str] = []
    if line.type == "assistant":
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for block in blocks:
            if type(block) is _Text:
                texts.append(block.text)
            elif type(block) is _ToolUse:
                calls.append(ToolCall(block.name, json_text(block.input), block.id))
            elif type(block) is _Thinking:
                thoughts.append(block.thinking)
            else:
                return None
        is_notice = line.isApiErrorMessage is True or line.message.model == "<synthetic>"
        message = Message(
            "assistant",
            _content_of(texts),
            "\n\n".join(thoughts) if thoughts else None,
            tuple(calls),
            generated=False if is_notice or line.forkedFrom is not None else None,
            extra={"is_api_error": True} if line.isApiErrorMessage is True else {},
        )
        return (message,)
    messages: list[Message] = []
    for block in blocks:
        if type(block) is _ToolResult:
            result = block.content
            if result is not None and type(result) is not str:
                result = content_from_chat(result, "message.content")
                result = plain_content(result) if isinstance(result, list) else result
            extra: Json = {"is_error": True} if block.is_error is True else {}
            messages.append(Message("tool", result, None, (), block.tool_use_id, extra=extra))
        elif type(block) is _Text:
            texts.append(block.text)
        else:
            return None
    if texts or not blocks:
        messages.append(user_message(line, _content_of(texts)))
    return tuple(messages)


def user_message(line: Json | PlainLine, content: str | list[Json] | None) -> Message:
    is_summary = field(line, "isCompactSummary") is True
    extra: Json = {"is_compact_summary": True} if is_summary else {}
    if field(line, "isMeta") is True:
        extra["is_meta"] = True
    return Message("user", content, generated=False if is_summary else None, extra=extra)


def _content_of(texts: list[str]) -> str | list[Json] | None:
    if len(texts) == 1:
        return texts[0]
    return [{"type": "text", "text": text} for text in texts] or None


# Session tree: lines grouped into turns, turns into branches.


class Line(Struct, frozen=True, eq=False):
    """One line of the file; `messages` is empty if the line is not part of the conversation."""

    number: int
    value: Json | PlainLine
    thread: tuple[object, bool, object]  # session, sidechain or not, agent
    uuid: str | None
    parent: str | None
    messages: tuple[Message, ...] = ()
    message_id: str | None = None
    clears: bool = False
    is_assistant: bool = False

    @property
    def is_sidechain(self) -> bool:
        return self.thread[1]


class Turn(Struct, eq=False):
    """One node of the conversation tree: an assistant message, the results of its calls, or a user turn."""

    parent: "Turn | None"
    lines: list[Line]
    answered: set[str] | frozenset[str] = frozenset()
    children: list["Turn"] = []
    results: "Turn | None" = None  # of an assistant turn: where the results of its calls are gathered

    @property
    def first(self) -> Line:
        return self.lines[0]


def roots_of(lines: list[Line]) -> list[Turn]:
    """Build the conversation trees of a file and return their root turns in file order."""
    parents = _parents(lines)
    # By position in `lines`: the positions of the lines that name it as their parent.
    children: list[list[int]] = [[] for _ in lines]
    queue = []
    for position, parent in enumerate(parents):
        if parent is None:
            queue.append(position)
        else:
            children[parent].append(position)
    roots: list[Turn] = []
    turns: list[Turn | None] = [None] * len(lines)
    for position in queue:  # grows while we walk: parents come before their children
        queue += children[position]
        parent = parents[position]
        above = None if parent is None else turns[parent]
        line = lines[position]
        if line.thread[1] and above is not None and not above.first.is_sidechain:
            above = None  # it names the line that started it, but it does not see that conversation
        turn = turns[position] = _join_turn(line, above) if line.messages else above
        if turn is not None and turn.parent is None and turn.lines[0] is line and len(turn.lines) == 1:
            roots.append(turn)
    for turn in turns:
        # The tree is walked downwards from here. Without the way up there is no circle, so that all is freed at once.
        if turn is not None:
            turn.parent = None
    return sorted(roots, key=lambda turn: turn.first.number)


def branches_of(root: Turn) -> Iterator[list[Turn]]:
    """Yield every path from the root to a leaf, in file order."""
    path: list[Turn] = []
    stack = [(root, 0)]
    while stack:
        turn, depth = stack.pop()
        del path[depth:]
        path.append(turn)
        below = turn.children
        while len(below) == 1:  # most turns have one that follows
            path.append(below[0])
            depth, below = depth + 1, below[0].children
        # Descending, since the stack gives the last one first.
        below = sorted(below, key=lambda child: child.first.number, reverse=True)
        stack += [(child, depth + 1) for child in below]
        if not below:
            yield list(path)


_NONE: frozenset[str] = frozenset()


def _answered_by(line: Line) -> set[str] | frozenset[str]:
    """Return the ids of the calls whose results the line has."""
    if line.is_assistant:
        return _NONE
    return {message.tool_call_id for message in line.messages if message.tool_call_id is not None}


def _join_turn(line: Line, above: Turn | None) -> Turn:
    """Add a line to the turn it belongs to, or to a new turn below `above`; return that turn."""
    asked = above  # the assistant turn that the line continues or answers
    if above is not None and above.answered:
        asked = above.parent
    if asked is not None and asked.first.is_assistant:
        if line.is_assistant and line.message_id is not None and line.message_id == asked.first.message_id:
            asked.lines.append(line)
            return asked
        if answered := _answered_by(line):
            # Results of one answer are gathered in one turn; a second result of the same call begins a branch.
            if asked.results is not None and asked.results.answered.isdisjoint(answered):
                asked.results.lines.append(line)
                asked.results.answered |= answered
                return asked.results
            asked.results = turn = Turn(asked, [line], answered)
            asked.children.append(turn)
            return turn
    turn = Turn(above, [line], _answered_by(line))
    if above is not None:
        above.children.append(turn)
    return turn


def _parents(lines: list[Line]) -> list[int | None]:
    """Return the position of each line's parent, or None at the start of a conversation. The result has no cycles."""
    by_uuid: dict[str, int] = {}
    for position, line in enumerate(lines):
        if line.uuid is not None:
            by_uuid.setdefault(line.uuid, position)
    named = [None if line.parent is None else by_uuid.get(line.parent) for line in lines]
    # Threads in which some line finds its parent are trees; in others (old files) each line follows the one before.
    trees = {line.thread for line, parent in zip(lines, named, strict=True) if parent is not None}
    parents: list[int | None] = []
    last: dict[tuple[object, ...], int] = {}
    for position, line in enumerate(lines):
        parent = named[position] if line.thread in trees else last.get(line.thread)
        parents.append(None if line.clears else parent)
        last[line.thread] = position
    _cut_circles(parents)
    return parents


def _cut_circles(parents: list[int | None]) -> None:
    """Break cycles by making the first line of each one a root; only damaged or malicious files contain cycles."""
    if all(parent is None or parent < position for position, parent in enumerate(parents)):
        return  # the usual order of a file
    finished: set[int] = set()
    for start in range(len(parents)):
        path: dict[int, None] = {}
        at: int | None = start
        while at is not None and at not in finished:
            if at in path:
                parents[min(list(path)[list(path).index(at) :])] = None
                break
            path[at] = None
            at = parents[at]
        finished.update(path)


# Messages: content blocks converted to messages, lines of one message merged.


def assistant_messages(line: Json, message: Json, blocks: list[Json]) -> Iterator[Message]:
    """Yield the message of an assistant line: text parts, reasoning, tool calls and flags."""
    is_copy = line.get("forkedFrom") is not None
    is_notice = line.get("isApiErrorMessage") is True or message.get("model") == "<synthetic>"
    yield assistant_from_blocks(
        blocks,
        "message.content",
        generated=False if is_copy or is_notice else None,
        extra={"is_api_error": True} if line.get("isApiErrorMessage") is True else {},
    )


def user_messages(line: Json, message: Json, blocks: list[Json]) -> Iterator[Message]:
    """Yield the tool results of a user line as tool messages, then the remaining content as a user message."""
    model = user_message(line, None)
    yield from user_from_blocks(blocks, "message.content", generated=model.generated, extra=model.extra)


def messages_of(turn: Turn) -> list[Message]:
    """Return the messages of a turn: lines of an assistant message merged, tool results in file order."""
    lines = turn.lines if len(turn.lines) == 1 else sorted(turn.lines, key=lambda line: line.number)
    if not turn.first.is_assistant:
        return [message for line in lines for message in line.messages]
    merged = lines[0].messages[0]
    for line in lines[1:]:
        merged = _merge_messages(merged, line.messages[0])
    return [merged]


def _merge_messages(left: Message, right: Message) -> Message:
    """Merge two lines of one message, dropping duplicates (some versions repeat earlier content)."""
    content = left.content
    if right.content is not None or isinstance(content, list):
        parts = _parts(left)
        parts += [part for part in _parts(right) if part not in parts]
        content = plain_content(parts)
    thoughts = [left.reasoning] if left.reasoning is not None else []
    if right.reasoning is not None and right.reasoning not in thoughts:
        thoughts.append(right.reasoning)
    calls = left.tool_calls + tuple(call for call in right.tool_calls if call not in left.tool_calls)
    return Message(
        "assistant",
        content=content,
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=calls,
        generated=False if False in (left.generated, right.generated) else None,
        extra={**left.extra, **right.extra},
    )


def _parts(message: Message) -> list[Json]:
    if isinstance(message.content, list):
        return list(message.content)
    return [] if message.content is None else [{"type": "text", "text": message.content}]

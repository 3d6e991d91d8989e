"""Claude Code sessions: the lines of a file, the tree of turns and branches, and the messages of turns.

Lines with the usual blocks are decoded by type (`decode_line`); claude_code.py reads other lines to the same messages.
Content blocks become messages in shapes/anthropic.py, and the lines of one assistant message are merged. Messages
of lines decoded by type are created when their turn is read, since such lines cannot be refused.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import identifier, json_text
from pairwright.sources.shapes.anthropic import plain_content

_CLEAR = re.compile(r"\s*<command-name>/clear</command-name>")

# Lines decoded by type: other fields are never read.


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
    content: str | list[Json] | None = None
    is_error: Any = None


class Usage(Struct, gc=False):
    input_tokens: Any = None
    output_tokens: Any = None


class LineMessage(Struct, gc=False, kw_only=True):
    content: str | list[_Text | _Thinking | _ToolUse | _ToolResult]
    id: str | None = None
    model: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None


class Line(Struct, gc=False, kw_only=True):
    """One line of the file. A line that is not a message only links its children to its parent."""

    parent: str | None = msgspec.field(default=None, name="parentUuid")
    is_sidechain: bool | None = msgspec.field(default=None, name="isSidechain")
    session: int | str | None = msgspec.field(default=None, name="sessionId")
    agentId: str | None = None
    uuid: str | None = None
    number: int = msgspec.field(default=0, name=" number")  # set by the reader, even if a line has such a key

    @property
    def thread(self) -> tuple[object, bool, object]:
        """Session, sidechain or not, agent."""
        return identifier(self.session), self.is_sidechain is True, self.agentId


class LineInfo(Struct, gc=False):
    """Fields that are read only from the first line of a conversation."""

    cwd: Any = None
    gitBranch: Any = None
    version: Any = None
    slug: Any = None
    agentId: Any = None


class MessageLine(Line):
    """A line of the user or the assistant; `raw` is the JSON text."""

    type: Literal["user", "assistant"]
    message: LineMessage
    forkedFrom: Any = None
    isApiErrorMessage: Any = None
    isMeta: Any = None
    isCompactSummary: Any = None
    raw: bytes = msgspec.field(default=b"", name=" raw")


class ReadLine(MessageLine, kw_only=True):
    """A line that was not decoded by type; its messages are already read."""

    messages: list[Message] = []
    info: LineInfo


_decode_plain = msgspec.json.Decoder(MessageLine).decode
_decode_info = msgspec.json.Decoder(LineInfo).decode


def decode_line(text: bytes) -> MessageLine:
    """Decode a line; raises ValidationError for lines with unusual blocks, and UnicodeError for invalid UTF-8."""
    if not text.isascii():
        text.decode()  # the decoder does not validate skipped strings
    line = _decode_plain(text)
    line.raw = text
    content = line.message.content
    if type(content) is list:
        is_assistant = line.type == "assistant"
        for block in content:
            if type(block) is _ToolResult:
                parts = block.content
                if is_assistant or (type(parts) is list and not all(map(_is_text, parts))):
                    raise msgspec.ValidationError("a result of the assistant, or one that is not text")
            elif type(block) is not _Text and not is_assistant:
                raise msgspec.ValidationError("a block of the assistant")
    return line


def info_of(line: MessageLine) -> Json:
    """Return the text fields of LineInfo."""
    info = line.info if type(line) is ReadLine else _decode_info(line.raw)
    return {key: value for key in info.__struct_fields__ if type(value := getattr(info, key)) is str}


def _is_text(part: Json) -> bool:
    return part.get("type") == "text" and type(part.get("text")) is str and len(part) == 2


class Turn(Struct, eq=False, gc=False):
    """One node of the conversation tree: an assistant message, the results of its calls, or a user turn."""

    parent: "Turn | None"
    lines: list[MessageLine]
    answered: set[str] | frozenset[str] = frozenset()
    children: list["Turn"] = []
    results: "Turn | None" = None  # of an assistant turn: the turn with the results of its calls
    # Of an assistant turn: (depth, parent) of its last line, and of its last line with results
    last_line: tuple[int, int] = (-1, -1)
    last_result: tuple[int, int] = (-1, -1)
    is_shuffled: bool = False  # its lines are not in file order

    @property
    def first(self) -> MessageLine:
        return self.lines[0]


class _OutOfOrder(Exception):
    """Raised if file order would add lines to a turn in a different order than level order."""


def roots_of(lines: list[Line], places: dict[str, int]) -> list[Turn]:
    """Build the conversation trees of a file and return their root turns in file order.

    Lines are added to turns in level order, which is file order unless the file is shuffled or damaged.

    Args:
        lines: All lines that are JSON objects.
        places: uuid -> index in `lines` of its first line.
    """
    turns: list[Turn | None] = []
    try:
        return _join_in_file_order(lines, places, turns)
    except _OutOfOrder:
        turns = [None] * len(lines)
        return _join_by_level(lines, _parents(lines, places), turns)
    finally:
        # From here on the tree is only walked downwards. Without references to parents there are no reference cycles.
        for turn in turns:
            if turn is not None:
                turn.parent = None


def _join_in_file_order(lines: list[Line], places: dict[str, int], turns: list[Turn | None]) -> list[Turn]:
    """Build the trees in one pass; raises _OutOfOrder if the result might differ from that of `_join_by_level`.

    `turns` receives the turn of each line; a line that is not a message gets its parent's turn.
    """
    roots: list[Turn] = []
    threads: set[object] = set()  # threads with a message without a parent in the file
    repeated: set[object] = set()  # threads with several of them
    depths: list[int] = []
    for place, line in enumerate(lines):
        parent = line.parent
        above_place = -1 if parent is None else places.get(parent, -1)
        if above_place >= place:
            raise _OutOfOrder
        depth, turn = (depths[above_place] + 1, turns[above_place]) if above_place >= 0 else (0, None)
        above = turn
        if isinstance(line, MessageLine):
            clears = line.type == "user" and line_clears(line)
            if above_place < 0:
                thread = line.thread
                if thread in threads and not clears:
                    repeated.add(thread)
                threads.add(thread)
            # A sidechain names the line that started it, but its context does not include that conversation.
            elif clears or (line.is_sidechain and above is not None and not above.lines[0].is_sidechain):
                above = None
            turn = _join_turn(line, above, depth, above_place)
            if above is None:
                roots.append(turn)
        elif above_place < 0 and line.uuid is not None and line.thread in threads:
            repeated.add(line.thread)
        turns.append(turn)
        depths.append(depth)
    # If no line of a thread has its parent in the file, each line follows the previous one.
    if repeated and not repeated <= {line.thread for line in lines if line.parent in places}:
        raise _OutOfOrder
    return roots


def _join_by_level(lines: list[Line], parents: list[int | None], turns: list[Turn | None]) -> list[Turn]:
    """Build the trees of a file in any order, level by level."""
    # Index in `lines` -> indices of its children
    children: list[list[int]] = [[] for _ in lines]
    queue = []
    for position, parent in enumerate(parents):
        if parent is None:
            queue.append(position)
        else:
            children[parent].append(position)
    roots: list[Turn] = []
    for place, position in enumerate(queue):  # grows during the loop: parents precede children
        queue += children[position]
        parent, line = parents[position], lines[position]
        turn = above = None if parent is None else turns[parent]
        if isinstance(line, MessageLine):
            if line.is_sidechain and above is not None and not above.first.is_sidechain:
                above = None
            turn = _join_turn(line, above, place, -1)
            if above is None:
                roots.append(turn)
        turns[position] = turn
    return sorted(roots, key=lambda turn: turn.first.number)


def branches_of(root: Turn) -> list[list[Turn]] | Iterator[list[Turn]]:
    """Return every path from the root to a leaf, in file order."""
    path = [root]
    below = root.children
    while len(below) == 1:
        path.append(below[0])
        below = below[0].children
    return _branches_of(root) if below else [path]


def _branches_of(root: Turn) -> Iterator[list[Turn]]:
    path: list[Turn] = []
    stack = [(root, 0)]
    while stack:
        turn, depth = stack.pop()
        del path[depth:]
        path.append(turn)
        below = turn.children
        while len(below) == 1:  # most turns have one child
            path.append(below[0])
            depth, below = depth + 1, below[0].children
        # Descending, since the stack pops the last item first.
        below = sorted(below, key=lambda child: child.first.number, reverse=True)
        stack += [(child, depth + 1) for child in below]
        if not below:
            yield list(path)


_NONE: frozenset[str] = frozenset()


def _answered_by(line: MessageLine) -> set[str] | frozenset[str]:
    """Return the ids of the calls that the line has results for."""
    content = line.message.content
    if type(line) is ReadLine:
        return {message.tool_call_id for message in line.messages if message.tool_call_id is not None}
    if type(content) is str:
        return _NONE
    return {block.tool_use_id for block in content if type(block) is _ToolResult and block.tool_use_id is not None}


def _join_turn(line: MessageLine, above: Turn | None, depth: int, parent: int) -> Turn:
    """Add a line to its turn, or to a new turn below `above`; return that turn."""
    answered = _NONE if line.type == "assistant" else _answered_by(line)
    if above is None:
        return Turn(None, [line], answered)
    asked = above.parent if above.answered else above  # the assistant turn that the line continues or answers
    if asked is not None and asked.lines[0].type == "assistant":
        if line.type == "assistant":
            if line.message.id is not None and line.message.id == asked.lines[0].message.id:
                asked.last_line = _next_in_order(asked.last_line, depth, parent)
                _add_line(asked, line)
                return asked
        elif answered:
            asked.last_result = _next_in_order(asked.last_result, depth, parent)
            # Results of one answer form one turn; a second result of the same call begins a branch.
            if asked.results is not None and asked.results.answered.isdisjoint(answered):
                _add_line(asked.results, line)
                asked.results.answered |= answered
                return asked.results
            asked.results = turn = Turn(asked, [line], answered)
            asked.children.append(turn)
            return turn
    turn = Turn(above, [line], answered)
    above.children.append(turn)
    return turn


def _add_line(turn: Turn, line: MessageLine) -> None:
    if line.number < turn.lines[-1].number:
        turn.is_shuffled = True
    turn.lines.append(line)


def _next_in_order(last: tuple[int, int], depth: int, parent: int) -> tuple[int, int]:
    """Return depth and parent of a line; raises _OutOfOrder unless it also follows the last line in level order."""
    if depth < last[0] or (depth == last[0] and parent != last[1]):
        raise _OutOfOrder
    return depth, parent


def line_clears(line: MessageLine) -> bool:
    """Whether a line is `/clear`, which starts an empty context: the tree is cut there."""
    if line.type != "user":
        return False
    if type(line) is not ReadLine:  # the usual cases need no message
        content: Any = line.message.content
        if len(content) == 1 and type(content[0]) is _ToolResult:
            content = content[0].content
        if type(content) is str:
            return "/clear<" in content and _CLEAR.match(content) is not None
    messages = _messages_of_user(line)
    return len(messages) == 1 and _CLEAR.match(messages[0].text) is not None


def _parents(lines: list[Line], places: dict[str, int]) -> list[int | None]:
    """Return the position of each line's parent, or None at the start of a conversation. The result has no cycles."""
    named = [None if line.parent is None else places.get(line.parent) for line in lines]
    # Threads with a line whose parent exists are trees; in others (old files), each line follows the previous one.
    trees = {line.thread for line, parent in zip(lines, named, strict=True) if parent is not None}
    parents: list[int | None] = []
    last: dict[tuple[object, ...], int] = {}
    for position, line in enumerate(lines):
        parent = named[position] if line.thread in trees else last.get(line.thread)
        parents.append(None if isinstance(line, MessageLine) and line_clears(line) else parent)
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


def messages_of(turn: Turn) -> list[Message]:
    """Return the messages of a turn: lines of an assistant message merged, tool results in file order."""
    lines = turn.lines
    if len(lines) == 1:
        line = lines[0]
        if type(line) is ReadLine:
            return line.messages
        return _messages_of_user(line) if line.type == "user" else [_message_of_answer(lines)]
    if turn.is_shuffled:
        lines = sorted(lines, key=lambda line: line.number)
    if lines[0].type == "user":
        return [message for line in lines for message in _messages_of_user(line)]
    if ReadLine not in map(type, lines):
        return [_message_of_answer(lines)]
    merged, *rest = [line.messages[0] if type(line) is ReadLine else _message_of_answer([line]) for line in lines]
    for message in rest:
        merged = _merge_messages(merged, message)
    return [merged]


def _message_of_answer(lines: list[MessageLine]) -> Message:
    """Return the message of lines decoded by type, equal to the result of `_merge_messages` over their messages."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    reasoning: str | None = None
    generated: bool | None = None
    extra: Json = {}
    for line in lines:
        content: Any = line.message.content
        if type(content) is str:
            content = (_Text(content),)
        # Drop content repeated from an earlier line.
        num_texts, num_calls = len(texts), len(calls)
        thoughts: tuple[str, ...] = ()
        for block in content:
            if type(block) is _Text:
                if not num_texts or block.text not in texts[:num_texts]:
                    texts.append(block.text)
            elif type(block) is _ToolUse:
                call = ToolCall(block.name, json_text(block.input), block.id)
                if not num_calls or call not in calls[:num_calls]:
                    calls.append(call)
            else:
                thoughts += (block.thinking,)
        if thoughts:
            thought = "\n\n".join(thoughts)
            if reasoning is None:
                reasoning = thought
            elif thought != reasoning:
                reasoning = f"{reasoning}\n\n{thought}"
        if is_copy_or_notice(line):
            generated = False
        if line.isApiErrorMessage is True:
            extra = {"is_api_error": True}
    return Message("assistant", _content_of(texts), reasoning, tuple(calls), None, None, generated, extra)


def is_copy_or_notice(line: MessageLine) -> bool:
    """Whether a line of the assistant was copied from another session, or written by the program."""
    return line.forkedFrom is not None or line.isApiErrorMessage is True or line.message.model == "<synthetic>"


def _messages_of_user(line: MessageLine) -> list[Message]:
    """Return the tool results of a user line as tool messages, then the remaining content as a user message."""
    if type(line) is ReadLine:
        return line.messages
    content: Any = line.message.content
    if type(content) is str:
        return [user_message(line, content)]
    messages: list[Message] = []
    texts: list[str] = []
    for block in content:
        if type(block) is _Text:
            texts.append(block.text)
            continue
        result = block.content
        if type(result) is list:
            result = plain_content(result)
        extra: Json = {"is_error": True} if block.is_error is True else {}
        messages.append(Message("tool", result, None, (), block.tool_use_id, None, None, extra))
    if texts or not content:
        messages.append(user_message(line, _content_of(texts)))
    return messages


def user_message(line: MessageLine, content: str | list[Json] | None) -> Message:
    is_summary = line.isCompactSummary is True
    extra: Json = {"is_compact_summary": True} if is_summary else {}
    if line.isMeta is True:
        extra["is_meta"] = True
    return Message("user", content, None, (), None, None, False if is_summary else None, extra)


def _content_of(texts: list[str]) -> str | list[Json] | None:
    if len(texts) == 1:
        return texts[0]
    return [{"type": "text", "text": text} for text in texts] or None


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

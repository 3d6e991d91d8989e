"""Claude Code sessions: the tree of turns and branches, and the messages of their lines.

Content blocks become messages in shapes/anthropic.py; the lines of one assistant message are merged into one message.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from pairwright.records.messages import Json, Message
from pairwright.sources.shapes.anthropic import assistant_from_blocks, plain_content, user_from_blocks

# Session tree: lines grouped into turns, turns into branches.


class Line(msgspec.Struct, frozen=True, eq=False):
    """One line of the file; `messages` is empty if the line is not part of the conversation."""

    number: int
    value: Json
    thread: tuple[object, ...]  # session, sidechain or not, agent
    uuid: str | None
    parent: str | None
    messages: tuple[Message, ...] = ()
    message_id: str | None = None
    clears: bool = False

    @property
    def answered(self) -> set[str]:
        return {message.tool_call_id for message in self.messages if message.tool_call_id is not None}

    @property
    def is_sidechain(self) -> bool:
        return self.value.get("isSidechain") is True

    @property
    def is_assistant(self) -> bool:
        return bool(self.messages) and self.messages[0].role == "assistant"


@dataclass(eq=False)
class Turn:
    """One node of the conversation tree: an assistant message, the results of its calls, or a user turn."""

    parent: "Turn | None"
    lines: list[Line]
    answered: set[str] = field(default_factory=set)
    children: list["Turn"] = field(default_factory=list)
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
        if above is not None and line.is_sidechain and not above.first.is_sidechain:
            above = None  # it names the line that started it, but it does not see that conversation
        turn = turns[position] = _join_turn(line, above) if line.messages else above
        if turn is not None and turn.parent is None and turn.lines == [line]:
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
        # Descending, since the stack gives the last one first.
        below = sorted(turn.children, key=lambda child: child.first.number, reverse=True)
        stack += [(child, depth + 1) for child in below]
        if not below:
            yield list(path)


def _join_turn(line: Line, above: Turn | None) -> Turn:
    """Add a line to the turn it belongs to, or to a new turn below `above`; return that turn."""
    asked = above  # the assistant turn that the line continues or answers
    if above is not None and above.answered:
        asked = above.parent
    if asked is not None and asked.first.is_assistant:
        if line.is_assistant and line.message_id is not None and line.message_id == asked.first.message_id:
            asked.lines.append(line)
            return asked
        if answered := line.answered:
            # Results of one answer are gathered in one turn; a second result of the same call begins a branch.
            if asked.results is not None and asked.results.answered.isdisjoint(answered):
                asked.results.lines.append(line)
                asked.results.answered |= answered
                return asked.results
            asked.results = turn = Turn(asked, [line], answered)
            asked.children.append(turn)
            return turn
    turn = Turn(above, [line], line.answered)
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
    is_summary = line.get("isCompactSummary") is True
    extra: Json = {"is_compact_summary": True} if is_summary else {}
    if line.get("isMeta") is True:
        extra["is_meta"] = True
    yield from user_from_blocks(blocks, "message.content", generated=False if is_summary else None, extra=extra)


def messages_of(turn: Turn) -> list[Message]:
    """Return the messages of a turn: lines of an assistant message merged, tool results in file order."""
    lines = sorted(turn.lines, key=lambda line: line.number)
    if not turn.first.is_assistant:
        return [message for line in lines for message in line.messages]
    merged = lines[0].messages[0]
    for line in lines[1:]:
        merged = _merge_messages(merged, line.messages[0])
    return [merged]


def _merge_messages(left: Message, right: Message) -> Message:
    """Merge two lines of one message, dropping duplicates (some versions repeat earlier content)."""
    parts = _parts(left)
    parts += [part for part in _parts(right) if part not in parts]
    thoughts = [left.reasoning] if left.reasoning is not None else []
    if right.reasoning is not None and right.reasoning not in thoughts:
        thoughts.append(right.reasoning)
    calls = left.tool_calls + tuple(call for call in right.tool_calls if call not in left.tool_calls)
    return Message(
        "assistant",
        content=plain_content(parts),
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=calls,
        generated=False if False in (left.generated, right.generated) else None,
        extra={**left.extra, **right.extra},
    )


def _parts(message: Message) -> list[Json]:
    if isinstance(message.content, list):
        return list(message.content)
    return [] if message.content is None else [{"type": "text", "text": message.content}]

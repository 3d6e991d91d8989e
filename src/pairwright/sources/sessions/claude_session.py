"""Claude Code sessions: the tree of turns that the lines of a file form, and its branches.

Lines are joined to turns level by level: an assistant message is written as several lines, and so are the results of
its calls.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from pairwright.records.messages import Json, Message
from pairwright.sources.shapes.anthropic import parts_of, plain_content
from pairwright.sources.shapes.session_entries import paths_from

_CLEAR = re.compile(r"\s*<command-name>/clear</command-name>")


class Line(Struct, eq=False, gc=False):
    """One line of the file. A line that is not a message (`role` None) only links its children to its parent."""

    number: int
    uuid: str | None
    parent: str | None
    thread: tuple[int | str | None, bool, str | None]  # session, sidechain or not, agent
    record: Json
    role: str | None = None
    message_id: str | None = None
    messages: list[Message] = []

    @property
    def is_sidechain(self) -> bool:
        return self.thread[1]

    @property
    def clears(self) -> bool:
        """Whether a line is `/clear`, which starts an empty context: the tree is cut there."""
        is_user = self.role == "user" and len(self.messages) == 1
        return is_user and _CLEAR.match(self.messages[0].text) is not None


@dataclass(eq=False, slots=True)
class Turn:
    """One node of the conversation tree: an assistant message, the results of its calls, or a user turn."""

    parent: "Turn | None"
    lines: list[Line]
    answered: set[str]  # ids of the calls that it has results for
    children: list["Turn"] = field(default_factory=list)
    results: "Turn | None" = None  # of an assistant turn: the turn with the results of its calls

    @property
    def first(self) -> Line:
        return self.lines[0]


def roots_of(lines: list[Line], places: dict[str, int]) -> list[Turn]:
    """Return the roots of a file's conversation trees in file order; `places` has the first line of each uuid."""
    parents = _parents(lines, places)
    children: list[list[int]] = [[] for _ in lines]
    queue: list[int] = []
    for position, parent in enumerate(parents):
        (queue if parent is None else children[parent]).append(position)
    turns: list[Turn | None] = [None] * len(lines)  # of each line; a line that is not a message has its parent's turn
    roots: list[Turn] = []
    for position in queue:  # grows during the loop: parents precede children
        queue += children[position]
        parent, line = parents[position], lines[position]
        turn = above = None if parent is None else turns[parent]
        if line.role is not None:
            # A sidechain names the line that started it, but its context does not include that conversation.
            if line.is_sidechain and above is not None and not above.first.is_sidechain:
                above = None
            turn = _join_turn(line, above)
            if above is None:
                roots.append(turn)
        turns[position] = turn
    return sorted(roots, key=lambda turn: turn.first.number)


def branches_of(root: Turn) -> Iterator[list[Turn]]:
    return paths_from([root], lambda turn: sorted(turn.children, key=lambda child: child.first.number))


def messages_of(turn: Turn) -> list[Message]:
    """Return the messages of a turn: lines of an assistant message merged, tool results in file order."""
    messages = [message for line in sorted(turn.lines, key=lambda line: line.number) for message in line.messages]
    if turn.first.role == "user":
        return messages
    merged, *rest = messages
    for message in rest:
        merged = _merge_messages(merged, message)
    return [merged]


def _join_turn(line: Line, above: Turn | None) -> Turn:
    """Add a line to its turn, or to a new turn below `above`; return that turn."""
    answered = {one.tool_call_id for one in line.messages if one.role == "tool" and one.tool_call_id is not None}
    if above is None:
        return Turn(None, [line], answered)
    asked = above.parent if above.answered else above  # the assistant turn that the line continues or answers
    if asked is not None and asked.first.role == "assistant":
        if line.role == "assistant":
            if line.message_id is not None and line.message_id == asked.first.message_id:
                asked.lines.append(line)
                return asked
        elif answered:
            # Results of one answer form one turn; a second result of the same call begins a branch.
            if asked.results is not None and asked.results.answered.isdisjoint(answered):
                asked.results.lines.append(line)
                asked.results.answered |= answered
                return asked.results
            asked.results = above = Turn(asked, [line], answered)
            asked.children.append(above)
            return above
    turn = Turn(above, [line], answered)
    above.children.append(turn)
    return turn


def _parents(lines: list[Line], places: dict[str, int]) -> list[int | None]:
    """Return the position of each line's parent, or None at the start of a conversation. The result has no cycles."""
    named = [None if line.parent is None else places.get(line.parent) for line in lines]
    # Threads with a line whose parent exists are trees; in others (old files), each line follows the previous one.
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


def _merge_messages(left: Message, right: Message) -> Message:
    """Merge two lines of one message, dropping duplicates (some versions repeat earlier content)."""
    content = left.content
    if right.content is not None or isinstance(content, list):
        parts = parts_of(content)
        parts += [part for part in parts_of(right.content) if part not in parts]
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

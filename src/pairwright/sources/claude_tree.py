"""The tree of a Claude Code session: lines joined into turns, turns into branches.

Lines name their parent, but the tree they draw is not the tree of the conversation:

- one assistant message is written as several lines that share `message.id`: they become one turn;
- the results of parallel calls hang from different lines of that message, and look like branches: they become one turn;
- lines that are no messages (progress, hooks, system notices) stand between messages: they are passed through;
- a `/clear` empties the context, and a sidechain begins with an empty one: each begins a tree of its own;
- a session none of whose lines names a parent that is there (old versions, hand-made files) is a list, in file order.

What then still branches is a real alternative: the user went back and the conversation took another way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pairwright.messages import Json, Message


@dataclass(frozen=True, eq=False)
class Line:
    """One line of the file; `messages` is empty where the line is not part of the conversation."""

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
    """One node of the conversation: an assistant message, the results of its calls, or a turn of the user."""

    parent: "Turn | None"
    lines: list[Line]
    answered: set[str] = field(default_factory=set)
    children: list["Turn"] = field(default_factory=list)
    results: "Turn | None" = None  # of an assistant turn: where the results of its calls are gathered

    @property
    def first(self) -> Line:
        return self.lines[0]


def roots_of(lines: list[Line]) -> list[Turn]:
    """The first turn of every conversation in the file, in file order, with the tree below it."""
    parents = _parents(lines)
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
        turn = turns[position] = _joined(line, above) if line.messages else above
        if turn is not None and turn.parent is None and turn.lines == [line]:
            roots.append(turn)
    return sorted(roots, key=lambda turn: turn.first.number)


def branches_of(root: Turn) -> Iterator[list[Turn]]:
    """Every way from the root to a leaf, in file order."""
    path: list[Turn] = []
    stack = [(root, 0)]
    while stack:
        turn, depth = stack.pop()
        del path[depth:]
        path.append(turn)
        below = sorted(turn.children, key=lambda child: child.first.number, reverse=True)
        stack += [(child, depth + 1) for child in below]
        if not below:
            yield list(path)


def _joined(line: Line, above: Turn | None) -> Turn:
    """The turn that a line belongs to: one that is there already, or a new one below `above`."""
    asked = above  # the assistant turn that the line continues or answers
    if above is not None and above.answered:
        asked = above.parent
    if asked is not None and asked.first.is_assistant:
        if line.is_assistant and line.message_id is not None and line.message_id == asked.first.message_id:
            asked.lines.append(line)
            return asked
        if answered := line.answered:
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
    """For each line the position of its parent; None where a conversation begins. There are no circles in it."""
    by_uuid: dict[str, int] = {}
    for position, line in enumerate(lines):
        if line.uuid is not None:
            by_uuid.setdefault(line.uuid, position)
    named = [None if line.parent is None else by_uuid.get(line.parent) for line in lines]
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
    """Make the first line of every circle a beginning; only a damaged or hostile file has one."""
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

"""Sessions of coding assistants as a list or tree of entries, each with the messages of one line.

A reader converts its file to a `Session` (values shared by the whole session) and entries; a `SessionFormat` does so
line by line and refuses unreadable lines individually. Every path from a root to a leaf is an experience; assistant
turns of an earlier path are context, so that nothing is trained twice. An entry with `restarts` is a compaction: it
ends the experience, and the next one begins with the messages of that entry and of the kept entries; its step is the
number of compactions before it. info keeps `session_id`, a key for `--scores`, and `begins_after`, the id of a missing
line before the experience.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import NO_ANSWER, Parts, split_at_answer
from pairwright.sources.fields import (
    BadRecord,
    has,
    identifier,
    items,
    mapping,
    optional_objects,
    optional_text,
    texts_of,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.identity import label_of, session_run, session_task
from pairwright.sources.shapes.anthropic import (
    assistant_from_blocks,
    system_from_anthropic,
    text_block,
    user_from_blocks,
)
from pairwright.sources.shapes.any_messages import tools_in
from pairwright.sources.shapes.chat_messages import as_context

_Node = TypeVar("_Node")
MAX_BRANCHES = 256  # each repeats the shared messages, so this bounds the size of the result
MAX_STEPS = 256  # likewise: each repeats the kept messages


@dataclass
class Session:
    """Values shared by a whole session; `format` is the name of its format."""

    format: str
    id: int | str | None = None
    model: str | None = None
    system: list[Message] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)
    has_other_tools: bool = False  # `tools` is incomplete, so calls to other tools are not errors
    info: Json = field(default_factory=dict)
    reward: float | None = None
    failure: str | None = None  # why the model gave no answer, if the file has a reason
    others: Counter[str] = field(default_factory=Counter)  # lines that are not part of the conversation, by kind
    places: dict[str, int] = field(default_factory=dict)  # id -> position of an entry that may be rewritten
    turns: "EventTurns" = field(default_factory=lambda: EventTurns())

    def note(self, record: Json, *keys: str) -> None:
        """Keep a record's texts under these keys in info."""
        self.info |= texts_of(record, *keys)


@dataclass(frozen=True, eq=False)
class Entry:
    """The messages of one line. An entry whose `parent` is None follows the previous entry; a root has the parent "".

    `restarts`: the previous context is replaced by this entry's messages and those of the entries from `keeps_from` on.
    """

    messages: Sequence[Message]
    id: str | None = None
    parent: str | None = None
    restarts: bool = False
    keeps_from: str | None = None


@dataclass(frozen=True)
class SessionFormat:
    """A declared session format: a predicate, the paths of a document's parts, and a function that reads one line.

    `paths` has the parts "id", "model", "system", "tools" and "lines" of a document; a file of lines has no paths.
    An unreadable line of a file is refused alone; in a document, the whole session is refused.
    """

    name: str
    summary: str
    matches: Callable[[Any], bool]
    # Returns the entry of a line; None if it describes the session, is counted in `others` or is already in `turns`
    take: Callable[[Json, Session], "Entry | None"]
    paths: Mapping[str, str] = field(default_factory=dict)
    info: tuple[str, ...] = ()  # keys of texts of a document that are kept in info
    # Fills in the session; returns the document or the lines to read
    begin: Callable[[Any, Session, Origin], Any] = lambda value, session, origin: value
    lines: Callable[[list[Any]], Iterable[tuple[int, Any]]] = enumerate  # selects lines, numbered from 0
    others: str = "other_lines"  # the name of the count in info
    unit: Literal["record", "file"] = "file"

    def read(self, value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
        session = Session(self.name)
        found, where = self.begin(value, session, origin), "session"
        is_document = isinstance(found, dict)
        if is_document:
            parts = {name: value_at(found, path) for name, path in self.paths.items()}
            session.id = identifier(parts.get("id")) or session.id
            session.model = optional_text(parts.get("model"), "model") or session.model
            session.system += system_from_anthropic(parts.get("system"), "system")
            session.tools += tools_in([tool for _, tool in optional_objects(parts.get("tools"), "tools")])
            session.note(found, *self.info)
            found, where = parts.get("lines"), self.paths.get("lines", where)
        for number, item in self.lines(items(found, where)):
            try:
                entry = self.take(mapping(item, "line"), session)
                if entry is not None:
                    session.turns.entries.append(entry)
            except (BadRecord, RecordError) as error:
                if is_document:
                    raise BadRecord(f"{where}[{number}]: {error}") from None
                line = None if origin.line is None else origin.line + number
                yield origin.at(line, origin.ordinal).rejected(error, self.name)
        session.info[self.others] = dict(session.others)
        yield from read_entries(session, session.turns.end_turn(), origin)

    @property
    def format(self) -> Format:
        return Format(self.name, self.unit, self.matches, self.read, self.summary)


def read_entries(session: Session, entries: list[Entry], origin: Origin) -> Iterator[Parts | Rejected]:
    """Yield the experiences of a session, or raise BadRecord if the model never answered."""
    task: int | str | None = None
    earlier: set[Entry] = set()
    for branch, path in enumerate(_paths(entries)):
        if branch >= MAX_BRANCHES:
            yield origin.rejected(f"more than {MAX_BRANCHES} branches: the rest is not read", session.format)
            return
        for step, (context, own) in enumerate(_steps(path)):
            if step >= MAX_STEPS:
                yield origin.rejected(f"more than {MAX_STEPS} compactions", session.format)
                break
            messages = [*session.system, *context]
            for entry in own:
                messages += map(as_context, entry.messages) if entry in earlier else entry.messages
            earlier.update(own)
            if not any(message.is_generated for message in messages):
                continue
            prompt, completion = split_at_answer(messages)
            has_prompt = any(message.role != "system" for message in prompt)
            if task is None:  # the first experience sets the task of the session
                name = session.id if session.id is not None else label_of(origin)
                task = session_task(name, prompt if has_prompt else (), session.tools)
            # A root with a parent: the parent's line is missing or unreadable.
            begins_after = path[0].parent if path and not step else None
            info = {"session_id": session.id, **session.info, "begins_after": begins_after}
            info["prompt_missing"] = None if has_prompt else True
            yield Parts(
                session.format,
                origin,
                task=task,
                run=session_run(session.id, origin, branch),
                step=step,
                prompt=prompt,
                completion=completion,
                tools=session.tools,
                reward=session.reward,
                known_tools=() if session.has_other_tools else None,
                info={key: value for key, value in info.items() if value not in (None, "", {}, [])},
                model_version=session.model,
            )
    if task is None:
        raise BadRecord(NO_ANSWER if session.failure is None else f"{NO_ANSWER}: {session.failure}")


def _steps(path: list[Entry]) -> Iterator[tuple[list[Message], list[Entry]]]:
    """Split a path at its compactions; yield (initial context, entries) of each step."""
    context: list[Message] = []
    own: list[Entry] = []
    for position, entry in enumerate(path):
        if not entry.restarts:
            own.append(entry)
            continue
        yield context, own
        ids = [other.id for other in path[:position]]
        first = ids.index(entry.keeps_from) if entry.keeps_from is not None and entry.keeps_from in ids else position
        remaining = [message for other in path[first:position] for message in other.messages]
        context, own = [*entry.messages, *map(as_past, remaining)], []
    yield context, own


def as_past(message: Message) -> Message:
    """Return the message as part of a prompt: it is context, and never starts a completion."""
    return replace(message, generated=False) if message.is_generated else message


def _paths(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Yield every path from a root to a leaf, in file order; entries that lead to no message are left out."""
    if all(entry.id is None for entry in entries):
        yield entries
    else:
        children, roots = _children(entries)
        yield from paths_from(roots, children.__getitem__)


def paths_from(roots: Sequence[_Node], children_of: Callable[[_Node], Sequence[_Node]]) -> Iterator[list[_Node]]:
    """Yield every path from a root to a leaf, depth first.

    >>> list(paths_from(["a"], {"a": ["b", "c"], "b": [], "c": ["d"], "d": []}.__getitem__))
    [['a', 'b'], ['a', 'c', 'd']]
    """
    # (node, depth): the path to a node is the previous path, cut to its depth, plus the node.
    stack = [(root, 0) for root in reversed(roots)]
    path: list[_Node] = []
    while stack:
        node, depth = stack.pop()
        del path[depth:]
        path.append(node)
        below = children_of(node)
        stack += [(child, depth + 1) for child in reversed(below)]
        if not below:
            yield list(path)


def _children(entries: list[Entry]) -> tuple[dict[Entry, list[Entry]], list[Entry]]:
    """Return the children of each entry, and the roots; a parent precedes its child, so there are no cycles."""
    by_id: dict[str, Entry] = {}
    parents: dict[Entry, Entry | None] = {}
    before: Entry | None = None
    for entry in entries:
        parents[entry] = before if entry.parent is None else by_id.get(entry.parent)
        if entry.id is not None:
            by_id.setdefault(entry.id, entry)
        before = entry
    # Backwards: an entry is used if it or a descendant has messages.
    is_used = {entry: bool(entry.messages) for entry in entries}
    for entry in reversed(entries):
        parent = parents[entry]
        if parent is not None and is_used[entry]:
            is_used[parent] = True
    children: dict[Entry, list[Entry]] = {entry: [] for entry in entries}
    roots: list[Entry] = []
    for entry, parent in parents.items():
        if is_used[entry]:
            (roots if parent is None else children[parent]).append(entry)
    return children, roots


def summary_message(text: str) -> Message:
    """Return the summary of a compaction, which replaced the previous context, as a user turn."""
    return Message("user", text, extra={"is_compact_summary": True})


def turn_messages(blocks: list[Json], where: str, *, generated: bool | None = None) -> list[Message]:
    """Convert the blocks of an assistant turn: its message, unless it is empty, then its calls' results."""
    results = [block for block in blocks if block.get("type") == "tool_result"]
    rest = [block for block in blocks if block.get("type") != "tool_result" and block != text_block("")]
    messages = [assistant_from_blocks(rest, where, generated=generated)] if rest else []
    return messages + user_from_blocks(results, where) if results else messages


def user_messages(content: Any, where: str, *, extra: Json | None = None) -> list[Message]:
    """Convert a user turn: text, or blocks that may include tool results."""
    blocks = [text_block(content)] if isinstance(content, str) else items(content, where)
    if not all(map(has, blocks)):
        raise BadRecord(f"{where}: expected a list of objects")
    return user_from_blocks(blocks, where, extra=extra)


class EventTurns:
    """Builds turns from a log in which each text, call and result is a separate event.

    Texts and calls form one assistant turn, which ends when a text or call follows a result.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._blocks: list[Json] = []
        self._has_result = False
        self._message_id: str | None = None

    def begin_turn(self, message_id: str | None) -> None:
        """Begin an assistant turn, unless the current turn already belongs to this message."""
        if message_id is None or message_id != self._message_id:
            self.end_turn()
        self._message_id, self._has_result = message_id, False

    def add(self, block: Json) -> None:
        """Add a block of the assistant, or the result of one of its calls."""
        is_result = block.get("type") == "tool_result"
        if self._has_result and not is_result:
            self.end_turn()
        self._blocks.append(block)
        self._has_result |= is_result

    def add_text(self, text: str) -> None:
        """Add a piece of the assistant's text; consecutive pieces form one text."""
        if self._blocks and self._blocks[-1].get("type") == "text" and not self._has_result:
            text = self._blocks.pop()["text"] + text
        self.add(text_block(text))

    def add_messages(self, messages: Sequence[Message], *, restarts: bool = False) -> None:
        """Add messages that the assistant did not write."""
        self.end_turn()
        self.entries.append(Entry(messages, restarts=restarts))

    def end_turn(self) -> list[Entry]:
        """End the turn of the assistant, if one has begun; return all entries."""
        if self._blocks:
            self.entries.append(Entry(turn_messages(self._blocks, "events")))
            self._blocks, self._has_result, self._message_id = [], False, None
        return self.entries

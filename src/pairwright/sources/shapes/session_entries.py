"""Sessions of coding assistants as entries: the messages of one line each, in a list or in a tree.

A reader turns its file into a `Session` (what holds for all of it) and entries; a `SessionFormat` does so line by line,
and a line that cannot be read is refused alone. Every path from a root to a leaf is an
experience; assistant turns that an earlier path has are context, so that nothing is trained twice. An entry with
`restarts` is a compaction: it ends the experience, and the next one begins with the messages of that entry and of the
entries that were kept. task = a hash of what the model was given at the start of the session, run = a number from the
session's id and the branch, step = number of compactions before it. info keeps `session_id`, which `--scores` may name,
and `begins_after`, the id of a line that is missing before the experience, so that its prompt lacks what came before.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec.structs import replace

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import NO_ANSWER, Parts, split_at_answer
from pairwright.sources.fields import (
    BadRecord,
    identifier,
    items,
    json_text,
    mapping,
    optional_items,
    optional_text,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.identity import label_of, session_run, session_task
from pairwright.sources.shapes.anthropic import assistant_from_blocks, system_from_anthropic, user_from_blocks
from pairwright.sources.shapes.any_messages import tools_in
from pairwright.sources.shapes.chat_messages import as_context

MAX_BRANCHES = 256  # each repeats what it shares, so their number bounds what a file can grow to
MAX_STEPS = 256  # likewise: each repeats what was kept


@dataclass
class Session:
    """What holds for a whole session; `format` is the name of its format."""

    format: str
    id: int | str | None = None
    model: str | None = None
    system: list[Message] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)
    has_other_tools: bool = False  # tools that are not listed, so that a call of another one is not a mistake
    info: Json = field(default_factory=dict)
    reward: float | None = None
    failure: str | None = None  # why the model gave no answer, where the file says so
    others: Counter[str] = field(default_factory=Counter)  # lines that are not part of the conversation, by kind
    places: dict[str, int] = field(default_factory=dict)  # by id: where an entry stands, if it may be written again
    turns: "EventTurns" = field(default_factory=lambda: EventTurns())

    def note(self, record: Json, *keys: str) -> None:
        """Keep the texts that a record has under these keys in info."""
        self.info |= {key: record[key] for key in keys if isinstance(record.get(key), str)}


@dataclass(frozen=True, eq=False)
class Entry:
    """The messages of one line. With a `parent` of None an entry follows the one before; a root has the parent "".

    `restarts`: the context before it is replaced by its messages and those of the entries from `keeps_from` on.
    """

    messages: Sequence[Message]
    id: str | None = None
    parent: str | None = None
    restarts: bool = False
    keeps_from: str | None = None


@dataclass(frozen=True)
class SessionFormat:
    """A declared format of sessions: how to recognise one, where a document has its parts, and how to read each line.

    `paths` names the parts of a document: "id", "model", "system", "tools" and "lines". A file of lines has no paths.
    An unreadable line of a file is refused alone; in a document it refuses the whole session.
    """

    name: str
    summary: str
    matches: Callable[[Any], bool]
    # The entry of a line; None for a line that describes the session, is counted in `others`, or is in `turns` already
    take: Callable[[Json, Session], "Entry | None"]
    paths: Mapping[str, str] = field(default_factory=dict)
    info: tuple[str, ...] = ()  # texts of a document that are kept in info
    # Describes the session further; returns the document or the lines that are read
    begin: Callable[[Any, Session, Origin], Any] = lambda value, session, origin: value
    lines: Callable[[list[Any]], Iterable[tuple[int, Any]]] = enumerate  # those to be read, with their numbers from 0
    others: str = "other_lines"  # the name of the count in info
    unit: Literal["record", "file"] = "file"

    def read(self, value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
        """Yield the experiences of a session."""
        session = Session(self.name)
        found, where = self.begin(value, session, origin), "session"
        is_document = isinstance(found, dict)
        if is_document:
            parts = {name: value_at(found, path) for name, path in self.paths.items()}
            session.id = identifier(parts.get("id")) or session.id
            session.model = optional_text(parts.get("model"), "model") or session.model
            session.system += system_from_anthropic(parts.get("system"), "system")
            session.tools += tools_in([mapping(tool, "tools") for tool in optional_items(parts.get("tools"), "tools")])
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
                yield Rejected(origin.file, line, str(error), self.name)
        session.info[self.others] = dict(session.others)
        yield from read_entries(session, session.turns.end_turn(), origin)

    @property
    def format(self) -> Format:
        return Format(self.name, self.unit, self.matches, self.read, self.summary)


def read_entries(session: Session, entries: list[Entry], origin: Origin) -> Iterator[Parts | Rejected]:
    """Yield the experiences of a session, or raise BadRecord if the model answered nowhere in it."""
    task: int | str | None = None
    earlier: set[Entry] = set()
    for branch, path in enumerate(_paths(entries)):
        if branch >= MAX_BRANCHES:
            reason = f"more than {MAX_BRANCHES} branches: the rest is not read"
            yield Rejected(origin.file, origin.line, reason, session.format)
            return
        for step, (context, own) in enumerate(_steps(path)):
            if step >= MAX_STEPS:
                yield Rejected(origin.file, origin.line, f"more than {MAX_STEPS} compactions", session.format)
                break
            messages = [*session.system, *context]
            for entry in own:
                messages += map(as_context, entry.messages) if entry in earlier else entry.messages
            earlier.update(own)
            if not any(message.is_generated for message in messages):
                continue
            prompt, completion = split_at_answer(messages)
            has_prompt = any(message.role != "system" for message in prompt)
            if task is None:  # that of the first experience is the task of the session
                name = session.id if session.id is not None else label_of(origin)
                task = session_task(name, prompt if has_prompt else (), session.tools)
            # A root that names a parent: that line is not in the file, or could not be read.
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
    """Split a path at its compactions; yield the context that each step begins with, and the entries of the step."""
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
    """Return the message as part of a prompt: it is context, and no branch begins with it."""
    return replace(message, generated=False) if message.is_generated else message


def _paths(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Yield every path from a root to a leaf, in file order; what leads to no message is not a path of its own."""
    if all(entry.id is None for entry in entries):
        yield entries
        return
    children, roots = _children(entries)
    # (entry, depth): the path above an entry is that of the entry before it, cut to its depth.
    stack = [(root, 0) for root in reversed(roots)]
    path: list[Entry] = []
    while stack:
        entry, depth = stack.pop()
        del path[depth:]
        path.append(entry)
        below = children[entry]
        stack += [(child, depth + 1) for child in reversed(below)]
        if not below:
            yield list(path)


def _children(entries: list[Entry]) -> tuple[dict[Entry, list[Entry]], list[Entry]]:
    """Return the children of each entry, and the roots; a parent is before its child, so there is no cycle."""
    by_id: dict[str, Entry] = {}
    parents: dict[Entry, Entry | None] = {}
    before: Entry | None = None
    for entry in entries:
        parents[entry] = before if entry.parent is None else by_id.get(entry.parent)
        if entry.id is not None:
            by_id.setdefault(entry.id, entry)
        before = entry
    # Backwards: an entry is on a path if it has messages, or if one below it has.
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


# Messages, by way of Anthropic's content blocks (shapes/anthropic.py), which most assistants' own blocks resemble.


def text_block(text: Any) -> Json:
    return {"type": "text", "text": text}


def thought_block(text: Any) -> Json:
    return {"type": "thinking", "thinking": text}


def summary_message(text: str) -> Message:
    """Return the summary that a compaction put in the place of what stood before it."""
    return Message("user", text, extra={"is_compact_summary": True})


def call_block(call_id: Any, name: Any, arguments: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if arguments is None else arguments}


def result_block(call_id: Any, content: Any, *, is_error: bool = False) -> Json:
    """A tool result; what is neither text nor parts becomes JSON text."""
    is_parts = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
    if content is not None and not isinstance(content, str) and not is_parts:
        content = json_text(content)
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}


def turn_messages(blocks: list[Json], where: str, *, generated: bool | None = None) -> list[Message]:
    """Convert the blocks of an assistant turn that holds the results of its calls too: the message, then the results.

    A turn with neither text, reasoning nor calls was not an answer: it gives no message.
    """
    results = [block for block in blocks if block.get("type") == "tool_result"]
    rest = [block for block in blocks if block.get("type") != "tool_result" and block != text_block("")]
    messages = [assistant_from_blocks(rest, where, generated=generated)] if rest else []
    return messages + user_from_blocks(results, where) if results else messages


def user_messages(content: Any, where: str, *, extra: Json | None = None) -> list[Message]:
    """Convert a user turn: text, or blocks with the results of calls among them."""
    blocks = [text_block(content)] if isinstance(content, str) else items(content, where)
    if not all(isinstance(block, dict) for block in blocks):
        raise BadRecord(f"{where}: expected a list of objects")
    return user_from_blocks(blocks, where, extra=extra)


class EventTurns:
    """Turns of a log of events, in which each text, call and result is an event of its own.

    Texts and calls form one assistant turn until the first result is followed by another text or call.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._blocks: list[Json] = []
        self._has_result = False
        self._message_id: str | None = None

    def begin_turn(self, message_id: str | None) -> None:
        """Begin a turn of the assistant, unless the message is the one that the turn belongs to already."""
        if message_id is None or message_id != self._message_id:
            self.end_turn()
        self._message_id, self._has_result = message_id, False

    def add(self, block: Json) -> None:
        """Add a block of the assistant, or the result of one of its calls."""
        is_result = block.get("type") == "tool_result"
        if self._has_result and not is_result:
            self.end_turn()
        self._blocks.append(block)
        self._has_result = self._has_result or is_result

    def add_text(self, text: str) -> None:
        """Add a piece of the assistant's text; pieces that follow one another are one text."""
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

"""The reader interface: Format, the values passed to and from readers, and `build`, which creates experiences.

A format has a `unit`: "record" (each line of a JSON Lines file, each item of a JSON list, or the single object of a
JSON file) or "file" (all lines of a JSON Lines file as one list, or the value of a JSON file: one session). `matches`
tests whether a decoded unit has this format; `read` converts one unit to experiences. An unusable unit raises BadRecord
or RecordError and is quarantined as a whole; an unusable part of a unit is yielded as Rejected.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from pairwright.errors import PairwrightError, SourceError
from pairwright.records.arrays import Array
from pairwright.records.experience import EID, Experience, Kind, Side, Source
from pairwright.records.json_text import MAX_DEPTH, decode, encode
from pairwright.records.messages import (
    TEXT,
    ErrorSite,
    Json,
    Message,
    canonical_messages,
    check_truncation,
    content_hash,
)
from pairwright.sources.field_map import NO_MAP, FieldMap
from pairwright.sources.fields import BadRecord
from pairwright.sources.roles import CALLS, num_unanswered, usual_messages


class Rejected(msgspec.Struct, frozen=True, omit_defaults=True):
    """Input that could not be used, with the reason; written to quarantine.jsonl."""

    file: str
    line: int | None
    reason: str
    format: str | None = None
    raw: str | None = None


class PartOfAnother(msgspec.Struct, frozen=True):
    """A unit that the records of another file contain, such as a message of a stored session; it is only counted."""


class Origin(msgspec.Struct, frozen=True):
    """Location of a unit: `ordinal` is its position in the file, from 0; `line` is its first line, from 1.

    `label` identifies the file in record ids; it defaults to the file name. With `as_row`, `build` returns table cells.
    """

    file: str
    line: int | None = None
    ordinal: int = 0
    label: str = ""
    as_row: bool = False

    def at(self, line: int | None, ordinal: int) -> "Origin":
        """Return the location of a part of the unit."""
        return Origin(self.file, line, ordinal, self.label, self.as_row)

    @property
    def path(self) -> Path:
        return Path(self.file)


class Options(msgspec.Struct, frozen=True):
    """User options for reading; each format uses those that apply to it."""

    reward: str | None = None
    step_name: str | None = None
    compaction_prompt: str | None = None  # the text that asked for the summaries of compactions, where logs lack it
    map: FieldMap = NO_MAP
    # Expressions of sources/field_map.py; None leaves what the format says.
    task: str | None = None
    run: str | None = None
    step: str | None = None


def read_compaction_prompt(path: str | os.PathLike[str] | None, base: Path | None = None) -> str | None:
    """Return the text of the file, which is relative to `base`; None without a file.

    Raises:
        SourceError: The file cannot be read, or has no text.
    """
    if path is None:
        return None
    file = Path(path) if base is None else base / path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise SourceError(f"{file}: the file of sources.compaction_prompt cannot be read: {error}") from None
    if not text.strip():
        raise SourceError(f"{file}: the file of sources.compaction_prompt has no text")
    return text


# Members looked up once: `build` runs for every record.
_ID_TYPES = (int, str)
_SINGLE_TURN, _MULTI_TURN, _PREFERENCE = Kind.SINGLE_TURN, Kind.MULTI_TURN, Kind.PREFERENCE

Read = Callable[[Any, Origin, Options], Iterator["Record | Rejected | PartOfAnother"]]


class ReadyRow(msgspec.Struct, gc=False):
    """Cells of a table row, named after the table's columns (store/columns.py): a record that is encoded already.

    An import makes these instead of experiences, so that each part of a record is checked, hashed and encoded once. The
    cells equal those of the experience; all other columns are null.
    """

    uid: str
    tid: str
    batch: str
    task: str
    run: int
    step: int
    kind: str
    reward: float | None  # finite
    model_version: str | None
    prompt_hash: str
    completion_hash: str | None
    num_prompt_messages: int
    num_completion_messages: int
    num_completion_characters: int
    num_tool_calls: int
    num_errors: int
    truncate_status: str | None
    source_format: str
    source: str
    source_line: int | None
    prompt: bytes | None
    tools: bytes | None
    completion: bytes | None
    reward_components: bytes | None
    errors: bytes | None
    info: bytes | None
    metrics: bytes | None
    # Token fields, as in an experience: int32, float32 and bool
    prompt_length: int | None = None
    tokens: Array | None = None
    logprobs: Array | None = None
    action_mask: Array | None = None
    # Tool results that nobody has looked at yet, and the prompt before them: `find_errors` of
    # sources/shapes/plain_rows.py does so for many rows, and adds the errors.
    unchecked: tuple[Sequence[str], Any] | None = None


class Unchecked(msgspec.Struct, gc=False):
    """Tool results of a conversation in which nobody has looked for failures yet, and which alone may have any.

    A table row is checked together with others (`find_errors` of sources/shapes/plain_rows.py), by the marks that all
    formats share; for an experience, `find` returns the same error sites.
    """

    texts: list[str]
    find: Callable[[], Sequence[ErrorSite]]


Record = Experience | ReadyRow
# Of lines, with the length of an overlong one in its place
ReadRows = Callable[[Sequence[bytes | int], Sequence[Origin]], list[ReadyRow | None]]
# What a `ReadRows` may meet in a line that is not usual: the general code then says what is wrong with it, if anything.
UNUSUAL = (ValueError, TypeError, KeyError, OverflowError, RecursionError, PairwrightError)


@dataclass(frozen=True)
class Format:
    """A source format: how to recognize its units and how to read them."""

    name: str
    unit: Literal["record", "file"]
    matches: Callable[[Any], bool]
    read: Read
    summary: str
    # Of a line; for formats whose lines repeat much, or that read lines of known types.
    decode: Callable[[bytes], Any] = msgspec.json.decode
    read_rows: ReadRows | None = None  # usual lines straight to their rows; None for a line that is not usual
    matches_named: Callable[[Any], bool] = lambda value: False  # what it reads too, but only where it is named
    # Of the first records of a file that it matches: why the file must not be read without a word of the user
    refuse: Callable[[list[Any], Options], str | None] = lambda records, options: None
    is_general: bool = False  # it knows what many formats share, fits their files, too, and is asked after them


def build(
    format_name: str,
    origin: Origin,
    *,
    task: int | str | None,
    prompt: Sequence[Message],
    completion: Sequence[Message] = (),
    tools: Sequence[Json] = (),
    batch: int | str = "",
    run: int | None = None,
    step: int = 0,
    reward: float | None = None,
    reward_components: Json | None = None,
    errors: Sequence[ErrorSite] | Unchecked = (),
    info: Json | None = None,
    metrics: Json | None = None,
    model_version: int | str | None = None,
    truncate_status: str | None = None,
    chosen: Side | None = None,
    rejected: Side | None = None,
    task_metadata: Any = None,
    arrays: Json | None = None,
) -> Record:
    """Build an experience and its id from the task and run of the format; the id suffix is a hash of the content.

    If `task` is None, the task is a hash of prompt, tools and `task_metadata`. If `run` is None, the run is the
    record's position in its file. Ids are therefore reproducible, and equal records of one file, or of two files with
    different labels, are all kept.
    `arrays` are the token fields, as returned by `tokens_of_turns`. With `origin.as_row` the result is a ReadyRow,
    unless it takes an experience to check the record or to hold it.
    """
    info = info or {}
    if chosen is None:
        prompt, completion, metrics = _usual_conversation(prompt, completion, metrics)
    completion = tuple(completion)
    context = _share_context(tuple(prompt), tuple(tools))
    if task is None:
        task = task_hash(context.messages, context.tools, task_metadata)
    # What makes two records of one prompt different, beside the completion.
    body = [_side_body(chosen), _side_body(rejected), reward, reward_components, info, label_of(origin)]
    try:
        completion_text = encode(completion)
        # 24 hexadecimal digits: 96 bits of the hash.
        suffix = content_hash(context.hash, completion_text, body)[:24]
    except _NOT_JSON as error:
        raise _refuse(error) from None
    run = origin.ordinal if run is None else run
    kind = _PREFERENCE if chosen is not None else _SINGLE_TURN if len(completion) == 1 else _MULTI_TURN
    fields: Json = {
        "kind": kind,
        "reward": reward,
        "reward_components": reward_components or {},
        "truncate_status": truncate_status,
        "model_version": model_version,
        "info": info,
        "metrics": metrics or {},
    }
    if origin.as_row and kind is not _PREFERENCE and not arrays:
        try:
            own_id = (batch, task, run, step, suffix)
            return _ready_row(format_name, origin, own_id, context, completion, completion_text, errors, **fields)
        except UNUSUAL:
            pass  # the experience says what is wrong, if anything
    return Experience(
        errors=tuple(errors.find() if isinstance(errors, Unchecked) else errors),
        eid=EID(batch, task, run, step, suffix),
        prompt=context.messages,
        tools=context.tools,
        completion=completion,
        chosen=chosen,
        rejected=rejected,
        source=Source(origin.file, origin.line, format_name),
        **fields,
        **(arrays or {}),
    )


def _usual_conversation(
    prompt: Sequence[Message], completion: Sequence[Message], metrics: Json | None
) -> tuple[Sequence[Message], Sequence[Message], Json | None]:
    """Return prompt and completion with the roles of the closed set, and the metrics with the number of open calls."""
    messages = (*prompt, *completion)
    usual = usual_messages(messages)
    if usual is not messages:
        # A call that was a message of its own is the model's: the prompt ends before the first one.
        if any(message.role in CALLS for message in messages):
            prompt, completion = split_at_first_answer(list(usual))
        else:
            prompt, completion = usual[: len(prompt)], usual[len(prompt) :]
    num_open = num_unanswered(usual)
    return prompt, completion, {**(metrics or {}), "unanswered_calls": num_open} if num_open else metrics


def _ready_row(
    format_name: str,
    origin: Origin,
    own_id: tuple[int | str, int | str, int, int, str],  # the fields of an EID
    context: "_Context",
    completion: tuple[Message, ...],
    completion_text: bytes,
    errors: Sequence[ErrorSite] | Unchecked,
    *,
    kind: Kind,
    reward: float | None,
    reward_components: Json,
    info: Json,
    metrics: Json,
    model_version: int | str | None,
    truncate_status: str | None,
) -> ReadyRow:
    """Return the cells of a record, checked as an Experience checks it; raises one of UNUSUAL if it needs one."""
    batch, task, run, step, suffix = own_id
    are_ids = type(batch) in _ID_TYPES and type(task) in _ID_TYPES and type(run) is type(step) is int
    if not are_ids or not (0 <= run < 2**63 and 0 <= step < 2**63):
        raise BadRecord("an id that is none")
    tid = encode((batch, task)).decode()
    cells = _context_cells(context)
    check_truncation(truncate_status)
    if (completion and completion[0].role == TEXT) or (reward is not None and not math.isfinite(reward)):
        raise BadRecord("raw text, or a reward that has no cell of its own")
    sites = () if isinstance(errors, Unchecked) else tuple(errors)
    num_messages = len(context.messages) + len(completion)
    if sites and any(site.index >= num_messages for site in sites):
        raise BadRecord("an error at no message")
    num_characters = num_calls = 0
    for message in completion:
        num_characters += len(message.content) if type(message.content) is str else len(message.text)
        if message.reasoning is not None:
            num_characters += len(message.reasoning)
        for call in message.tool_calls:
            num_characters += len(call.arguments)
        num_calls += len(message.tool_calls)
    row = ReadyRow(  # by position: with names, this would take longer than all hashes
        f'{tid[:-1]},{run},{step},"{suffix}"]',  # `tid` is the JSON text [batch, task]; `uid` goes on behind it
        tid,
        str(batch),
        str(task),
        run,
        step,
        kind,
        None if reward is None else float(reward),
        None if model_version is None else encode(model_version).decode(),
        cells.hash,
        content_hash(canonical_messages(completion)) if completion else None,
        len(context.messages),
        len(completion),
        num_characters,
        num_calls,
        len(sites),
        truncate_status,
        format_name,
        origin.file,
        origin.line,
        cells.prompt,
        cells.tools,
        completion_text if completion else None,
        json_cell(reward_components),
        encode(sites) if sites else None,
        json_cell(info),
        json_cell(metrics),
    )
    if isinstance(errors, Unchecked):
        row.unchecked = errors.texts, context
    return row


def json_cell(value: Json) -> bytes | None:
    """Return an object as JSON text; raises BadRecord unless it is plain JSON, which `to_json` writes just so."""
    if not value:
        return None
    data = encode(value)
    is_same = type(value) is dict and (_is_flat(value) or _is_plain(data, value))
    # A single character is looked for much faster than several.
    if not is_same or (b"$" in data and b'"$float"' in data):
        raise BadRecord("a value that JSON does not hold, or not as it is")
    return data


_KEYS, _VALUES = frozenset({str}), frozenset({str, int, bool})


def _is_flat(value: Json) -> bool:
    """Whether an object has only texts and whole numbers, which are decoded as they were."""
    return _VALUES.issuperset(map(type, value.values())) and _KEYS.issuperset(map(type, value))


def _is_plain(data: bytes, value: Json) -> bool:
    """Whether JSON text is decoded to the value that it was made of, without going deep."""
    return data.count(b"[") + data.count(b"{") <= MAX_DEPTH and bool(decode(data) == value)


def label_of(origin: Origin) -> str:
    """Return the label of the unit's file for record ids."""
    return origin.label or origin.file.rpartition("/")[2]


def split_at_first_answer(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """Split a conversation into prompt and completion at the first message generated by the model."""
    for position, message in enumerate(messages):
        if message.is_generated:
            if message.name is not None and all(other.role == "system" for other in messages[:position]):
                _check_side(messages)
            return messages[:position], messages[position:]
    return messages, []


def _check_side(messages: list[Message]) -> None:
    """Refuse a history that AutoGen (AG2) saved from the side of the agent that put the question.

    In it, the question and the results of tools have the role assistant, and the answers of the model the role user.
    """
    own = {message.name for message in messages if message.role == "assistant"}
    others = {message.name for message in messages if message.role == "user"}
    is_proxy = any("proxy" in (name or "").lower() for name in own)
    if others and None not in own | others and (is_proxy or not others.isdisjoint(("assistant", "chat_manager"))):
        raise BadRecord(
            f"a history of AutoGen from the side of {', '.join(sorted(map(str, own)))}: its own turns have the role "
            "assistant, those of the model the role user; save the other agent's history, or swap the roles"
        )


def task_hash(prompt: tuple[Message, ...], tools: tuple[Json, ...], metadata: Any) -> str:
    """Return the task id for records without one: a hash of prompt, tools and metadata."""
    canonical = _canonical_prompt(prompt)
    try:
        return content_hash(canonical, tools, metadata)
    except _NOT_JSON as error:
        raise _refuse(error) from None


def _canonical_prompt(prompt: tuple[Message, ...]) -> list[Any]:
    """Return the canonical messages of a prompt; computed once for its task and its hash."""
    global _last_canonical
    if _last_canonical[0] is not prompt:
        _last_canonical = prompt, canonical_messages(prompt)
    return _last_canonical[1]


_last_canonical: tuple[tuple[Message, ...], list[Any]] = ((), [])


def session_task(
    session: int | str | None, prompt: Sequence[Message], tools: Sequence[Json] = (), metadata: Any = None
) -> int | str | None:
    """Return the task of a session: a hash of what the model was given at its start.

    So sessions that begin alike are runs of one task. A session whose start is missing is a task of its own.
    """
    return task_hash(tuple(prompt), tuple(tools), metadata) if prompt else session


def session_run(session: int | str | None, origin: Origin, branch: int = 0) -> int:
    """Return the run number of a branch of a session: 48 bits of a hash of its id, or of its file's label."""
    return int(content_hash(label_of(origin) if session is None else session)[:12], 16) + branch


class _ContextCells(msgspec.Struct, gc=False):
    hash: str
    prompt: bytes | None
    tools: bytes | None


class _Context(msgspec.Struct, gc=False):
    """Prompt and tools of a record, their hash and their JSON text; `cells` are those of the table, once made."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    hash: str
    text: tuple[bytes, bytes]
    cells: _ContextCells | None = None


def _share_context(prompt: tuple[Message, ...], tools: tuple[Json, ...]) -> _Context:
    """Return prompt and tools with their hash; those of the record before if they are equal, as for the runs of a task.

    What the table has of them is then computed once for all these records (also by `Column.shared`).
    """
    global _last_context
    last = _last_context
    if last.messages is prompt and last.tools is tools and last.hash:
        return last
    try:
        # Compared as JSON, since Python takes 1, 1.0 and True for equal.
        text = (encode(prompt), encode(tools))
        if text != last.text:
            _last_context = last = _Context(prompt, tools, content_hash(prompt, tools), text)
    except _NOT_JSON as error:
        raise _refuse(error) from None
    return last


def _context_cells(context: _Context) -> _ContextCells:
    if context.cells is None:
        if context.messages and context.messages[0].role == TEXT:
            raise BadRecord("raw text")
        if context.tools:
            Experience(kind=_SINGLE_TURN, tools=context.tools)  # checks them
        prompt, tools = context.text
        context.cells = _ContextCells(
            content_hash(_canonical_prompt(context.messages), context.tools),
            prompt if context.messages else None,
            tools if context.tools else None,
        )
    return context.cells


_last_context = _Context((), (), "", (b"", b""))
# What encoders raise for unvalidated values: nested too deep, or not valid Unicode
_NOT_JSON = (RecursionError, TypeError, ValueError)


def _side_body(side: Side | None) -> list[Any] | None:
    return None if side is None else [side.messages, side.text, side.reward]


def _refuse(error: Exception) -> BadRecord:
    return BadRecord(f"a value that cannot be written as JSON: {error}")


# Error handling for readers: for any JSON value they yield experiences or Rejected, or raise BadRecord.


def guarded(read: Read) -> Read:
    """Wrap a reader so that errors caused by its input are raised as BadRecord."""

    def guarded_read(value: Any, origin: Origin, options: Options) -> Iterator[Record | Rejected | PartOfAnother]:
        try:
            yield from read(value, origin, options)
        except RecursionError:
            raise BadRecord("nested too deep to read") from None
        except UnicodeError as error:
            raise BadRecord(f"text that is not valid Unicode: {error}") from None
        except (OverflowError, msgspec.MsgspecError) as error:
            raise BadRecord(f"a value that JSON cannot hold: {error}") from None

    return guarded_read

"""What a reader is, and what it makes: the one interface between files and experiences.

A format has a `unit`: "record" (each line of a JSONL file, each item of a JSON list, or the one object of a JSON file)
or "file" (all lines of a JSONL file as one list, or the value of a JSON file: one session). `matches` looks at one
decoded unit and says whether it is this format; `read` turns one unit into experiences. A unit that cannot be used
raises BadRecord or RecordError and goes to quarantine whole; a part of it that cannot be used is yielded as Rejected.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from pairwright.records.canonical import canonical_messages, content_hash
from pairwright.records.experience import EID, Experience, Kind, Side, Source
from pairwright.records.json_text import encode
from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.sources.fields import BadRecord

T = TypeVar("T")


class Rejected(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that was read and could not be used; it goes to quarantine.jsonl."""

    file: str
    line: int | None
    reason: str
    format: str | None = None
    raw: str | None = None


class Origin(msgspec.Struct, frozen=True):
    """Where a unit was read: `ordinal` is its position in the file, from 0; `line` its first line, from 1.

    `label` names the file in the ids of its records; without one it is the file's name.
    """

    file: str
    line: int | None = None
    ordinal: int = 0
    label: str = ""

    @property
    def path(self) -> Path:
        return Path(self.file)


class Options(msgspec.Struct, frozen=True):
    """What the user may say about how to read; formats use what concerns them."""

    reward: str | None = None
    step_name: str | None = None


# Members looked up once: `build` runs for every record.
_SINGLE_TURN, _MULTI_TURN, _PREFERENCE = Kind.SINGLE_TURN, Kind.MULTI_TURN, Kind.PREFERENCE

Read = Callable[[Any, Origin, Options], Iterator[Experience | Rejected]]


class ReadyRow(msgspec.Struct, gc=False, kw_only=True):
    """The cells of a row, named as the table's columns (store/columns.py).

    For lines of large files: building and checking a record would take most of the time of their import. The reader
    answers for it that the cells are those of the record that `read` gives. The importer adds `step`, which is 0, and
    the source; all other columns are null.
    """

    uid: str
    tid: str
    batch: str
    task: str
    run: int
    kind: str
    reward: float | None  # finite
    model_version: str | None
    prompt_hash: str
    completion_hash: str
    num_prompt_messages: int
    num_completion_messages: int
    num_completion_characters: int
    num_tool_calls: int
    num_errors: int
    source_line: int
    prompt: bytes | None
    tools: bytes | None
    completion: bytes
    errors: bytes | None
    info: str | None


ReadRow = Callable[[bytes, Origin], ReadyRow | None]


@dataclass(frozen=True)
class Format:
    name: str
    unit: Literal["record", "file"]
    matches: Callable[[Any], bool]
    read: Read
    summary: str
    decode: Callable[[bytes], Any] = msgspec.json.decode  # of a line; for formats whose lines repeat much
    read_row: ReadRow | None = None  # a usual line straight to its row; None for a line that is not usual
    matches_named: Callable[[Any], bool] = lambda value: False  # what it reads too, but only where it is named


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
    errors: Sequence[ErrorSite] = (),
    info: Json | None = None,
    metrics: Json | None = None,
    model_version: int | str | None = None,
    truncate_status: str | None = None,
    chosen: Side | None = None,
    rejected: Side | None = None,
    task_metadata: Any = None,
    arrays: Json | None = None,
) -> Experience:
    """An experience with its identity: task and run as the format says, the suffix a hash of it all.

    With no task of its own the task is a hash of prompt, tools and `task_metadata`; with no run, the run is the
    record's position in its file. So the same file gives the same ids, and equal records of one file, or of two files
    with different labels, are all kept.
    `arrays` are the token fields, as `tokens_of_turns` gives them.
    """
    info = info or {}
    prompt, tools = tuple(prompt), tuple(tools)
    if task is None:
        task = task_hash(prompt, tools, task_metadata)
    # What makes two records of one prompt different, beside the completion.
    body = [_side_body(chosen), _side_body(rejected), reward, reward_components, info, label_of(origin)]
    # 24 hexadecimal digits: 96 bits of the hash.
    suffix = _hash(_given_hash(prompt, tools), _written(encode, completion), body)[:24]
    return Experience(
        eid=EID(batch, task, origin.ordinal if run is None else run, step, suffix),
        kind=_PREFERENCE if chosen is not None else _SINGLE_TURN if len(completion) == 1 else _MULTI_TURN,
        prompt=prompt,
        tools=tools,
        completion=tuple(completion),
        chosen=chosen,
        rejected=rejected,
        reward=reward,
        reward_components=reward_components or {},
        truncate_status=truncate_status,
        model_version=model_version,
        errors=tuple(errors),
        info=info,
        metrics=metrics or {},
        source=Source(origin.file, origin.line, format_name),
        **(arrays or {}),
    )


def label_of(origin: Origin) -> str:
    """How the file of a unit is named in the ids of its records."""
    return origin.label or origin.file.rpartition("/")[2]


def split_at_first_answer(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """Prompt and completion of a conversation: the completion begins at the first turn that the model wrote."""
    for position, message in enumerate(messages):
        if message.is_generated:
            return messages[:position], messages[position:]
    return messages, []


def task_hash(prompt: tuple[Message, ...], tools: tuple[Json, ...], metadata: Any) -> str:
    """The task of records that do not name theirs."""
    return _hash(canonical_messages(prompt), tools, metadata)


def _given_hash(prompt: tuple[Message, ...], tools: tuple[Json, ...]) -> str:
    """A hash of prompt and tools, kept for the last ones, since the runs of a task often share the very objects."""
    global _last_given
    # By identity: comparing the prompts themselves would cost what the cache saves.
    if _last_given[0] is not prompt or _last_given[1] is not tools:
        _last_given = (prompt, tools, _hash(prompt, tools))
    return _last_given[2]


_last_given: tuple[object, object, str] = (None, None, "")


def _side_body(side: Side | None) -> list[Any] | None:
    return None if side is None else [side.messages, side.text, side.reward]


def _hash(*values: Any) -> str:
    """`content_hash` of values that no record has checked yet."""
    return _written(content_hash, *values)


def _written(write: Callable[..., T], *values: Any) -> T:
    """What `write` makes of values that no record has checked yet."""
    try:
        return write(*values)
    except (RecursionError, TypeError, ValueError) as error:  # nested too deep, or not valid Unicode
        raise BadRecord(f"a value that cannot be written as JSON: {error}") from None


# The guard around a reader: whatever JSON value goes in, what comes out is experiences, Rejected or BadRecord.


def guarded(read: Read) -> Read:
    def guarded_read(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
        try:
            yield from read(value, origin, options)
        except RecursionError:
            raise BadRecord("nested too deep to read") from None
        except UnicodeError as error:
            raise BadRecord(f"text that is not valid Unicode: {error}") from None
        except (OverflowError, msgspec.MsgspecError) as error:
            raise BadRecord(f"a value that JSON cannot hold: {error}") from None

    return guarded_read

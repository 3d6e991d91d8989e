"""The reader interface: Format, and the values passed to readers.

A format has a `unit`: "record" (each line of a JSON Lines file, each item of a JSON list, or the single object of a
JSON file) or "file" (all lines of a JSON Lines file as one list, or the value of a JSON file: one session). `matches`
tests whether a decoded unit has this format; `read` yields the parts of its records, which a Reader assembles
(sources/assemble.py). An unusable unit raises BadRecord or RecordError and is quarantined as a whole; an unusable part
of a unit is yielded as Rejected.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from pairwright.config.sections import SourcesConfig
from pairwright.errors import SourceError
from pairwright.sources.field_map import NO_MAP, FieldMap, parse_map


class Rejected(msgspec.Struct, frozen=True, omit_defaults=True):
    """Input that could not be used, with the reason; written to quarantine.jsonl."""

    file: str
    line: int | None
    reason: str
    format: str | None = None
    raw: str | None = None


class PartOfAnother(msgspec.Struct, frozen=True):
    """A unit already contained in records of another file, such as a message of a stored session; only counted."""


class Origin(msgspec.Struct, frozen=True):
    """Location of a unit: `ordinal` is its position in the file, from 0; `line` is its first line, from 1.

    `label` identifies the file in record ids; it defaults to the file name.
    """

    file: str
    line: int | None = None
    ordinal: int = 0
    label: str = ""

    def at(self, line: int | None, ordinal: int) -> "Origin":
        return Origin(self.file, line, ordinal, self.label)

    def rejected(self, reason: object, format_name: str, raw: str | None = None) -> Rejected:
        return Rejected(self.file, self.line, str(reason), format_name, raw)

    @property
    def path(self) -> Path:
        return Path(self.file)


class Options(msgspec.Struct, frozen=True):
    """User options for reading; each format uses those that apply to it."""

    reward: str | None = None
    step_name: str | None = None
    compaction_prompt: str | None = None  # the prompt that requested compaction summaries, for logs without it
    map: FieldMap = NO_MAP
    # Expressions (sources/identity.py); None keeps the format's value.
    task: str | None = None
    run: str | None = None
    step: str | None = None


def read_compaction_prompt(path: str | os.PathLike[str] | None, base: Path | None = None) -> str | None:
    """Return the text of a file (relative to `base`), or None without a file; SourceError if there is no text."""
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


def options_of(section: SourcesConfig, base: Path | None = None, *, step_name: str | None = None) -> Options:
    """Return the options of the section `sources`; relative paths are resolved against `base`."""
    return Options(
        reward=section.reward,
        step_name=step_name,
        compaction_prompt=read_compaction_prompt(section.compaction_prompt, base),
        map=parse_map(section.map),
        task=section.task,
        run=section.run,
        step=section.step,
    )


@dataclass(frozen=True)
class Format:
    """A source format: how to recognize its units and how to read them."""

    name: str
    unit: Literal["record", "file"]
    matches: Callable[[Any], bool]
    read: Callable[[Any, Origin, Options], Iterator[Any]]
    summary: str
    # Decodes a line; replaced by formats with repetitive or typed lines.
    decode: Callable[[bytes], Any] = msgspec.json.decode
    matches_named: Callable[[Any], bool] = lambda value: False  # looser test, used only with `--format NAME`
    # Given the first records of a file, returns why reading it needs explicit consent
    refuse: Callable[[list[Any], Options], str | None] = lambda records, options: None
    is_general: bool = False  # a general reader, tried after the specific ones

    def __post_init__(self) -> None:
        from pairwright.sources.assemble import Reader  # imports this module

        if not isinstance(self.read, Reader):
            object.__setattr__(self, "read", Reader(self.read))

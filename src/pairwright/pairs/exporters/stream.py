"""How every export runs: rows come a batch at a time, and the output takes its name when it is complete.

A target's `Lines` makes the JSON lines of one pair from the JSON text that the table holds. What the target cannot
hold raises Unfit, and the pair is counted under that reason as refused; what is written, but not the whole of it or
not as it would be trained elsewhere, is counted as noted. Nothing else is left out: pairs = written + refused.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import ConfigError, PairwrightError
from pairwright.pairs.table import pair_batches
from pairwright.store.journal import sync_folder

_NUM_EXAMPLES = 5
_NARROW = ("id", "weight", "chosen_reward", "rejected_reward")
_CONTENT = ("prompt", "tools", "chosen", "rejected")


class PairRow(NamedTuple):
    """A row of the pairs table: the content as the JSON text that is stored there, None where empty."""

    id: str
    weight: float
    chosen_reward: float
    rejected_reward: float
    prompt: bytes | None
    tools: bytes | None
    chosen: bytes | None
    rejected: bytes | None


class Unfit(Exception):
    """A pair that the target cannot hold; `reason` is the name under which it is counted."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user may say about an export; targets use what concerns them."""

    split: Literal["train", "validation", "all"] = "all"
    history: bool = False  # customizer: messages with the full history as prompt, instead of text
    arguments: Literal["text", "object"] = "text"  # of tool calls, in TRL's files: JSON text or the object itself

    def __post_init__(self) -> None:
        for name, known in (("split", ("train", "validation", "all")), ("arguments", ("text", "object"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"--{name} {getattr(self, name)!r}: expected {', '.join(known)}")


class ExportSummary(msgspec.Struct, kw_only=True):
    """What became of every pair: `pairs` were read, `written` of them are in the output as `rows` rows."""

    target: str
    pairs: int = 0
    written: int = 0
    rows: int = 0
    refused: dict[str, int] = {}
    noted: dict[str, int] = {}
    examples: dict[str, list[str]] = {}

    def refuse(self, pair: str, reason: str) -> None:
        self._count(self.refused, pair, reason)

    def note(self, pair: str, reason: str) -> None:
        self._count(self.noted, pair, reason)

    def _count(self, counts: dict[str, int], pair: str, reason: str) -> None:
        counts[reason] = counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(pair)


class Context(NamedTuple):
    """What holds for all pairs of one export."""

    options: ExportOptions
    has_tools: bool  # some pair has tools, so that every row should have the column
    note: Callable[[str], None]  # count this pair under a reason, if it is written


Lines = Callable[[PairRow, Context], list[bytes]]  # each with its line end
Exporter = Callable[[Path, Path, ExportOptions], ExportSummary]


def jsonl_exporter(target: str, lines: Lines) -> Exporter:
    """An exporter that writes what `lines` makes of each pair."""

    def export(pairs: Path, output: Path, options: ExportOptions) -> ExportSummary:
        return _write_jsonl(pairs, output, options, target=target, lines=lines)

    export.__doc__ = lines.__doc__
    return export


def split_batches(pairs: Path, split: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of one split, or of all."""
    if split == "all":
        yield from pair_batches(pairs, columns)
        return
    for batch in pair_batches(pairs, None if columns is None else [*columns, "split"]):
        kept = batch.filter(pc.equal(batch.column("split"), split))
        if kept.num_rows:
            yield kept if columns is None else kept.select(columns)


@contextmanager
def written(output: Path) -> Iterator[Path]:
    """A hidden path beside the output that takes its place only when everything was written and synced."""
    output.parent.mkdir(parents=True, exist_ok=True)
    hidden = output.with_name(f".{output.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        yield hidden
        for path in (path for path in [hidden, *hidden.rglob("*")] if path.is_file()):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        if output.is_dir() and not output.is_symlink():
            shutil.rmtree(output)
        hidden.replace(output)
        sync_folder(output.parent)
    except OSError as error:
        raise PairwrightError(f"{output}: {error.strerror or error}; nothing was written") from error
    finally:
        if hidden.is_dir():
            shutil.rmtree(hidden)
        else:
            hidden.unlink(missing_ok=True)


def _write_jsonl(pairs: Path, output: Path, options: ExportOptions, *, target: str, lines: Lines) -> ExportSummary:
    summary = ExportSummary(target=target)
    notes: set[str] = set()
    context = Context(options, _has_tools(pairs, options.split), notes.add)
    with written(output) as hidden, open(hidden, "wb", buffering=2**20) as file:
        for batch in split_batches(pairs, options.split, [*_NARROW, *_CONTENT]):
            for row in _rows(batch):
                summary.pairs += 1
                notes.clear()
                try:
                    made = lines(row, context)
                except Unfit as unfit:
                    summary.refuse(row.id, unfit.reason)
                    continue
                if row.weight != 1.0:
                    notes.add("weight_left_out")
                for reason in sorted(notes):
                    summary.note(row.id, reason)
                summary.written += 1
                summary.rows += len(made)
                file.writelines(made)
    return summary


def _rows(batch: pa.RecordBatch) -> Iterator[PairRow]:
    columns = [batch.column(name) for name in _NARROW]
    columns += [batch.column(name).cast(pa.large_binary()) for name in _CONTENT]  # copied, never decoded
    return map(PairRow._make, zip(*(column.to_pylist() for column in columns), strict=True))


def _has_tools(pairs: Path, split: str) -> bool:
    return any(batch.column("tools").null_count < batch.num_rows for batch in split_batches(pairs, split, ["tools"]))

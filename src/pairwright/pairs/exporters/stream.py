"""How every export runs: rows come a batch at a time, and the output takes its name when it is complete.

A target's `Lines` makes the JSON lines of one pair from the JSON text that the table holds. What the target cannot
hold raises Unfit, and the pair is counted under that reason as refused; what is written, but not the whole of it or
not as it would be trained elsewhere, is counted as noted. Nothing else is left out: pairs = written + refused.

Most pairs are plain: their lines are their texts with a few constant pieces between them. A target's `Columns` joins
those, whole batches at a time, exactly as its `Lines` would; what it leaves null goes through `Lines`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import ConfigError, PairwrightError
from pairwright.pairs.memory import plain_memory
from pairwright.pairs.table import has_tools, pair_batches
from pairwright.places import Place, write_atomic

Flags = npt.NDArray[np.bool_]
_NUM_EXAMPLES = 5
_ROWS_AT_ONCE = 1024  # small enough for a batch's lines to stay in the cache
_BYTES = pa.large_binary()
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
    needs_rows: bool = False  # raise NothingFits instead of writing a file without rows

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

    def note_all(self, pairs: pa.Array, reason: str) -> None:
        """Note pairs, given by their ids in the order of the table."""
        for pair in pairs[:_NUM_EXAMPLES].to_pylist():
            self.note(pair, reason)
        if len(pairs) > _NUM_EXAMPLES:
            self.noted[reason] += len(pairs) - _NUM_EXAMPLES

    def _count(self, counts: dict[str, int], pair: str, reason: str) -> None:
        counts[reason] = counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(pair)


class NothingFits(PairwrightError):
    """An export in which no pair was written; what was there before stays. `summary` says what became of the pairs."""

    def __init__(self, summary: ExportSummary, pairs: Place, split: str) -> None:
        self.summary = summary
        if not summary.pairs:
            which = "no pairs" if split == "all" else f"no pairs of the split {split!r}"
            super().__init__(f"{pairs}: {which} to export; see: pairwright pairs stats {pairs}")
            return
        reasons = ", ".join(f"{num:,} × {reason}" for reason, num in sorted(summary.refused.items()))
        super().__init__(
            f"none of {summary.pairs:,} pairs fits {summary.target} ({reasons}); nothing was written. "
            "docs/exports.md says what each target holds"
        )


def refuse_empty(summary: ExportSummary, pairs: Place, options: ExportOptions) -> None:
    """NothingFits where no pair was written and the export needs rows."""
    if options.needs_rows and not summary.written:
        raise NothingFits(summary, pairs, options.split)


class Context(NamedTuple):
    """What holds for all pairs of one export."""

    options: ExportOptions
    has_tools: bool  # some pair has tools, so that every row should have the column
    note: Callable[[str], None]  # count this pair under a reason, if it is written
    is_text: bool = False  # the first pair is raw text, outside any chat template


Lines = Callable[[PairRow, Context], list[bytes]]  # each with its line end


class Pieces(NamedTuple):
    """Of what the lines of a batch's rows are joined: constants, or columns (dictionary arrays where texts are shared)
    that are null where Lines is needed. `notes` says which rows are to be noted under a reason, if they are joined."""

    parts: Sequence[pa.Array | bytes]
    notes: Mapping[str, Flags] = {}


Columns = Callable[[pa.RecordBatch, Context], Pieces]
Exporter = Callable[[Place, Place, ExportOptions], ExportSummary]


def jsonl_exporter(target: str, lines: Lines, columns: Columns | None = None, *, rows_per_pair: int = 1) -> Exporter:
    """An exporter that writes what `lines` makes of each pair; where `columns` makes it too, that is taken."""

    def export(pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
        writer = _Writer(ExportSummary(target=target), lines, columns, rows_per_pair)
        return writer.write(pairs, output, options)

    export.__doc__ = lines.__doc__
    return export


def split_batches(
    pairs: Place, split: str, columns: list[str] | None = None, *, dictionaries: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of one split, or of all."""
    if split == "all":
        yield from pair_batches(pairs, columns, dictionaries=dictionaries)
        return
    for batch in pair_batches(pairs, None if columns is None else [*columns, "split"], dictionaries=dictionaries):
        kept = batch.filter(pc.equal(batch.column("split"), split))
        if kept.num_rows:
            yield kept if columns is None else kept.select(columns)


class _Writer:
    """One export under way: the file, and what became of the pairs so far."""

    def __init__(self, summary: ExportSummary, lines: Lines, columns: Columns | None, rows_per_pair: int) -> None:
        self._summary, self._lines, self._columns = summary, lines, columns
        self._rows_per_pair = rows_per_pair
        self._notes: set[str] = set()

    def write(self, pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
        context = Context(options, _has_tools(pairs, options.split), self._notes.add)
        is_first = True
        with (
            plain_memory(),
            write_atomic(output, error=PairwrightError) as temporary,
            open(temporary, "wb", buffering=2**16) as file,
        ):
            for batch in split_batches(pairs, options.split, [*_NARROW, *_CONTENT], dictionaries=True):
                if is_first:
                    context, is_first = context._replace(is_text=_is_text(batch)), False
                self._write_batch(batch, context, file)
            refuse_empty(self._summary, pairs, options)
        return self._summary

    def _write_batch(self, batch: pa.RecordBatch, context: Context, file: BinaryIO) -> None:
        """Runs of plain pairs are written as one piece, the others one by one, in the order of the table."""
        self._summary.pairs += batch.num_rows
        pieces = None if self._columns is None or context.is_text else self._columns(batch, context)
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            rows = batch.slice(start, _ROWS_AT_ONCE)
            noted = {"weight_left_out": rows.column("weight").to_numpy() != 1.0}
            if pieces is None:
                lines = pa.nulls(rows.num_rows, _BYTES)
            else:
                noted |= {reason: flags[start : start + rows.num_rows] for reason, flags in pieces.notes.items()}
                lines = _joined(pieces.parts, start, rows.num_rows)
            self._write_lines(rows, lines, noted, context, file)
            for reason, flags in noted.items():
                self._summary.note_all(rows.column("id").filter(pa.array(flags)), reason)

    def _write_lines(
        self, rows: pa.RecordBatch, lines: pa.Array, noted: dict[str, Flags], context: Context, file: BinaryIO
    ) -> None:
        """Write the lines, and those that are null row by row; what is noted of rows is put down in `noted`."""
        odd = np.flatnonzero(lines.is_null().to_numpy(zero_copy_only=False))
        for flags in noted.values():
            flags[odd] = False
        offsets, data = np.frombuffer(lines.buffers()[1], np.int64), memoryview(lines.buffers()[2] or b"")
        start = 0
        for place, row in zip(odd.tolist(), _rows(rows.take(odd)) if len(odd) else (), strict=True):
            file.write(data[offsets[start] : offsets[place]])
            file.writelines(self._made(row, context))
            for reason in self._notes:
                noted.setdefault(reason, np.zeros(rows.num_rows, np.bool_))[place] = True
            start = place + 1
        file.write(data[offsets[start] : offsets[len(lines)]])
        self._summary.written += rows.num_rows - len(odd)
        self._summary.rows += (rows.num_rows - len(odd)) * self._rows_per_pair

    def _made(self, row: PairRow, context: Context) -> list[bytes]:
        """The lines of a pair, none if it is refused; what is to be noted of it is in `_notes`."""
        self._notes.clear()
        try:
            made = self._lines(row, context)
        except Unfit as unfit:
            self._summary.refuse(row.id, unfit.reason)
            self._notes.clear()
            return []
        if row.weight != 1.0:
            self._notes.add("weight_left_out")
        self._summary.written += 1
        self._summary.rows += len(made)
        return made


def _joined(pieces: Sequence[pa.Array | bytes], start: int, length: int) -> pa.Array:
    """The pieces of some rows one after the other; null where one of them is."""
    parts = [pa.scalar(piece, _BYTES) if isinstance(piece, bytes) else piece.slice(start, length) for piece in pieces]
    parts = [part.dictionary_decode() if isinstance(part, pa.DictionaryArray) else part for part in parts]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))


def _rows(batch: pa.RecordBatch) -> Iterator[PairRow]:
    columns = [batch.column(name) for name in _NARROW]
    columns += [batch.column(name).dictionary_decode().cast(pa.large_binary()) for name in _CONTENT]
    return map(PairRow._make, zip(*(column.to_pylist() for column in columns), strict=True))


def begins_with_text(pairs: Place) -> bool:
    """Whether the first pair of a table is raw text, outside any chat template."""
    return any(_is_text(batch) for batch in islice(pair_batches(pairs, ["prompt"]), 1))


def _is_text(batch: pa.RecordBatch) -> bool:
    """Whether the first pair of a batch is raw text."""
    prompt = batch.column("prompt")[0].as_py() if batch.num_rows else None
    return prompt is not None and prompt.startswith('[{"role":"text"')


def _has_tools(pairs: Place, split: str) -> bool:
    if not has_tools(pairs):
        return False
    batches = split_batches(pairs, split, ["tools"], dictionaries=True)
    return any(batch.column("tools").null_count < batch.num_rows for batch in batches)

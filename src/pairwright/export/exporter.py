"""The export loop: read pairs batch by batch, write the output atomically, count refused and noted pairs.

The `Lines` function of a target builds the JSON Lines of one pair from its messages, which export/chat_lines.py encodes
once for all pairs of a batch that share them. If the target cannot represent a pair, it raises Unfit and the pair is
counted as refused. A pair that is written incompletely, or that the target trains differently, is counted as noted.
Always pairs = written + refused.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import ConfigError, PairwrightError
from pairwright.export.chat_lines import Content, Context, PairRow, Unfit
from pairwright.pairs.pair_table import has_tools, pair_batches
from pairwright.pairs.spill import plain_memory
from pairwright.paths import Place, write_atomic
from pairwright.records.json_text import decode, encode
from pairwright.records.tool_texts import to_chat_tool

_NUM_EXAMPLES = 5
_NARROW = ("id", "weight", "chosen_reward", "rejected_reward")
_CONTENT = ("prompt", "tools", "chosen", "rejected")


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an export; targets ignore those that do not apply to them."""

    split: Literal["train", "validation", "all"] = "all"
    history: bool = False  # customizer: messages with the full history as prompt, instead of text
    arguments: Literal["text", "object"] = "text"  # of tool calls, in TRL's files: JSON text or the object itself
    needs_rows: bool = False  # raise NothingFits instead of writing a file without rows

    def __post_init__(self) -> None:
        for name, known in (("split", ("train", "validation", "all")), ("arguments", ("text", "object"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"--{name} {getattr(self, name)!r}: expected {', '.join(known)}")


class ExportSummary(msgspec.Struct, kw_only=True):
    """What became of every pair: `pairs` were read, `written` of them are in the output as `rows` rows.

    >>> import pairwright as pw
    >>> summary = pw.Pairs("runs/first/pairs").export("trl", "pairs.jsonl")
    >>> summary.pairs, summary.written, summary.refused
    (4, 4, {})
    """

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


class NothingFits(PairwrightError):
    """Raised if no pair was written; an existing output is unchanged. `summary` has the counts."""

    def __init__(self, summary: ExportSummary, pairs: Place, split: str) -> None:
        self.summary = summary
        if not summary.pairs:
            which = "no pairs" if split == "all" else f"no pairs of the split {split!r}"
            super().__init__(f"{pairs}: {which} to export; see: pairwright pairs stats {pairs}")
            return
        reasons = ", ".join(f"{num:,} × {reason}" for reason, num in sorted(summary.refused.items()))
        super().__init__(
            f"none of {summary.pairs:,} pairs fits {summary.target} ({reasons}); nothing was written. "
            "docs/reference/exports.md says what each target holds"
        )


def refuse_empty(summary: ExportSummary, pairs: Place, options: ExportOptions) -> None:
    """Raise NothingFits if no pair was written and `needs_rows` is set."""
    if options.needs_rows and not summary.written:
        raise NothingFits(summary, pairs, options.split)


Lines = Callable[[PairRow, Context], list[bytes]]  # each with its line end
Exporter = Callable[[Place, Place, ExportOptions], ExportSummary]


def jsonl_exporter(target: str, lines: Lines) -> Exporter:
    """Return an exporter that writes the lines of each pair to a JSON Lines file."""

    def export(pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
        summary = ExportSummary(target=target)
        with (
            plain_memory(),
            write_atomic(output, error=PairwrightError) as temporary,
            open(temporary, "wb", buffering=2**16) as file,
        ):
            file.writelines(_all_lines(pairs, lines, options, summary))
            refuse_empty(summary, pairs, options)
        return summary

    export.__doc__ = lines.__doc__
    return export


def _all_lines(pairs: Place, lines: Lines, options: ExportOptions, summary: ExportSummary) -> Iterator[bytes]:
    """Yield the lines of all pairs, a batch at a time, and count written, refused and noted pairs in `summary`."""
    # The notes of the current pair; they count only if it is written.
    notes: set[str] = set()
    context = Context(options.history, _has_tools(pairs, options.split), notes.add)
    for batch in split_batches(pairs, options.split, [*_NARROW, *_CONTENT], dictionaries=True):
        if not summary.pairs:
            context = context._replace(is_text=_is_text(batch))
        summary.pairs += batch.num_rows
        num_refused, written = 0, []
        for row in _rows(batch, options.arguments):
            try:
                written += lines(row, context)
            except Unfit as unfit:
                summary.refuse(row.id, unfit.reason)
                num_refused += 1
            else:
                if row.weight != 1.0:
                    notes.add("weight_left_out")
                if notes:
                    for reason in notes:
                        summary.note(row.id, reason)
            notes.clear()
        summary.written += batch.num_rows - num_refused
        summary.rows += len(written)
        yield b"".join(written)


def split_batches(
    pairs: Place, split: str, columns: list[str] | None = None, *, dictionaries: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the pairs of a split, or of all pairs for the split "all"."""
    if split == "all":
        yield from pair_batches(pairs, columns, dictionaries=dictionaries)
        return
    for batch in pair_batches(pairs, None if columns is None else [*columns, "split"], dictionaries=dictionaries):
        rows = batch.filter(pc.equal(batch.column("split"), split))
        if rows.num_rows:
            yield rows if columns is None else rows.select(columns)


def _rows(batch: pa.RecordBatch, arguments: str) -> Iterator[PairRow]:
    """Yield the rows of a batch. Equal texts share one `Content`, so that each is decoded and encoded once."""
    contents: dict[str | None, Content] = {}
    columns = [_values(batch.column(name)) for name in _NARROW]
    for name in _CONTENT:
        column = batch.column(name)
        # Indexed by dictionary code, with None at the end for code -1.
        values = [*_values(column.dictionary), None]
        if name == "tools":
            values = [text if text is None else _nest_tools(text) for text in values]
        else:
            for text in values:
                if text not in contents:
                    contents[text] = Content(text, arguments)
            values = [contents[text] for text in values]
        indices = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)  # -1: a row without text, the last value
        columns.append([values[index] for index in indices.tolist()])
    return map(PairRow, *columns)


def _nest_tools(text: str) -> str:
    """Return tool schemas as chat APIs and templates take them; the same text where they are so."""
    tools = decode(text)
    nested = [to_chat_tool(tool) for tool in tools]
    return text if nested == tools else encode(nested).decode()


def _values(column: pa.Array) -> list[Any]:
    """Return a column as a list; by way of numpy, which is faster, where no null would become NaN."""
    values: list[Any] = column.to_pylist() if column.null_count else column.to_numpy(zero_copy_only=False).tolist()
    return values


def begins_with_text(pairs: Place) -> bool:
    """Return whether the first pair of a table is raw text, outside any chat template."""
    return any(_is_text(batch) for batch in islice(pair_batches(pairs, ["prompt"]), 1))


def _is_text(batch: pa.RecordBatch) -> bool:
    """Return whether the first pair of a batch is raw text."""
    prompt = batch.column("prompt")[0].as_py() if batch.num_rows else None
    # Stored messages are compact JSON that begins with the role: no need to decode.
    return prompt is not None and prompt.startswith('[{"role":"text"')


def _has_tools(pairs: Place, split: str) -> bool:
    if not has_tools(pairs):
        return False
    batches = split_batches(pairs, split, ["tools"], dictionaries=True)
    return any(batch.column("tools").null_count < batch.num_rows for batch in batches)

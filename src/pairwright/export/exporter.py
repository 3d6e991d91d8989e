"""The export loop: read pairs batch by batch, write the output atomically, count refused and noted pairs.

A target says of which parts its lines consist (export/line_layout.py). A pair that it cannot represent is counted as
refused. A pair that is written incompletely, or that the target trains differently, is counted as noted. Always pairs =
written + refused.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import ConfigError, PairwrightError
from pairwright.export.chat_lines import Context
from pairwright.export.line_layout import CONTENT, NARROW, Layout, LineBatch
from pairwright.pairs.pair_table import has_tools, pair_batches
from pairwright.pairs.spill import plain_memory
from pairwright.paths import Place, write_atomic

_NUM_EXAMPLES = 5


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


Exporter = Callable[[Place, Place, ExportOptions], ExportSummary]


def jsonl_exporter(target: str, layout_of: Callable[[Context], Layout]) -> Exporter:
    """Return an exporter that writes the lines of each pair to a JSON Lines file."""

    def export(pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
        summary = ExportSummary(target=target)
        with (
            plain_memory(),
            write_atomic(output, error=PairwrightError) as temporary,
            open(temporary, "wb", buffering=2**16) as file,
        ):
            file.writelines(_all_lines(pairs, layout_of, options, summary))
            refuse_empty(summary, pairs, options)
        return summary

    export.__doc__ = layout_of.__doc__
    return export


def _all_lines(
    pairs: Place, layout_of: Callable[[Context], Layout], options: ExportOptions, summary: ExportSummary
) -> Iterator[bytes]:
    """Yield the lines of all pairs, a batch at a time, and count written, refused and noted pairs in `summary`."""
    layout: Layout = ()
    for batch in split_batches(pairs, options.split, [*NARROW, *CONTENT], dictionaries=True):
        if not summary.pairs:
            layout = layout_of(Context(options.history, _has_tools(pairs, options.split), _is_text(batch)))
        lines = LineBatch(batch, options.arguments)
        text = lines.join(layout)
        num_written = batch.num_rows - len(lines.refused)
        summary.pairs += batch.num_rows
        summary.written += num_written
        summary.rows += num_written * sum(part.count(b"\n") for part in layout if isinstance(part, bytes))
        for row in sorted(lines.refused.keys() | lines.noted.keys()):
            pair = batch.column("id")[row].as_py()
            if row in lines.refused:
                summary.refuse(pair, lines.refused[row])
            else:  # notes count only for pairs that are written
                for reason in sorted(lines.noted[row]):
                    summary.note(pair, reason)
        yield text


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

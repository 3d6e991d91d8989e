"""Fetching the texts of kept drafts, in slices.

The experience tables are scanned once. For a row that is only ever rejected, only the completion is kept. If the texts
of all pairs do not fit in memory, they are in files, by slice: each slice has the texts of a contiguous range of pairs,
and pairs are written slice by slice (`spread_rows` in pairs/workers.py).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import TableError
from pairwright.pairs.candidates.candidates import PLACE_BITS, Indices, distinct
from pairwright.pairs.rewritten_texts import with_messages
from pairwright.pairs.row_groups import Filling, int64_array
from pairwright.pairs.shuffle_files import Aside, write_aside
from pairwright.pairs.texts import SIDES, slice_rows
from pairwright.paths import Place
from pairwright.paths.parquet_files import footers_of
from pairwright.store.table import Table

MAX_SLICES = 1024
_CONTENT = (
    "uid", "prompt", "tools", "completion", "prompt_text", "response_text", "num_prompt_messages",
    "num_completion_messages", "num_tokens", "truncate_status", "info",
)  # fmt: skip
_OF_CHOSEN = ("prompt", "tools", "prompt_text")  # copied only from the chosen row of a pair
_PIECE_BYTES = 8 * 2**20  # bytes of texts that are split into slices together
_HELD = 3  # peak memory of texts as a multiple of their size
WANTED_BITS = 11  # low bits of a wanted row: the slice that needs it, and in the last bit whether the prompt is needed


class PairTexts:
    """Kept drafts and their texts: add all drafts first, then read the rows of the pairs table."""

    def __init__(self, num_drafts: int, num_slices: int, folder: Place | None) -> None:
        self._folder = folder
        self._drafts: list[pl.DataFrame] = []  # used if there is a single slice
        self.files: list[Aside] = []  # files of drafts by slice, if there are several slices
        self._bounds = np.linspace(0, num_drafts, num_slices + 1).astype(np.int64)[1:]
        self._wanted: list[Indices] = []
        self.columns: tuple[str, ...] = _CONTENT

    def add(self, drafts: pl.DataFrame, places: Indices) -> None:
        """Add drafts; `places` are their row numbers in the pairs table."""
        slices = np.searchsorted(self._bounds, places, side="right")
        rewritten_too = (
            drafts.select(pl.any_horizontal(pl.col("cut", "row_uid", "rejected_at").is_not_null()))
            .to_series()
            .to_numpy()
        )
        for side, whole in (("chosen", True), ("rejected", rewritten_too)):
            # Three fields in one int64: row number, slice (10 bits), and whether the prompt is needed too (1 bit).
            self._wanted.append(distinct(drafts[f"{side}_row"].to_numpy() << WANTED_BITS | slices << 1 | whole))
        if drafts["row_uid"].null_count() < drafts.height:
            self.columns = (*_CONTENT, *SIDES)
        drafts = drafts.with_columns(pl.Series("place", places))
        if len(self._bounds) == 1:
            self._drafts.append(drafts)
            return
        assert self._folder is not None, "several slices are in files"
        by_slice = (
            (number, drafts.filter(pl.Series(slices == number)).to_arrow())
            for number in np.flatnonzero(np.bincount(slices)).tolist()
        )
        file = write_aside(self._folder, "drafts", by_slice)
        self.files += [] if file is None else [file]

    def take_wanted(self) -> Indices:
        """Return the rows whose texts are needed, sorted, with flags in the low `WANTED_BITS`; clears the list."""
        wanted = distinct(np.concatenate([np.zeros(0, np.int64), *self._wanted]))
        self._wanted = []
        twice = (wanted & 1 == 0) & (np.append(wanted[1:], -1) == wanted + 1)  # wanted both without and with its prompt
        return np.compress(~twice, wanted)

    def rows(self, tables: Sequence[Table]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the pairs table, in order, for drafts in a single slice."""
        wanted = self.take_wanted()
        texts: list[pa.Table] = []
        for number, table in enumerate(tables):
            # Table numbers are the highest bits, so the wanted rows of a table are one slice of the sorted array.
            ends = np.array([number, number + 1]) << (PLACE_BITS + WANTED_BITS)
            first, last = np.searchsorted(wanted, ends).tolist()
            own = wanted[first:last] - ends[0]
            texts += [some for _, some in fetch_texts_of(table, self.columns, own, first=number << PLACE_BITS)]
        if texts:
            yield from slice_rows(pl.concat(self._drafts), pa.concat_tables(texts), Filling())


def fetch_texts_of(
    table: Table, columns: Sequence[str], wanted: Indices, *, first: int = 0
) -> Iterator[tuple[int, pa.Table]]:
    """Scan a table, or one segment of it, up to the last text that is needed; yields (slice number, texts).

    `wanted` are sorted row positions, shifted left by `WANTED_BITS` and combined with their flags; `first` is the row
    number of the first row.
    """
    pieces: list[pa.Table] = []
    slices: list[Indices] = []
    num_bytes = 0
    for rows, own in _read_wanted(table, columns, wanted, first):
        pieces, slices, num_bytes = [*pieces, rows], [*slices, own], num_bytes + rows.nbytes
        if num_bytes >= _PIECE_BYTES:
            yield from _by_slice(pa.concat_tables(pieces), np.concatenate(slices))
            pieces, slices, num_bytes = [], [], 0
    if pieces:
        yield from _by_slice(pa.concat_tables(pieces), np.concatenate(slices))


def _read_wanted(
    table: Table, columns: Sequence[str], wanted: Indices, first: int
) -> Iterator[tuple[pa.Table, Indices]]:
    """Yield the wanted rows of each batch of a table, and the slice that needs each row."""
    places = wanted >> WANTED_BITS
    start = done = 0
    for batch in table.scan(columns=columns) if len(wanted) else ():
        stop = start + batch.num_rows
        end = int(np.searchsorted(places, stop))
        if end > done:
            taken = _take_rows(batch, places[done:end] - start, wanted[done:end] & 1)
            rows = pa.Table.from_batches([with_messages(taken)])
            rows = rows.append_column("row", int64_array(first + places[done:end]))
            yield rows, (wanted[done:end] & 2**WANTED_BITS - 1) >> 1
        start, done = stop, end
        if done == len(wanted):
            return
    if done < len(wanted):
        raise TableError(f"{table.path}: has fewer experiences than when pairs were planned: build them again")


def _by_slice(rows: pa.Table, slices: Indices) -> Iterator[tuple[int, pa.Table]]:
    """Partition rows by the slice that needs them."""
    for number in np.flatnonzero(np.bincount(slices)).tolist():
        own = np.flatnonzero(slices == number)
        yield number, rows.take(int64_array(own)) if len(own) < len(slices) else rows


def _take_rows(batch: pa.RecordBatch, places: Indices, whole: Indices) -> pa.RecordBatch:
    """Take rows of a batch; prompt and tools are null for rows whose flag in `whole` is 0."""
    if len(places) == batch.num_rows and whole.all() and (np.diff(places) > 0).all():
        return batch
    rows = int64_array(places)
    prompts = pc.if_else(pa.array(whole != 0), rows, pa.scalar(None, pa.int64()))
    columns = [batch.column(name).take(prompts if name in _OF_CHOSEN else rows) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def num_slices(tables: Sequence[Table], num_rows: int, *, memory_megabytes: int) -> int:
    """Return the number of slices for the texts of `num_rows` rows, so that half of the memory holds one slice."""
    size = total = 0
    for footer in footers_of([part for table in tables for part in table.parts()]):
        columns = [footer.schema.names.index(name) for name in (*_CONTENT, *SIDES)]
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        size += sum(group.column(column).total_uncompressed_size for group in groups for column in columns)
        total += footer.num_rows
    # Assumes rows of average size; the estimate is at most the size of the whole tables.
    needed = _HELD * size * min(1.0, num_rows / max(1, total))
    # 2**19: half of the memory allowed, in bytes.
    return min(MAX_SLICES, max(1, int(-(-needed // (memory_megabytes * 2**19)))))

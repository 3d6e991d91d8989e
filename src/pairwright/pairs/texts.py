"""The text of pairs, fetched once: drafts wait for it here, and become rows of the pairs table (pair_rows.py).

The experience tables are read once from beginning to end; of a row that is rejected and never chosen only
the completion is kept. Where the texts of all pairs are more than may be held, they are put aside in slices, each with
what a run of pairs needs, and pairs are written slice by slice.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import TableError
from pairwright.pairs.candidates import Indices, distinct
from pairwright.pairs.pair_rows import SIDES, slice_rows
from pairwright.pairs.rewriting import with_messages
from pairwright.pairs.row_groups import Filling, int64_array
from pairwright.pairs.rows import PLACE_BITS
from pairwright.pairs.spill import Spill
from pairwright.places import Place
from pairwright.places.parquet import footers_of
from pairwright.store.table import Table

MAX_SLICES = 1024
_CONTENT = (
    "uid", "prompt", "tools", "completion", "prompt_text", "response_text", "num_prompt_messages",
    "num_completion_messages", "num_tokens", "truncate_status",
)  # fmt: skip
_OF_CHOSEN = ("prompt", "tools", "prompt_text")  # what a pair copies from its chosen row alone
_PIECE_BYTES = 8 * 2**20  # of texts that are parted into slices together
_HELD = 3  # what texts take while they are held and copied, as a multiple of their size
WANTED_BITS = 11  # of a wanted row: the slice that needs it, and in the last bit whether all of it is needed


class PairTexts:
    """Drafts that are kept, on their way to becoming rows: first all of them are added, then the rows are read."""

    def __init__(self, num_drafts: int, num_slices: int, folder: Place | None) -> None:
        folder = None if num_slices == 1 else folder
        self.drafts = Spill(folder, "drafts", kind=pl.DataFrame)
        self._texts = Spill(folder, "texts", kind=pa.Table)
        self._bounds = np.linspace(0, num_drafts, num_slices + 1).astype(np.int64)[1:]
        self._wanted: list[Indices] = []
        self.columns: tuple[str, ...] = _CONTENT

    def add(self, drafts: pl.DataFrame, places: Indices) -> None:
        """Take drafts that will be written at these places."""
        slices = np.searchsorted(self._bounds, places, side="right")
        rewritten_too = (
            drafts.select(pl.any_horizontal(pl.col("cut", "row_uid", "rejected_at").is_not_null()))
            .to_series()
            .to_numpy()
        )
        for side, whole in (("chosen", True), ("rejected", rewritten_too)):
            self._wanted.append(distinct(drafts[f"{side}_row"].to_numpy() << WANTED_BITS | slices << 1 | whole))
        if drafts["row_uid"].null_count() < drafts.height:
            self.columns = (*_CONTENT, *SIDES)
        drafts = drafts.with_columns(pl.Series("place", places))
        for number in np.flatnonzero(np.bincount(slices)).tolist():
            self.drafts.add(number, drafts if len(self._bounds) == 1 else drafts.filter(pl.Series(slices == number)))

    @property
    def num_slices(self) -> int:
        return len(self._bounds)

    def take_wanted(self) -> Indices:
        """The rows whose texts are needed, with what `WANTED_BITS` says of them; only once."""
        wanted = distinct(np.concatenate([np.zeros(0, np.int64), *self._wanted]))
        self._wanted = []
        twice = (wanted & 1 == 0) & (np.append(wanted[1:], -1) == wanted + 1)  # once in part, and once all of it
        return np.compress(~twice, wanted)

    def rows(self, tables: Sequence[Table]) -> Iterator[pa.RecordBatch]:
        """Batches of the pairs table, in the order of their places."""
        wanted = self.take_wanted()
        for number, table in enumerate(tables):
            ends = np.array([number, number + 1]) << (PLACE_BITS + WANTED_BITS)
            first, last = np.searchsorted(wanted, ends).tolist()
            for some, texts in fetched(table, self.columns, wanted[first:last] - ends[0], first=number << PLACE_BITS):
                self._texts.add(some, texts)
        del wanted
        filling = Filling()
        for number in range(self.num_slices):
            drafts = self.drafts.take(number)
            if drafts is not None:
                texts_of_slice = self._texts.take(number)
                assert texts_of_slice is not None, "pairs have texts"
                yield from slice_rows(drafts, texts_of_slice, filling)


def fetched(table: Table, columns: Sequence[str], wanted: Indices, *, first: int = 0) -> Iterator[tuple[int, pa.Table]]:
    """Read a table up to the last text that is needed; each comes for the slices that need it.

    `wanted` are places in the table with what `WANTED_BITS` says of them, `first` is the number of the first row.
    """
    pieces: list[pa.Table] = []
    slices: list[Indices] = []
    num_bytes = 0
    for found, own in _found(table, columns, wanted, first):
        pieces, slices, num_bytes = [*pieces, found], [*slices, own], num_bytes + found.nbytes
        if num_bytes >= _PIECE_BYTES:
            yield from _by_slice(pa.concat_tables(pieces), np.concatenate(slices))
            pieces, slices, num_bytes = [], [], 0
    if pieces:
        yield from _by_slice(pa.concat_tables(pieces), np.concatenate(slices))


def _found(table: Table, columns: Sequence[str], wanted: Indices, first: int) -> Iterator[tuple[pa.Table, Indices]]:
    """The wanted rows of a table, batch by batch, and the slices that need them."""
    places = wanted >> WANTED_BITS
    start = done = 0
    for batch in table.scan(columns=columns) if len(wanted) else ():
        stop = start + batch.num_rows
        end = int(np.searchsorted(places, stop))
        if end > done:
            taken = _taken(batch, places[done:end] - start, wanted[done:end] & 1)
            found = pa.Table.from_batches([with_messages(taken)])
            found = found.append_column("row", int64_array(first + places[done:end]))
            yield found, (wanted[done:end] & 2**WANTED_BITS - 1) >> 1
        start, done = stop, end
        if done == len(wanted):
            return
    if done < len(wanted):
        raise TableError(f"{table.path}: has fewer experiences than when pairs were planned: build them again")


def _by_slice(rows: pa.Table, slices: Indices) -> Iterator[tuple[int, pa.Table]]:
    """Rows parted by the slices that need them."""
    for number in np.flatnonzero(np.bincount(slices)).tolist():
        own = np.flatnonzero(slices == number)
        yield number, rows.take(int64_array(own)) if len(own) < len(slices) else rows


def _taken(batch: pa.RecordBatch, places: Indices, whole: Indices) -> pa.RecordBatch:
    """Some rows of a batch; of those that are not wanted as a whole, the prompt is left out."""
    if len(places) == batch.num_rows and whole.all() and (np.diff(places) > 0).all():
        return batch
    rows = int64_array(places)
    prompts = pc.if_else(pa.array(whole != 0), rows, pa.scalar(None, pa.int64()))
    columns = [batch.column(name).take(prompts if name in _OF_CHOSEN else rows) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def num_slices(tables: Sequence[Table], num_rows: int, *, memory_megabytes: int) -> int:
    """In how many slices the texts of so many rows of the tables are written."""
    size = total = 0
    for found in footers_of([part for table in tables for part in table.parts()]):
        columns = [found.schema.names.index(name) for name in (*_CONTENT, *SIDES)]
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        size += sum(group.column(column).total_uncompressed_size for group in groups for column in columns)
        total += found.num_rows
    needed = _HELD * size * min(1.0, num_rows / max(1, total))
    return min(MAX_SLICES, max(1, int(-(-needed // (memory_megabytes * 2**19)))))

"""The text of pairs, fetched once and copied: drafts become rows of the pairs table.

Prompts, tools and completions are JSON text in the experience table and stay that; only a trajectory that is cut, the
sides of a given preference, and plain text are written anew (rewriting.py). A batch has each text once, and says which
row has which. The experience tables are read once from beginning to end. Where the texts of all pairs are more than
may be held, they are put aside in slices, each with what a run of pairs needs, and pairs are written slice by slice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.errors import TableError
from pairwright.pairs.candidates import Indices
from pairwright.pairs.identity import hex_digits, pair_keys, words_of
from pairwright.pairs.rewriting import rewritten, with_messages
from pairwright.pairs.row_groups import first_uses, index_array
from pairwright.pairs.rows import PLACE_BITS
from pairwright.pairs.spill import Spill
from pairwright.pairs.table import PAIR_SCHEMA
from pairwright.places import Place
from pairwright.places.parquet import footers_of
from pairwright.store.table import Table

MAX_SLICES = 1024
_CONTENT = ("uid", "prompt", "tools", "completion", "prompt_text", "response_text")
_GIVEN = ("chosen", "rejected")
_ROWS = 16_384
_HELD = 3  # what texts take while they are held and copied, as a multiple of their size
SLICE_BITS = 10


class PairTexts:
    """Drafts that are kept, on their way to becoming rows: first all of them are added, then the rows are read."""

    def __init__(self, num_drafts: int, num_slices: int, folder: Place | None) -> None:
        folder = None if num_slices == 1 else folder
        self.drafts = Spill(folder, "drafts", kind=pl.DataFrame)
        self._texts = Spill(folder, "texts", kind=pa.Table)
        self._bounds = np.linspace(0, num_drafts, num_slices + 1).astype(np.int64)[1:]
        self._wanted: list[Indices] = []  # rows, and the slices that need them in the last bits
        self.columns: tuple[str, ...] = _CONTENT

    def add(self, drafts: pl.DataFrame, places: Indices) -> None:
        """Take drafts that will be written at these places."""
        slices = np.searchsorted(self._bounds, places, side="right")
        for side in ("chosen_row", "rejected_row"):
            self._wanted.append(np.unique(drafts[side].to_numpy() << SLICE_BITS | slices))
        if drafts["row_uid"].null_count() < drafts.height:
            self.columns = (*_CONTENT, *_GIVEN)
        drafts = drafts.with_columns(pl.Series("place", places))
        for number in np.unique(slices).tolist():
            self.drafts.add(number, drafts if len(self._bounds) == 1 else drafts.filter(pl.Series(slices == number)))

    @property
    def num_slices(self) -> int:
        return len(self._bounds)

    def take_wanted(self) -> Indices:
        """The rows whose texts are needed, with the slices that need them in the last bits; only once."""
        wanted = np.unique(np.concatenate([np.zeros(0, np.int64), *self._wanted]))
        self._wanted = []
        return wanted

    def rows(self, tables: Sequence[Table]) -> Iterator[pa.RecordBatch]:
        """Batches of the pairs table, in the order of their places."""
        wanted = self.take_wanted()
        for number, table in enumerate(tables):
            ends = np.array([number, number + 1]) << (PLACE_BITS + SLICE_BITS)
            first, last = np.searchsorted(wanted, ends).tolist()
            for some, texts in fetched(table, self.columns, wanted[first:last] - ends[0], first=number << PLACE_BITS):
                self._texts.add(some, texts)
        for number in range(self.num_slices):
            drafts = self.drafts.take(number)
            if drafts is not None:
                texts_of_slice = self._texts.take(number)
                assert texts_of_slice is not None, "pairs have texts"
                yield from slice_rows(drafts, texts_of_slice)


def fetched(table: Table, columns: Sequence[str], wanted: Indices, *, first: int = 0) -> Iterator[tuple[int, pa.Table]]:
    """Read a table up to the last text that is needed; each comes for the slices that need it.

    `wanted` are places in the table with slices in the last bits, `first` is the number of the first row.
    """
    places, slices = wanted >> SLICE_BITS, wanted & (2**SLICE_BITS - 1)
    start = done = 0
    for batch in table.scan(columns=columns) if len(wanted) else ():
        stop = start + batch.num_rows
        end = int(np.searchsorted(places, stop))
        if end > done:
            if end - done < batch.num_rows or len(np.unique(places[done:end])) < batch.num_rows:
                batch = batch.take(int64_array(places[done:end] - start))
            found = pa.Table.from_batches([with_messages(batch)])
            found = found.append_column("row", int64_array(first + places[done:end]))
            for some in np.unique(slices[done:end]).tolist():
                own = np.flatnonzero(slices[done:end] == some)
                yield some, found.take(int64_array(own)) if len(own) < end - done else found
        start, done = stop, end
        if done == len(wanted):
            return
    if done < len(wanted):
        raise TableError(f"{table.path}: has fewer experiences than when pairs were planned: build them again")


def slice_rows(drafts: pl.DataFrame, texts: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows of a slice, from its drafts and their texts."""
    copies = drafts["cut"].null_count() == drafts["row_uid"].null_count() == drafts.height
    yield from _batches(drafts if drafts["place"].is_sorted() else drafts.sort("place"), _texts(texts, copies=copies))


def num_slices(tables: Sequence[Table], num_rows: int, *, memory_megabytes: int) -> int:
    """In how many slices the texts of so many rows of the tables are written."""
    size = total = 0
    for found in footers_of([part for table in tables for part in table.parts()]):
        columns = [found.schema.names.index(name) for name in (*_CONTENT, *_GIVEN)]
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        size += sum(group.column(column).total_uncompressed_size for group in groups for column in columns)
        total += found.num_rows
    needed = _HELD * size * min(1.0, num_rows / max(1, total))
    return min(MAX_SLICES, max(1, int(-(-needed // (memory_megabytes * 2**19)))))


def int64_array(values: Indices) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


@dataclass(frozen=True)
class _Texts:
    """The texts of a slice by row. Where pairs copy them, `codes` says which rows have equal ones, -1 for none, and
    `firsts` the first row of each code."""

    rows: Indices
    columns: pa.Table
    series: dict[str, pl.Series]
    codes: dict[str, Indices]
    firsts: dict[str, Indices]


def _texts(fetched: pa.Table, *, copies: bool) -> _Texts:
    series = {name: pl.Series(fetched[name]) for name in ("prompt", "tools", "completion") if copies}
    codes, firsts = {}, {}
    for name, texts in series.items():
        codes[name], firsts[name] = _encoded(texts)
    return _Texts(fetched["row"].to_numpy(), fetched, series, codes, firsts)


def _batches(drafts: pl.DataFrame, texts: _Texts) -> Iterator[pa.RecordBatch]:
    """The rows of drafts whose texts are all there."""
    uids = pl.Series(texts.columns["uid"])
    for start in range(0, drafts.height, _ROWS):
        some = drafts.slice(start, _ROWS)
        chosen, rejected = (np.searchsorted(texts.rows, some[f"{side}_row"].to_numpy()) for side in _GIVEN)
        for side, found in ((some["chosen_uid"], chosen), (some["rejected_uid"], rejected)):
            if not uids.gather(found).equals(some["row_uid"] if some["row_uid"].null_count() == 0 else side):
                raise TableError("the experience table has changed while pairs were built: build them again")
        if texts.series:
            made = {name: _shared(texts, name, chosen) for name in ("prompt", "tools")}
            made |= {"chosen": _shared(texts, "completion", chosen), "rejected": _shared(texts, "completion", rejected)}
            made |= _identities(some, texts.columns, chosen, rejected)
        else:
            made = rewritten(some, texts.columns, chosen, rejected)
        columns = [made[name] if name in made else _column(some, name) for name in PAIR_SCHEMA.names]
        yield pa.RecordBatch.from_arrays(columns, names=PAIR_SCHEMA.names)


def _column(drafts: pl.DataFrame, name: str) -> pa.Array:
    return drafts[name].to_arrow()


def _encoded(texts: pl.Series) -> tuple[Indices, Indices]:
    """Which rows have equal texts, by number, -1 for none; and the first row of each number."""
    if texts.null_count() == len(texts):
        return np.full(len(texts), -1), np.zeros(0, np.int64)
    _, firsts, codes = np.unique(texts.hash().to_numpy(), return_index=True, return_inverse=True)
    again = np.flatnonzero(firsts[codes] != np.arange(len(codes)))
    if not texts.gather(again).eq_missing(texts.gather(firsts[codes[again]])).all():  # two texts with one hash
        found = pl.DataFrame({"text": texts}).with_row_index("row").group_by("text", maintain_order=True).agg("row")
        firsts = found["row"].list.first().to_numpy()
        codes = np.empty(len(texts), np.int64)
        codes[found["row"].list.explode().to_numpy()] = np.repeat(np.arange(found.height), found["row"].list.len())
    return np.where(texts.is_null().to_numpy(), -1, codes), firsts


def _shared(texts: _Texts, name: str, rows: Indices) -> pa.DictionaryArray:
    """The texts of some rows, equal ones once."""
    used, places = first_uses(texts.codes[name][rows], len(texts.firsts[name]))
    values = texts.series[name].gather(texts.firsts[name][used]).to_arrow()
    return pa.DictionaryArray.from_arrays(index_array(places), values)


def _identities(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """The ids of pairs, and the hashes of their prompts."""
    keys, prompts = drafts["key"], drafts["prompt_hash"]
    if any(texts[name].null_count < texts.num_rows for name in ("prompt_hash", "completion_hash")):
        # plain text is written as a message, whose hash is another
        sides = (("prompt", prompts, chosen), ("completion", drafts["chosen_hash"], chosen),
                 ("completion", drafts["rejected_hash"], rejected))  # fmt: skip
        hashes = [
            pl.select(pl.coalesce(pl.Series(texts[f"{name}_hash"].take(int64_array(rows))), hashes)).to_series()
            for name, hashes, rows in sides
        ]
        keys, prompts = hex_digits(pair_keys(*map(words_of, hashes))), hashes[0]
    return {"id": keys.to_arrow(), "prompt_hash": prompts.to_arrow()}

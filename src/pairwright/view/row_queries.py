"""Queries over rows in Parquet files and journals: filter, search, sort, and read rows by their number.

A row number is the position of a row in the table; every frame has it as the column `row`. A query reads the columns
that it names, one batch of a row group at a time, and returns row numbers (8 bytes per row); texts are read only for
the rows of a page. So memory is bounded by a few batches and a few selections, regardless of the size of the table.
"""

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pairwright.errors import ConfigError, PairwrightError, TableError
from pairwright.store.conditions import parse_where

R = TypeVar("R")
Numbers = npt.NDArray[np.int64]
BATCH_ROWS = 8192
_BATCH_OF_FEW = 256  # rows that are read together to get single rows
_READ_BYTES = 2**20  # of a compressed column at a time; the default is a whole column of a row group
MAX_PAGE = 500
MAX_TEXT = 1000  # characters of a search
SNIPPET = 60  # characters of text on either side of a match
MAX_CLAUSES = 20
MAX_CLAUSE_CHARACTERS = 2000
_SELECTIONS = 8  # results that are cached for each table
_THREADS = max(1, min(4, os.cpu_count() or 1))


# Set when the client of the current request has disconnected; scans check it between batches.
abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


class Abandoned(PairwrightError):
    """Raised to end a scan whose client has disconnected."""


@dataclass(frozen=True)
class Derived:
    """A column that is computed from others: its type, the columns it needs, and the function of a frame with these.
    `prepare` is called once before a scan, on the thread of the query, to load data that the function needs."""

    type: pa.DataType
    needs: tuple[str, ...]
    compute: Callable[[pl.DataFrame], pl.Series]
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Query:
    """Selects rows that satisfy all conditions and contain a text, sorted by a column ("-name" is descending)."""

    where: tuple[str, ...] = ()
    text: str = ""
    sort: str = ""


@dataclass(frozen=True)
class Piece:
    """A row group of a Parquet file, or the rows of a journal."""

    path: Path
    start: int  # number of its first row
    num_rows: int
    group: int = 0
    rows: pa.Table | None = None


@dataclass(frozen=True)
class Snapshot:
    """The pieces of a table at one moment; equal signatures have equal rows."""

    pieces: list[Piece]
    signature: tuple[Any, ...] = ()

    @property
    def num_rows(self) -> int:
        return self.pieces[-1].start + self.pieces[-1].num_rows if self.pieces else 0


class RowQueries:
    """Queries over the files of one table.

    Args:
        name: The table, for error messages.
        list_files: Returns its files in row order; called for every query, since tables grow.
        schema: Its columns.
        text: The columns that are searched, which contain JSON text.
        read_journal: Reads a file that is not Parquet.
        always: Conditions on all queries.
    """

    def __init__(
        self,
        name: str,
        list_files: Callable[[], Sequence[Path]],
        schema: pa.Schema,
        *,
        text: Sequence[str] = (),
        read_journal: Callable[[Path], pa.Table] | None = None,
        always: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.schema = schema
        self.derived: dict[str, Derived] = {}
        self._list_files = list_files
        self._text = tuple(text)
        self._read_journal = read_journal
        self._always = always
        self._lock = threading.RLock()  # one scan at a time, to bound memory
        self._snapshot = Snapshot([])
        self._selections: OrderedDict[tuple[Any, ...], Numbers] = OrderedDict()

    @property
    def columns(self) -> pa.Schema:
        """The columns that conditions may name: those of the files, and the derived ones."""
        return pa.schema([*self.schema, *((name, column.type) for name, column in self.derived.items())])

    def snapshot(self) -> Snapshot:
        """List the current row groups of the table; footers and journals are read when a file has changed."""
        with self._lock:
            files = [(path, path.stat()) for path in self._list_files()]
            signature = tuple((path.name, stat.st_mtime_ns, stat.st_size) for path, stat in files)
            if signature != self._snapshot.signature:
                self._snapshot = Snapshot(self._list_pieces([path for path, _ in files]), signature)
            return self._snapshot

    def _list_pieces(self, paths: Sequence[Path]) -> list[Piece]:
        pieces: list[Piece] = []
        start = 0
        for path in paths:
            groups: list[tuple[int, pa.Table | None]]
            if path.suffix != ".parquet" and self._read_journal is not None:
                journal = self._read_journal(path)
                groups = [(journal.num_rows, journal)]
            else:
                try:
                    footer = pq.read_metadata(path)
                except (OSError, pa.ArrowException) as error:
                    raise TableError(f"{path}: cannot be read: {error}") from error
                groups = [(footer.row_group(number).num_rows, None) for number in range(footer.num_row_groups)]
            for group, (num_rows, rows) in enumerate(groups):
                pieces.append(Piece(path, start, num_rows, group, rows))
                start += num_rows
        return [piece for piece in pieces if piece.num_rows]

    def scan(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        function: Callable[[pl.DataFrame], R],
        numbers: Numbers | None = None,
    ) -> list[R]:
        """Apply a function to the rows, batch by batch on a few threads; returns results in row order. Its frames have
        these columns, also derived ones, and `row`; `numbers` are the only rows to read, in table order."""
        ordered = None if numbers is None else np.sort(numbers)
        is_abandoned = abandoned.get()  # read here: the threads below have their own context
        self._prepare(columns)

        def read(piece: Piece) -> list[R]:
            frames = self._frames(piece, columns, ordered, BATCH_ROWS, is_abandoned)
            return [function(frame) for frame in frames]

        with self._lock, ThreadPoolExecutor(_THREADS) as threads:
            try:
                return [result for results in threads.map(read, snapshot.pieces) for result in results]
            finally:
                pa.default_memory_pool().release_unused()

    def collect(
        self,
        snapshot: Snapshot,
        columns: Sequence[str],
        where: pl.Expr | None = None,
        numbers: Numbers | None = None,
    ) -> pl.DataFrame:
        """Return `row` and these columns of all rows, or of those that satisfy a condition, in table order."""
        needed = list(dict.fromkeys([*columns, *([] if where is None else where.meta.root_names())]))

        def keep(frame: pl.DataFrame) -> pl.DataFrame:
            return (frame if where is None else frame.filter(where)).select("row", *columns)

        fields = [("row", pa.int64()), *((name, self.columns.field(name).type) for name in columns)]
        empty = pl.DataFrame(pa.Table.from_batches([], schema=pa.schema(fields)))
        return pl.concat([empty, *self.scan(snapshot, needed, keep, numbers)], how="vertical_relaxed")

    def select(self, query: Query, snapshot: Snapshot) -> Numbers | None:
        """Return the row numbers of a query in its order; None means all rows in table order."""
        if not (self._always or query.where or query.text or query.sort):
            return None
        key = (snapshot.signature, query)
        with self._lock:
            if key not in self._selections:
                self._selections[key] = self._search(query, snapshot)
            self._selections.move_to_end(key)
            if len(self._selections) > _SELECTIONS:
                self._selections.popitem(last=False)
            return self._selections[key]

    def _search(self, query: Query, snapshot: Snapshot) -> Numbers:
        if len(query.where) > MAX_CLAUSES or any(len(clause) > MAX_CLAUSE_CHARACTERS for clause in query.where):
            raise ConfigError(f"where: at most {MAX_CLAUSES} conditions of {MAX_CLAUSE_CHARACTERS:,} characters")
        conditions = [parse_where(clause, self.columns, option="where") for clause in (*self._always, *query.where)]
        name = query.sort.removeprefix("-")
        if name and name not in self.columns.names:
            raise ConfigError(f"sort: no column {name!r}; there are {', '.join(self.columns.names)}")
        if query.text:
            conditions.append(self._contains(query.text))
        rows = self.collect(snapshot, [name] if name else [], pl.all_horizontal(conditions) if conditions else None)
        numbers: Numbers = rows["row"].to_numpy()
        if not name:
            return numbers
        # Only keys are sorted, not (number, key): half the memory. Equal keys stay in table order.
        order = rows.select(
            pl.arg_sort_by(name, descending=query.sort.startswith("-"), nulls_last=True, maintain_order=True)
        )
        del rows
        return np.asarray(numbers[order.to_series().to_numpy()], np.int64)

    def _contains(self, text: str) -> pl.Expr:
        """Return the condition that a text column contains a text, ignoring case."""
        if len(text) > MAX_TEXT:
            raise ConfigError(f"search: at most {MAX_TEXT:,} characters, got {len(text):,}")
        # Columns are JSON, so the text is searched in its JSON form, with escaped quotes and line breaks.
        pattern = "(?i)" + pl.escape_regex(json.dumps(text, ensure_ascii=False)[1:-1])
        parts = [pl.col(name).str.contains(pattern).fill_null(False) for name in self._text]
        return pl.any_horizontal(parts)

    def take(self, numbers: Sequence[int], columns: Sequence[str], snapshot: Snapshot) -> list[dict[str, Any]]:
        return self.take_frame(numbers, columns, snapshot).to_dicts()

    def take_frame(self, numbers: Sequence[int], columns: Sequence[str], snapshot: Snapshot) -> pl.DataFrame:
        """Read rows by number as a frame, in the order of the numbers."""
        wanted = np.asarray(numbers, np.int64)
        ordered = np.unique(wanted)
        if len(ordered) and not 0 <= ordered[0] <= ordered[-1] < snapshot.num_rows:
            raise TableError(f"{self.name}: no row {ordered[-1]:,}; there are {snapshot.num_rows:,}")
        self._prepare(columns)
        frames = [
            frame.select(columns)
            for piece in snapshot.pieces
            for frame in self._frames(piece, columns, ordered, _BATCH_OF_FEW)
        ]
        if not frames:
            return pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))
        return pl.concat(frames, how="vertical_relaxed")[np.searchsorted(ordered, wanted)]

    def batch_at(self, number: int, snapshot: Snapshot) -> pa.RecordBatch:
        row = self.take_frame([number], self.schema.names, snapshot).to_arrow().cast(self.schema)
        (batch,) = row.to_batches()
        return batch

    def read_page(self, query: Query, offset: int, limit: int, columns: Sequence[str]) -> dict[str, Any]:
        """Return a page of a list: rows with some columns, the number of matches, and of all rows."""
        snapshot = self.snapshot()
        numbers = self.select(query, snapshot)
        whole = self.select(Query(), snapshot)
        num_matches = snapshot.num_rows if numbers is None else len(numbers)
        stop = min(offset + limit, num_matches)
        page = list(range(offset, stop)) if numbers is None else numbers[offset:stop].tolist()
        rows = self.take(page, columns, snapshot) if page else []
        return {
            "total": snapshot.num_rows if whole is None else len(whole),
            "matches": num_matches,
            "offset": offset,
            "rows": [{"row": number, **row} for number, row in zip(page, rows, strict=True)],
            "columns": self.columns.names,
        }

    def snippets(self, numbers: Sequence[int], text: str, snapshot: Snapshot) -> list[dict[str, str] | None]:
        """Return the surroundings of a text in each of these rows; None for a row that does not contain it."""
        self._contains(text)  # raises for a text that is too long
        rows = self.take(numbers, self._text, snapshot)
        return [next(filter(None, (_snippet(value, name, text) for name, value in row.items())), None) for row in rows]

    def find(self, column: str, value: str, snapshot: Snapshot, near: int | None = None) -> int:
        """Return the number of the row with this value in a column, trying `near` first; raises TableError if none."""
        if near is not None and 0 <= near < snapshot.num_rows:
            (row,) = self.take([near], [column], snapshot)
            if row[column] == value:
                return near
        rows = self.collect(snapshot, [], pl.col(column) == value)
        if not rows.height:
            raise TableError(f"{self.name}: no row with {column} {value!r:.200}; it may have been deleted since")
        return int(rows["row"][0])

    def _prepare(self, columns: Sequence[str]) -> None:
        for name in columns:
            if name in self.derived:
                self.derived[name].prepare()

    def _frames(
        self,
        piece: Piece,
        columns: Sequence[str],
        numbers: Numbers | None,
        num_rows: int,
        is_abandoned: threading.Event | None = None,
    ) -> Iterator[pl.DataFrame]:
        """Yield frames of a piece with these columns and `row`; with `numbers` (ascending), only these rows."""
        lists = [self.derived[name].needs if name in self.derived else (name,) for name in columns]
        # A query without columns still counts rows: use the first column, which is small.
        needed = list(dict.fromkeys(name for names in lists for name in names)) or [self.schema.names[0]]
        if numbers is not None:
            numbers = numbers[slice(*np.searchsorted(numbers, (piece.start, piece.start + piece.num_rows)))]
            if not len(numbers):
                return
        first = piece.start
        for batch in self._batches(piece, needed, num_rows):
            if is_abandoned is not None and is_abandoned.is_set():
                raise Abandoned("the client has gone: the search was ended")
            own = np.arange(first, first + batch.num_rows)
            if numbers is not None:
                own = numbers[slice(*np.searchsorted(numbers, (first, first + batch.num_rows)))]
            if len(own):
                frame = pl.DataFrame(batch)
                if len(own) < batch.num_rows:  # selected first, so that derived columns are computed for few rows
                    frame = frame[own - first]
                frame = frame.with_columns(row=pl.Series(own, dtype=pl.Int64))
                extra = [self.derived[name].compute(frame).alias(name) for name in columns if name in self.derived]
                yield frame.with_columns(extra)
            first += batch.num_rows
            if numbers is not None and first > numbers[-1]:
                return

    def _batches(self, piece: Piece, columns: Sequence[str], num_rows: int) -> Iterator[pa.RecordBatch]:
        """Read a piece in batches. Columns that an older file lacks are null."""
        if piece.rows is not None:
            yield from piece.rows.select(columns).to_batches(max_chunksize=num_rows)
            return
        try:
            with pq.ParquetFile(piece.path, pre_buffer=False, buffer_size=_READ_BYTES) as file:
                present = set(file.schema_arrow.names)
                names = [name for name in columns if name in present] or [file.schema_arrow.names[0]]
                for batch in file.iter_batches(num_rows, row_groups=[piece.group], columns=names, use_threads=False):
                    nulls = {name: self.schema.field(name).type for name in columns if name not in present}
                    arrays = [
                        pa.nulls(batch.num_rows, nulls[name]) if name in nulls else batch.column(name)
                        for name in columns
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, names=list(columns))
        except (OSError, pa.ArrowException) as error:
            raise TableError(f"{piece.path}: cannot be read, the table has changed: open the list again") from error


def _snippet(value: str | None, column: str, text: str) -> dict[str, str] | None:
    """Return the surroundings of a text in a cell: in one of its strings, or else in the stored JSON."""
    if value is None:
        return None
    try:
        strings = list(_strings(json.loads(value)))
    except ValueError:
        strings = []
    stored = json.dumps(text, ensure_ascii=False)[1:-1]
    for string, wanted in [*((string, text) for string in strings), (value, stored)]:
        match = re.search(re.escape(wanted), string, re.IGNORECASE)
        if match:
            start, end = match.span()
            before, after = string[max(0, start - SNIPPET) : start], string[end : end + SNIPPET]
            more = "…" if start > SNIPPET else "", "…" if len(string) > end + SNIPPET else ""
            return {"column": column, "before": more[0] + before, "match": match[0], "after": after + more[1]}
    return None


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, except object keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)

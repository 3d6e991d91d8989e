"""Base class of `Table` and `Pairs`: rows on disk as a Python sequence, as data frames, and as HTML in notebooks.

Rows are read on access and not cached in memory.
"""

import html
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pyarrow as pa

from pairwright.errors import PairwrightError

if TYPE_CHECKING:  # loaded when a data frame is requested
    import pandas
    import polars as pl

R = TypeVar("R")
Chunk = tuple[int, Callable[[], Iterable[pa.RecordBatch]]]  # (number of rows, function that reads them)
_NUM_SHOWN = 5
_MAX_CHARACTERS = 80


class RowAccess(ABC, Generic[R]):
    """A sequence of rows, implemented on top of record batches."""

    _shown_columns: tuple[str, ...] = ()

    @abstractmethod
    def _chunks(self) -> Iterator[Chunk]:
        """Yield the rows in chunks: number of rows, and a function that reads the batches."""

    @abstractmethod
    def _decode(self, batch: pa.RecordBatch) -> Sequence[R]:
        """Decode the records of a batch."""

    @abstractmethod
    def scan(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows as record batches; reads only `columns`, or all columns if None."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""

    def __len__(self) -> int:
        return sum(num_rows for num_rows, _ in self._chunks())

    def __iter__(self) -> Iterator[R]:
        for _, read in self._chunks():
            for batch in read():
                yield from self._decode(batch)

    @overload
    def __getitem__(self, key: int) -> R: ...
    @overload
    def __getitem__(self, key: slice) -> list[R]: ...
    def __getitem__(self, key: int | slice) -> R | list[R]:
        if isinstance(key, slice):
            return self._take(range(len(self))[key])
        if not isinstance(key, int):
            raise TypeError(f"expected a number or a slice, got {key!r}; conditions are for filter('...')")
        num_rows = len(self)
        try:
            position = range(num_rows)[key]
        except IndexError:
            raise IndexError(f"{key}: there are {num_rows:,} rows") from None
        return self._take(range(position, position + 1))[0]

    def _take(self, positions: range) -> list[R]:
        """Read the records at these positions; other chunks are not read."""
        if not positions:
            return []
        # A range may be descending: rows are read in ascending order and picked by position at the end.
        low, high = min(positions[0], positions[-1]), max(positions[0], positions[-1])
        records: list[R] = []  # from `low` to `high`
        start = 0
        for num_rows, read in self._chunks():
            if start + num_rows > low:  # skip chunks before the first position
                for batch in read():
                    # Rows of the batch in [low, high], relative to the batch.
                    first, last = max(low - start, 0), min(high + 1 - start, batch.num_rows)
                    if first < last:
                        records += self._decode(batch.slice(first, last - first))
                    start += batch.num_rows
                    if start > high:
                        return [records[position - low] for position in positions]
            else:
                start += num_rows
        return [records[position - low] for position in positions]

    def to_polars(self) -> "pl.DataFrame":
        """All rows as a Polars data frame. Messages, tools and info are JSON text."""
        import polars as pl

        return pl.DataFrame(self.to_arrow())

    def to_pandas(self) -> "pandas.DataFrame":
        """All rows as a pandas data frame. Messages, tools and info are JSON text."""
        try:
            import pandas  # noqa: F401 - pyarrow's own error does not name the package to install
        except ImportError:
            raise PairwrightError("pandas is not installed: pip install pandas, or use to_polars()") from None
        return self.to_arrow().to_pandas()

    def _repr_html_(self) -> str:
        """Return the first rows as an HTML table, with the most informative columns."""
        rows: list[dict[str, Any]] = []
        for batch in self.scan(columns=self._shown_columns):
            rows += batch.slice(0, _NUM_SHOWN - len(rows)).to_pylist()
            if len(rows) == _NUM_SHOWN:
                break
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._shown_columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in self._shown_columns) + "</tr>" for row in rows
        )
        return (
            f"<p><code>{html.escape(repr(self))}</code>, {len(self):,} rows</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def join_conditions(first: str | None, second: str) -> str:
    """Combine two conditions with AND; both were parsed, so their parentheses are balanced."""
    return second if first is None else f"({first}) AND ({second})"


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return html.escape(text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}...")

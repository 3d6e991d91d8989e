"""The experience table: a folder with crash-safe appends.

    DIR/table.json               marker with the version of the table
    DIR/<id>.parquet             a part: rows with the columns of store/columns.py
    DIR/<id>.journal             appends that are not in a part yet (store/journal.py)
    DIR/<id>.merged              while small parts are merged: the parts that <id>.parquet replaces (store/parts.py)

An append is durable when it returns. A journal is compacted into the part with the same id with one rename, then
deleted; if both exist, the part is used. After a crash, every acknowledged record is present exactly once; readers
never see partial writes, and any number of processes can append. Ids sort by time, so rows are in append order.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from pairwright.errors import TableError
from pairwright.paths import Place, is_address, list_names, local_path, place, publish
from pairwright.paths.parquet_files import footers_of, parquet_batches, scan_parquet
from pairwright.records.experience import Experience
from pairwright.store.arrow import from_batch, import_datasets, to_batch
from pairwright.store.codec import payload_pieces
from pairwright.store.columns import NARROW_NAMES, SCHEMA
from pairwright.store.journal import SUFFIX, JournalWriter, new_segment_id, read_journal, try_lock
from pairwright.store.parts import ROWS_PER_GROUP, lock_parts, merge_small_parts, put_hidden_part, replaced_parts
from pairwright.store.row_access import Chunk, RowAccess, join_conditions
from pairwright.store.score_log import read_one_score
from pairwright.store.table_marker import check_table

if TYPE_CHECKING:  # loaded by queries; not needed for writing and importing
    import datasets
    import polars as pl

    from pairwright import HubSummary, Pairs, ScoreSummary

_NARROW = frozenset(NARROW_NAMES)
# Rows per batch of narrow columns, which are smaller than whole rows.
_NARROW_ROWS = 8 * ROWS_PER_GROUP
_GROUP_COLUMNS = {"task": ("tid",), "run": ("tid", "run"), "step": ("tid", "step")}


class Table(RowAccess[Experience]):
    """Experiences in a folder: a sequence of `Experience`, read on access.

    Args:
        path: The folder, or an address such as s3://bucket/runs/first/experience.
        create: Create a missing folder; with False, a missing folder is an error.
        journal_bytes: Maximum size of a journal in bytes.
        only: Read only this segment, one of `segments()`.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> import pairwright as pw
    >>> with pw.Table(folder) as table:
    ...     table.append([pw.Experience(kind="single_turn", prompt=[{"role": "user", "content": "hi"}], reward=1.0)])
    1
    >>> table = pw.Table(folder)
    >>> len(table), table[0].reward, len(table.filter("reward < 0.5"))
    (1, 1.0, 0)
    """

    _shown_columns = ("task", "run", "step", "kind", "reward", "prompt", "completion")

    def __init__(
        self,
        path: str | os.PathLike[str] | Place,
        *,
        create: bool = True,
        journal_bytes: int = 64 * 2**20,
        only: str | None = None,
    ) -> None:
        self.path: Place = place(path)
        self._only = only
        self._where: str | None = None  # the condition of a view made by `filter`
        self._score: str | None = None  # the stored score used as reward by a view of `with_score`
        self._journal_bytes = journal_bytes
        self._journal: JournalWriter | None = None
        self._lock = threading.Lock()
        self._num_rows: dict[str, int] = {}  # cached from the footers of remote parts
        if only is None:
            check_table(self.path, create=create)

    def append(self, experiences: Iterable[Experience], *, durable: bool = True) -> int:
        """Append experiences; on return they survive `kill -9` and power loss. Returns their number."""
        rows = list(experiences)
        if not rows:
            return 0
        # Not compressed: appends must be fast, and a journal soon becomes a compressed part.
        pieces = payload_pieces(rows, compress=False)
        with self._lock:
            if self._journal is not None and self._journal.pid != os.getpid():
                self._close_journal()  # a forked child starts its own journal; the parent keeps its lock
            if self._journal is None:
                self._journal = JournalWriter(self.folder)
            self._journal.write(pieces, durable=durable)
            if self._journal.size >= self._journal_bytes:
                self._close_journal()  # the next append begins a new one; `close` converts them to parts
        return len(rows)

    def write_part(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Add rows in bulk as one new part, atomically. Returns the number of rows."""
        return self._write_part(new_segment_id(), batches)

    def add_hidden_part(self, hidden: Place) -> None:
        """Publish a part that this or another process wrote under a hidden name in this folder."""
        publish(hidden, self.path / f"{new_segment_id()}.parquet")

    def filter(self, where: str) -> "Table":
        """Return a view of the rows that satisfy a condition, e.g. "reward > 0.5 AND task != 'x'".

        Appending to the view appends to the table.
        """
        from pairwright.store.conditions import parse_where

        parse_where(where, option="filter")
        view = self._view()
        view._where = join_conditions(self._where, where)
        return view

    def with_score(self, name: str | None) -> "Table":
        """Return a view with a stored score as reward; runs without that score are unscored.

        Args:
            name: A scorer, for its overall score, or a criterion such as "judge.helpful"; None: the recorded reward.
        """
        if name is not None:
            read_one_score(self.path, name)  # raises if there is no such score
        view = self._view()
        view._score = name
        return view

    def score(self, scorer: Any, **options: Any) -> "ScoreSummary":
        """Score the runs for `with_score` and `pairs(score=...)`; for the arguments see `pairwright.score`."""
        import pairwright  # scorers are downstream of the table: loaded on first use

        return pairwright.score(self, scorer, **options)

    def _view(self) -> "Table":
        """Return a table that reads the same files, with the same condition and score."""
        view = Table(self.path, create=False, journal_bytes=self._journal_bytes, only=self._only)
        view._where, view._score = self._where, self._score
        return view

    @property
    def where(self) -> str | None:
        """The condition of a view made by `filter`; None for the whole table."""
        return self._where

    @property
    def score_name(self) -> str | None:
        """The stored score used as reward by a view of `with_score`; None: the recorded reward."""
        return self._score

    def pairs(self, output: str | os.PathLike[str] | None = None, **options: Any) -> "Pairs":
        """Build preference pairs of these experiences; for the arguments see `pairwright.make_pairs`."""
        import pairwright  # pairs are downstream of the table: loaded on first use

        return pairwright.make_pairs(self, output, **options)

    def push(self, repo: str, **options: Any) -> "HubSummary":
        """Push the table to a dataset repository of the Hub, with a card; `pairwright.pull` gets it back.

        Args:
            repo: Id of the repository, such as "me/runs"; it is created if it is missing.
            **options: `private`, `revision`, `license`, `token`: see docs/how-to/share.md.
        """
        if self.where is not None:
            raise TableError("push: a filtered table; write its rows first: pairwright experience filter DIR -o OUT")
        import pairwright  # export/ is downstream of the table: loaded on first use

        return pairwright.push(self.path, repo, **options)

    def to_arrow(self) -> pa.Table:
        return pa.Table.from_batches(self.scan(), schema=SCHEMA)

    def to_hf(self) -> "datasets.Dataset":
        """Return all rows as a Hugging Face dataset; `pairwright.from_dataset` converts it back to experiences."""
        return import_datasets().Dataset(self.to_arrow())

    def records(self, where: "pl.Expr | None" = None) -> Iterator[Experience]:
        """Yield the experiences, reading a few thousand at a time."""
        for batch in self.scan(where=where):
            yield from from_batch(batch)

    def scan(self, where: "pl.Expr | None" = None, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows as record batches, with one batch in memory. `where` is a Polars expression over the columns."""
        where = self._with_filter(where)
        wanted = list(SCHEMA.names if columns is None else columns)
        unknown = [name for name in wanted if name not in SCHEMA.names]
        if unknown:
            raise TableError(f"no column {unknown[0]!r}: the table has {', '.join(SCHEMA.names)}")
        if _NARROW.issuperset(wanted) and not is_address(self.path):  # small columns: read by Polars on all cores
            if not self._segments():
                return
            frame = self._whole() if where is None else self._whole().filter(where)
            schema = pa.schema([SCHEMA.field(name) for name in wanted])
            for frame_batch in frame.select(wanted).collect_batches(chunk_size=_NARROW_ROWS):
                yield from frame_batch.to_arrow().cast(schema).to_batches()
            return
        needed = wanted if where is None else list(dict.fromkeys([*wanted, *where.meta.root_names()]))
        for batch in self._batches(needed) if self._score is None else self._scored_batches(needed):
            if where is not None:
                import polars as pl

                batch = batch.filter(pl.DataFrame(batch).select(where.fill_null(False)).to_series().to_arrow())
            if batch.num_rows:
                yield batch.select(wanted)

    def lazy(self) -> "pl.LazyFrame":
        """The table as a Polars LazyFrame, for queries on narrow columns."""
        where = self._with_filter(None)
        return self._whole() if where is None else self._whole().filter(where)

    def _with_filter(self, where: "pl.Expr | None") -> "pl.Expr | None":
        """Combine a condition with the view's condition."""
        if self._where is None:
            return where
        from pairwright.store.conditions import parse_where

        own = parse_where(self._where, option="filter")
        return own if where is None else own & where

    def _chunks(self) -> Iterator[Chunk]:
        for name in self.segments():
            part = self.part(name)
            yield part.count(), part.scan

    def _decode(self, batch: pa.RecordBatch) -> list[Experience]:
        return from_batch(batch)

    def _whole(self) -> "pl.LazyFrame":
        """Return all segments as one LazyFrame, without the condition of the view."""
        import polars as pl

        empty = pl.DataFrame(pa.Table.from_batches([], schema=SCHEMA))  # `empty_table` would load pandas
        frames = [empty.lazy()]
        for segment in self._segments():
            if segment.suffix == ".parquet":
                frames.append(scan_parquet(segment, SCHEMA))
            elif batches := list(self._journal_batches(segment, SCHEMA.names)):
                frames.append(pl.DataFrame(pa.Table.from_batches(batches)).lazy())
        whole = pl.concat(frames)
        return whole if self._score is None else self._with_scores(whole)

    def _with_scores(self, rows: "pl.LazyFrame") -> "pl.LazyFrame":
        """Replace the rewards of rows by the stored score."""
        import polars as pl

        assert self._score is not None, "a view with a score"
        scores = read_one_score(self.path, self._score).rename({"score": "stored"}).lazy()
        scored = rows.join(scores, on="uid", how="left", maintain_order="left").with_columns(reward="stored")
        return scored.with_columns(reward_unscored=pl.lit(None, pl.String)).drop("stored")

    def _scored_batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches with the stored score as reward."""
        import polars as pl

        own = [name for name in ("uid", "reward", "reward_unscored") if name not in columns]
        for batch in self._batches([*columns, *own]):
            narrow = pl.DataFrame(batch.select(["uid", "reward", "reward_unscored"])).lazy()
            scored = self._with_scores(narrow).collect()
            for name in ("reward", "reward_unscored"):
                place = batch.schema.get_field_index(name)
                batch = batch.set_column(
                    place, SCHEMA.field(name), scored[name].to_arrow().cast(SCHEMA.field(name).type)
                )
            yield batch.select(columns)

    def segments(self) -> list[str]:
        """Return the ids of all parts and journals; the table is the concatenation of their rows."""
        return [segment.stem for segment in self._segments()]

    def count(self, where: "pl.Expr | None" = None) -> int:
        """Return the number of rows, or of those that satisfy `where`."""
        if where is None and self._where is None and is_address(self.path):
            return self._count_parts(self._segments())
        import polars as pl

        frame = self.lazy() if where is None else self.lazy().filter(where)
        return int(frame.select(pl.len()).collect().item())

    def part(self, name: str) -> "Table":
        """Return one of the segments as a table."""
        part = Table(self.path, create=False, only=name)
        # The cache of footers is shared, so that parts of one table read each footer once.
        part._num_rows, part._where, part._score = self._num_rows, self._where, self._score
        return part

    def parts(self) -> list[Place]:
        """Return the Parquet files."""
        return [segment for segment in self._segments() if segment.suffix == ".parquet"]

    def head(self, num_rows: int = 5, where: "pl.Expr | None" = None) -> list[Experience]:
        """Return the first experiences."""
        records: list[Experience] = []
        for batch in self.scan(where=where):
            records += from_batch(batch.slice(0, num_rows - len(records)))
            if len(records) >= num_rows:
                break
        return records

    def group_by(self, by: Literal["task", "run", "step"]) -> "pl.LazyFrame":
        """Return one row per group: its key, the ids and rewards of its experiences, and their number."""
        if by not in _GROUP_COLUMNS:
            raise TableError(f"group_by: got {by!r}, expected 'task', 'run' or 'step'")
        import polars as pl

        return (
            self.lazy()
            .select("uid", "tid", "run", "step", "reward", "prompt_hash")
            .group_by(_GROUP_COLUMNS[by], maintain_order=True)
            .agg(pl.col("uid", "reward", "prompt_hash"), num_experiences=pl.len())
        )

    def delete(self, where: "pl.Expr") -> int:
        """Delete the rows that satisfy `where`, replacing each part with one rename. Returns their number."""
        if self._score is not None:
            raise TableError("delete: a view with a stored score as its reward; delete from the table itself")
        own = self._with_filter(None)
        where = where if own is None else own & where
        self.compact()
        folder = local_path(self.path)
        # Rewritten parts must not be merged meanwhile.
        with nullcontext() if folder is None else lock_parts(folder, wait=True):
            num_deleted = 0
            parts = self.parts()
            for part, footer in zip(parts, list(footers_of(parts)), strict=True):
                # Rows for which the condition is null are kept.
                remaining = scan_parquet(part, SCHEMA).filter(where.not_() | where.is_null()).collect().to_arrow()
                if remaining.num_rows < footer.num_rows:
                    self._write_part(part.stem, remaining.cast(SCHEMA).to_batches(max_chunksize=ROWS_PER_GROUP))
                num_deleted += footer.num_rows - int(remaining.num_rows)
            return num_deleted

    def compact(self) -> int:
        """Convert journals of this object, and of writers that have ended, to parts; merge parts if many are small.

        Returns the number of converted journals.
        """
        with self._lock:
            self._close_journal()
        folder = local_path(self.path)  # remote tables have no appends
        if folder is None:
            return 0
        num_journals = sum(map(self._compact, sorted(folder.glob(f"*{SUFFIX}"))))
        merge_small_parts(folder)
        return num_journals

    def close(self) -> None:
        """Convert appends to parts. Without it nothing is lost, but scans of journals are slower."""
        self.compact()

    @property
    def folder(self) -> Path:
        """The folder of a local table, the only kind that can be appended to."""
        folder = local_path(self.path)
        if folder is None:
            raise TableError(
                f"{self.path}: appends need a journal, which an address does not support: append to a local folder and "
                "copy its files there, or add them with `pairwright import`"
            )
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "" if self._where is None else f".filter({self._where!r})"
        score = "" if self._score is None else f".with_score({self._score!r})"
        return f"Table({str(self.path)!r}){score}{where}"

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _compact(self, path: Path) -> bool:
        """Convert a journal to a part, unless its writer is still running; returns whether the journal is gone."""
        fd = try_lock(path)
        if fd is None:
            return False
        try:
            # Under the lock: another process may have compacted the journal, or died between the rename and the unlink.
            part = path.with_suffix(".parquet")
            if path.exists() and not part.exists():
                with open(fd, "rb", closefd=False) as file:
                    appends = read_journal(file.read(), path.name)
                    self._write_part(path.stem, (to_batch(experiences) for experiences in appends))
            path.unlink(missing_ok=True)
            return True
        finally:
            os.close(fd)

    def _write_part(self, segment_id: str, batches: Iterable[pa.RecordBatch]) -> int:
        part = self.path / f"{segment_id}.parquet"
        hidden, num_rows = put_hidden_part(self.path, batches)
        # An existing part is replaced even if no rows remain (`delete`); a new part without rows is not kept.
        if num_rows or part.exists():
            publish(hidden, part)
            self._num_rows.pop(part.name, None)
        else:
            hidden.unlink()
        return num_rows

    def _segments(self) -> list[Place]:
        """Return the parts and the journals that are not parts yet, in order."""
        if is_address(self.path) and self._only is not None:
            part = self.path / f"{self._only}.parquet"
            return [part if part.exists() else part.with_suffix(SUFFIX)]
        names = list_names(self.path)
        # A listing during a compaction may miss both files: the folder is listed until two listings agree.
        while not is_address(self.path) and names != (again := list_names(self.path)):
            names = again
        # Between rename and unlink both files exist: the part is used.
        done = {name.removesuffix(".parquet") for name in names if name.endswith(".parquet")}
        replaced = replaced_parts(self.path, names)
        return [
            self.path / name
            for name in names
            if name not in replaced
            if name.endswith(".parquet") or (name.endswith(SUFFIX) and name.removesuffix(SUFFIX) not in done)
            if self._only is None or Path(name).stem == self._only
        ]

    def _count_parts(self, segments: list[Place]) -> int:
        """Count the rows of remote segments; Parquet footers are read concurrently and cached."""
        unknown = [part for part in segments if part.suffix == ".parquet" and part.name not in self._num_rows]
        for part, footer in zip(unknown, footers_of(unknown), strict=True):
            self._num_rows[part.name] = int(footer.num_rows)
        journals = [segment for segment in segments if segment.suffix == SUFFIX]
        appended = sum(int(batch.num_rows) for journal in journals for batch in self._journal_batches(journal, ["uid"]))
        return appended + sum(self._num_rows[part.name] for part in segments if part not in journals)

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for segment in self._segments():
            read = self._journal_batches if segment.suffix == SUFFIX else self._part_batches
            yield from read(segment, columns)

    def _part_batches(self, part: Place, columns: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            yield from parquet_batches(part, columns, ROWS_PER_GROUP)
        except FileNotFoundError:
            raise TableError(f"{part}: gone since the table was listed, merged into another part: run again") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise TableError(f"{part}: damaged, or not a part of this table: {error}") from error

    def _journal_batches(self, journal: Place, columns: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            data = journal.read_bytes()
        except FileNotFoundError:  # became a part since the listing
            part = journal.with_suffix(".parquet")
            if part.exists():
                yield from self._part_batches(part, columns)
            return
        for experiences in read_journal(data, journal.name):
            yield to_batch(experiences).select(columns)

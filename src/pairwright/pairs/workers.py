"""A build in pieces that fit in memory: tasks are functions that exchange rows through files.

    segment of a table ─► its rows, by bucket                 part_rows
    bucket             ─► the plans of its partitions         plan_bucket
    segment of a table ─► its texts, by slice                 fetch_texts
    slice              ─► its rows of the pairs table         make_rows

An engine runs the tasks, on workers or one after the other in this process. They run the same code as a build in
memory (pairs/partition.py, pairs/texts.py), so the result is the same.
Files are in the build folder under random names: a task that is retried after its worker was lost does not overwrite
the files of its first attempt.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.engines import Engine
from pairwright.pairs.buckets import MAX_BUCKETS, bucket_of, find_bounds, split_rows
from pairwright.pairs.candidates.candidates import PLACE_BITS, Floats, Indices, narrower_keys, row_batches
from pairwright.pairs.fetch_texts import WANTED_BITS, PairTexts, fetch_texts_of
from pairwright.pairs.memory_pool import plain_memory
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition import PartitionPlan, candidate_rewards, plan_partition
from pairwright.pairs.row_groups import Filling
from pairwright.pairs.selection import narrow_columns
from pairwright.pairs.shuffle_files import Aside, Stored, read_aside, store_rows, write_aside
from pairwright.pairs.texts import slice_rows
from pairwright.paths import Place
from pairwright.store.table import Table

Progress = Callable[[int, int], None]
R = TypeVar("R")
Numbered = tuple[int, list[Aside]]  # a bucket or a slice, and the files that have rows of it
SliceTask = tuple[int, list[Aside], list[Aside]]  # a slice, and the files that have drafts and texts of it
PIECE_MEGABYTES = 256  # megabytes of texts in a slice while a worker builds it
_BUCKETS_PER_WORKER = 4  # several, so that a slow bucket does not leave other workers idle


@dataclass(frozen=True)
class Segment:
    """One segment of a table; `first` is the row number of its first row among all tables."""

    folder: Place
    name: str
    first: int
    num_rows: int
    score: str | None = None

    def table(self) -> Table:
        table = Table(self.folder, create=False, only=self.name)
        return table if self.score is None else table.with_score(self.score)


@dataclass(frozen=True)
class BucketPlan:
    """The plan of one partition; its drafts and experiences are stored."""

    plan: PartitionPlan
    narrow: pl.DataFrame
    num_drafts: int
    drafts: Stored
    experiences: Stored

    @classmethod
    def of(cls, plan: PartitionPlan, options: PairOptions, folder: Place | None) -> "BucketPlan":
        """Store the drafts and experiences of a plan: in files of a folder, so that only the small rest is sent back
        by a worker, or in memory."""
        return cls(
            plan=replace(plan, drafts=plan.drafts.clear(), experiences=plan.experiences.clear()),
            narrow=narrow_columns(plan.drafts, options),
            num_drafts=plan.drafts.height,
            drafts=store_rows(folder, plan.drafts),
            experiences=store_rows(folder, plan.experiences),
        )


def segments_of(tables: Sequence[Table]) -> list[Segment]:
    """List the segments of all tables, in order."""
    segments = []
    for number, table in enumerate(tables):
        first = number << PLACE_BITS
        for name in table.segments():
            segment = Segment(table.path, name, first, table.part(name).count(), table.score_name)
            segments.append(segment)
            first += segment.num_rows
    return segments


def shuffle_rows(
    tables: Sequence[Table], options: PairOptions, folder: Place, engine: Engine, progress: Progress, *, number: int
) -> list[Numbered]:
    """Shuffle the rows of tables into at least `number` buckets."""
    number = min(MAX_BUCKETS, max(number, _BUCKETS_PER_WORKER * engine.num_workers))
    part = partial(part_rows, number=number, folder=folder, where=options.where, keys=narrower_keys(options))
    segments = segments_of(tables)
    files = report_progress(engine.map(part, segments), len(segments), progress)
    return _by_number(file for file in files if file is not None)


def spread_rows(
    texts: PairTexts, tables: Sequence[Table], folder: Place, engine: Engine, progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the pairs table, in order, slice by slice."""
    wanted = texts.take_wanted()
    tasks = []
    for segment in segments_of(tables):
        ends = np.array([segment.first, segment.first + segment.num_rows]) << WANTED_BITS
        first, last = np.searchsorted(wanted, ends).tolist()
        if last > first:
            tasks.append((segment, wanted[first:last] - ends[0]))
    fetch = partial(fetch_texts, columns=texts.columns, folder=folder)
    files = list(report_progress(engine.map(fetch, tasks), len(tasks), progress))
    with_texts = dict(_by_number(files))
    slices = [(number, drafts, with_texts[number]) for number, drafts in _by_number(texts.files)]
    for batches in report_progress(engine.map(make_rows, slices), len(slices), progress):
        yield from batches


def part_rows(
    segment: Segment, *, number: int, folder: Place, where: str | None = None, keys: Sequence[str] = ()
) -> Aside | None:
    """Task: write the narrow rows of a segment to a shuffle file, partitioned into `number` buckets."""
    with plain_memory():
        return write_aside(folder, "rows", _by_bucket(segment, number, where, keys))


def _by_bucket(segment: Segment, number: int, where: str | None, keys: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    for batch in row_batches([segment.table()], where=where, keys=keys):
        # Row numbers are relative to the segment; make them unique among all tables.
        rows = batch.with_columns(pl.col("row") + segment.first)
        for (bucket,), own in rows.group_by(bucket_of(number), maintain_order=True):
            yield int(bucket), own.to_arrow()


def bucket_rewards(task: Numbered, *, options: PairOptions) -> Floats:
    """Task: return the rewards of a bucket's candidates."""
    return np.concatenate([candidate_rewards(rows, options) for rows in _partitions(task, options)])


def plan_bucket(task: Numbered, *, options: PairOptions, folder: Place) -> list[BucketPlan]:
    """Task: plan a bucket from its shuffle files; returns one plan for each partition."""
    with plain_memory():
        return [BucketPlan.of(plan_partition(rows, options), options, folder) for rows in _partitions(task, options)]


def fetch_texts(task: tuple[Segment, Indices], *, columns: tuple[str, ...], folder: Place) -> Aside:
    """Task: write the texts of a segment that pairs need to a shuffle file, partitioned by slice."""
    segment, wanted = task
    with plain_memory():
        spilled = write_aside(folder, "texts", fetch_texts_of(segment.table(), columns, wanted, first=segment.first))
    assert spilled is not None, "some text was wanted"
    return spilled


def make_rows(task: SliceTask) -> list[pa.RecordBatch]:
    """Task: return the rows of the pairs table for one slice."""
    number, *files = task
    with plain_memory():
        drafts, texts = (read_aside(some, number) for some in files)
        assert drafts is not None, "a slice has drafts"
        assert texts is not None, "drafts have texts"
        # A new Filling: `write_pairs` regroups the rows, independent of batches.
        return list(slice_rows(pl.DataFrame(drafts), texts, Filling()))


def _partitions(task: Numbered, options: PairOptions) -> Iterator[pl.DataFrame]:
    bucket, files = task
    rows = pl.DataFrame(read_aside(files, bucket))
    return split_rows(rows, find_bounds(rows, options))


def _by_number(files: Iterable[Aside]) -> list[Numbered]:
    """Return each partition number with the shuffle files that have rows of it, sorted by number."""
    by_number: dict[int, list[Aside]] = {}
    for aside in files:
        for number in set(aside.numbers):
            by_number.setdefault(number, []).append(aside)
    return sorted(by_number.items())


def report_progress(results: Iterable[R], total: int, progress: Progress) -> Iterator[R]:
    for done, result in enumerate(results, 1):
        progress(done, total)
        yield result

"""Plan a build: plan and spill each partition, then select among the drafts of all partitions."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from pairwright.engines import Engine
from pairwright.pairs.candidates.gaps import Floats, Scale, add_scales
from pairwright.pairs.funnel import Funnel
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition import PartitionPlan, candidate_rewards, plan_partition
from pairwright.pairs.selection import Selection, narrow_columns, select_drafts
from pairwright.pairs.spill import Buckets, Spill, is_parted, num_buckets
from pairwright.pairs.strategies.strategies import with_thresholds
from pairwright.pairs.strategies.votes import Votes, read_votes, with_ratings
from pairwright.pairs.why_empty import Clues
from pairwright.pairs.workers import BucketPlan, Progress, SpreadRows
from pairwright.paths import Place
from pairwright.store.table import Table


@dataclass(frozen=True)
class Plan:
    """Spilled drafts and experiences of all partitions, and which drafts are kept.

    tables    the experience tables, followed by the tables of teachers
    sizes     number of drafts in each partition
    crowded   marks of the tasks and steps that have candidates at more than one prompt
    """

    tables: tuple[Table, ...]
    options: PairOptions
    strategy: str
    drafts: Spill[pl.DataFrame]
    experiences: Spill[pl.DataFrame]
    sizes: list[int]
    funnel: Funnel
    scales: dict[str, Scale]
    clues: Clues
    crowded: pl.DataFrame
    selection: Selection

    def partitions(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield drafts and experiences of each partition and delete their files; can be iterated only once."""
        for number in range(len(self.sizes)):
            # `take` also deletes the file, so that disk use falls while pairs are written.
            drafts, experiences = self.drafts.take(number), self.experiences.take(number)
            assert drafts is not None, "every partition was put aside"
            assert experiences is not None, "every partition was put aside"
            yield drafts, experiences


@dataclass
class _Gathered:
    """Accumulated results of the partitions planned so far."""

    drafts: Spill[pl.DataFrame]
    experiences: Spill[pl.DataFrame]
    sizes: list[int] = field(default_factory=list)
    funnel: Funnel = field(default_factory=Funnel)
    scales: dict[str, Scale] = field(default_factory=dict)
    clues: Clues = field(default_factory=Clues)
    # The narrow columns of all drafts stay in memory; whole drafts are spilled.
    narrow: list[pl.DataFrame] = field(default_factory=list)
    steps: list[pl.DataFrame] = field(default_factory=list)
    tasks: list[pl.DataFrame] = field(default_factory=list)

    def add(self, plan: PartitionPlan, options: PairOptions) -> None:
        number = len(self.sizes)
        self.drafts.add(number, plan.drafts)
        self.experiences.add(number, plan.experiences)
        self._count(plan, narrow_columns(plan.drafts, options), plan.drafts.height)

    def adopt(self, found: BucketPlan) -> None:
        """Add a partition that a worker has planned and spilled to files."""
        number = len(self.sizes)
        self.drafts.adopt(number, found.drafts)
        self.experiences.adopt(number, found.experiences)
        self._count(found.plan, found.narrow, found.num_drafts)

    def _count(self, plan: PartitionPlan, narrow: pl.DataFrame, num_drafts: int) -> None:
        self.sizes.append(num_drafts)
        self.funnel.add(plan.funnel)
        self.scales = add_scales(self.scales, plan.scales)
        self.clues = self.clues.merged(plan.clues)
        self.narrow.append(narrow)
        self.steps.append(plan.steps)
        self.tasks.append(plan.tasks)


def plan_pairs(
    tables: Sequence[Table],
    options: PairOptions,
    folder: Place | None = None,
    *,
    engine: Engine | None = None,
    progress: Progress = lambda done, total: None,
) -> Plan:
    """Decide which pairs to build.

    Args:
        tables: Experience tables.
        options: Options of the build.
        folder: Folder for spill files; None keeps everything in memory.
        engine: Its workers plan the partitions, if there is a folder and the strategy allows partitions.
        progress: Called with the number of tasks done and in total.
    """
    everything = (*tables, *(Table(path, create=False) for path in options.teachers))
    votes: Votes | None = None
    # Workers hand rows over in files, so they need a folder; empty tables would leave no bucket to plan.
    if engine is not None and folder is not None and is_parted(options) and any(table.count() for table in tables):
        spread = SpreadRows(tables, options, folder, engine, progress)
        options_with_thresholds = _resolve_thresholds(spread.rewards(options), options)
        gathered = _Gathered(Spill(folder, "plans", kind=pl.DataFrame), Spill(folder, "experiences", kind=pl.DataFrame))
        for planned in spread.plans(options_with_thresholds):
            gathered.adopt(planned)
    else:
        gathered, options_with_thresholds, votes = _plan_in_process(tables, everything, options, folder)
    steps = pl.concat(gathered.steps)
    selection = select_drafts(
        pl.concat(gathered.narrow), pl.concat(gathered.tasks), options_with_thresholds, everything
    )
    return Plan(
        tables=everything,
        options=options,
        strategy=options.strategy if votes is None else "votes",
        drafts=gathered.drafts,
        experiences=gathered.experiences,
        sizes=gathered.sizes,
        funnel=gathered.funnel,
        scales=gathered.scales,
        clues=gathered.clues,
        selection=selection,
        # `steps` has one mark for each group: a mark that occurs twice has groups at different prompts.
        crowded=steps.filter(steps["mark"].is_duplicated()).unique(),
    )


def _plan_in_process(
    tables: Sequence[Table], everything: Sequence[Table], options: PairOptions, folder: Place | None
) -> tuple[_Gathered, PairOptions, Votes | None]:
    """Plan all partitions in this process; returns the plans, the options with thresholds as rewards, and the votes.

    The votes are None unless they are pairwise.
    """
    number = 1 if folder is None else num_buckets(tables, options)
    buckets = Buckets(tables, options, number, folder)
    rows: Iterable[pl.DataFrame] = buckets
    votes: Votes | None = None
    if options.votes is not None:
        # With votes, rows are never split (`is_parted`), so there is exactly one piece.
        (only,) = rows
        votes = read_votes(Path(options.votes), only["uid"])
        # Ratings replace the rewards, and any strategy goes on from there; pairwise votes replace the strategy.
        if votes.ratings is not None:
            rows, votes = [with_ratings(only, votes.ratings)], None
    # A pass of its own where quantiles need all rewards; `Buckets` can be iterated again for the plans.
    resolved = _resolve_thresholds((candidate_rewards(some, options) for some in rows), options)
    aside = None if buckets.fits else folder
    gathered = _Gathered(Spill(aside, "plans", kind=pl.DataFrame), Spill(aside, "experiences", kind=pl.DataFrame))
    for some in rows:
        gathered.add(plan_partition(some, resolved, tables=everything, votes=votes), resolved)
    return gathered, resolved, votes


def _resolve_thresholds(candidates: Iterable[Floats], options: PairOptions) -> PairOptions:
    """Replace quantile thresholds in the options by rewards; `candidates` is consumed only if there are quantiles."""
    if options.strategy != "stratified":
        return options
    rewards: Floats = np.zeros(0)
    if options.high.is_quantile or options.low.is_quantile:
        rewards = np.concatenate([rewards, *candidates])
    return with_thresholds(options, rewards)

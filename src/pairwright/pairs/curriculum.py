"""Curriculum: tasks ranked by mean reward, easy or hard first, in growing stages."""

import math
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pairwright.errors import TableError
from pairwright.pairs.candidates.candidates import Indices
from pairwright.pairs.funnel import FILE_NAME, read_funnel
from pairwright.pairs.options import PairOptions


@dataclass(frozen=True)
class Curriculum:
    """The order in which to train on pairs: table order, or by the stage of each pair if `stages` is set.

    A new stage begins every `interval` epochs.
    """

    name: str
    stages: Indices | None = None
    interval: int = 1

    def as_json(self) -> dict[str, Any]:
        stages = None if self.stages is None else self.stages.tolist()
        return {"name": self.name, "stages": stages, "interval": self.interval}


def read_curriculum(pairs: Path, column: pl.Series) -> Curriculum | None:
    """Read the curriculum of a pairs table from the funnel.json beside it; None if it has none.

    `column` is the column `curriculum_stage` of the pairs. Raises TableError if pairs have stages but funnel.json does
    not have the interval at which they begin.
    """
    folder = pairs if pairs.is_dir() else pairs.parent
    funnel = read_funnel(folder) if (folder / FILE_NAME).is_file() else {}
    options = funnel.get("options") or {}
    name, interval = options.get("curriculum", "none"), options.get("curriculum_interval")
    if column.null_count() == len(column):
        return None if name == "none" else Curriculum(name)
    if type(interval) is not int or interval < 1:
        raise TableError(
            f"{folder / FILE_NAME}: {'no curriculum_interval in it' if funnel else 'no such file'}, but the pairs have "
            f"curriculum stages: it says when each begins. Build them again with: pairwright pairs EXPERIENCE "
            f"-o {folder} --curriculum easy-first --curriculum-start 0.3"
        )
    numbers = column.fill_null(0).to_numpy().astype(np.int64)
    if len(numbers) and numbers.min() < 0:
        raise TableError(f"{folder}: curriculum_stage: got {numbers.min()}, expected a stage of at least 0")
    return Curriculum(name, numbers, interval)


def stage_of_epoch(epoch: int, interval: int) -> int:
    """Return the highest stage trained in an epoch; epochs count from 0.

    >>> [stage_of_epoch(epoch, 2) for epoch in range(5)]
    [0, 0, 1, 1, 2]
    """
    return epoch // interval


def task_ranks(tasks: pl.DataFrame, options: PairOptions) -> pl.DataFrame:
    """Rank tasks by the mean reward of their candidates: easy (high) first, or hard first; ties by task id."""
    # Sorted first: the mean of floats depends on the order of summation.
    sums = tasks.sort("tid", "reward").group_by("tid", maintain_order=True).agg(pl.col("reward").mean())
    order = sums.sort("reward", "tid", descending=[options.curriculum == "easy-first", False])
    return order.select("tid").with_row_index("rank")


def stages(ranks: Indices, options: PairOptions) -> Indices:
    """Return the curriculum stage of each draft, given the rank of its task."""
    assert options.curriculum_start is not None
    # `places`: the rank of each draft's task among the tasks that still have drafts.
    distinct, places = np.unique(ranks, return_inverse=True)
    # bounds[s] is how many of these tasks are in stages 0 to s.
    bounds = [max(1, math.ceil(share * len(distinct))) for share in shares(options)]
    return np.searchsorted(np.array(bounds), places, side="right").astype(np.int64)


def shares(options: PairOptions) -> list[Decimal]:
    """Return the cumulative share of tasks up to each stage, as decimals: 0.1 + 0.2 is 0.3.

    >>> shares(PairOptions(curriculum="easy-first", curriculum_start=0.3, curriculum_increment=0.4))
    [Decimal('0.3'), Decimal('0.7'), Decimal('1')]
    """
    steps = [Decimal(repr(options.curriculum_start))]
    while steps[-1] < 1:
        steps.append(min(Decimal(1), steps[-1] + Decimal(repr(options.curriculum_increment))))
    return steps

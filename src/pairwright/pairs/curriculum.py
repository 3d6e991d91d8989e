"""The curriculum: tasks from easy to hard (or hard to easy), by their mean reward, and in stages that grow.

Stage 0 has the first share of the tasks (`curriculum_start`), and every later stage adds another
(`curriculum_increment`) until all are in. A pair has the stage of its task in the column `curriculum_stage`; a trainer
takes the pairs whose stage is at most that of its epoch, which grows by one every `curriculum_interval` epochs:

    start 0.3, increment 0.2, interval 5:   epochs 0-4 have 30% of the tasks, 5-9 50%, 10-14 70%, 15-19 90%, then all

Shares are of the tasks that have pairs, and round up; there is always one task in the first.
"""

import math
from decimal import Decimal

import numpy as np
import polars as pl

from pairwright.pairs.candidates import Indices
from pairwright.pairs.options import PairOptions


def stage_of_epoch(epoch: int, interval: int) -> int:
    """The largest stage that is trained in an epoch; epochs count from 0.

    >>> [stage_of_epoch(epoch, 2) for epoch in range(5)]
    [0, 0, 1, 1, 2]
    """
    return epoch // interval


def task_ranks(tasks: pl.DataFrame, options: PairOptions) -> pl.DataFrame:
    """The tasks that have candidates, by their mean reward: easy (high) first, or hard first; ties by id."""
    sums = tasks.sort("tid", "reward").group_by("tid", maintain_order=True).agg(pl.col("reward").mean())
    order = sums.sort("reward", "tid", descending=[options.curriculum == "easy-first", False])
    return order.select("tid").with_row_index("rank")


def stages(ranks: Indices, options: PairOptions) -> Indices:
    """The stage of each rank among tasks that are numbered from 0."""
    assert options.curriculum_start is not None
    distinct, places = np.unique(ranks, return_inverse=True)
    bounds = [max(1, math.ceil(share * len(distinct))) for share in shares(options)]
    return np.searchsorted(np.array(bounds), places, side="right").astype(np.int64)


def shares(options: PairOptions) -> list[Decimal]:
    """What part of the tasks is in each stage, as decimals: 0.1 + 0.2 is 0.3.

    >>> shares(PairOptions(curriculum="easy-first", curriculum_start=0.3, curriculum_increment=0.4))
    [Decimal('0.3'), Decimal('0.7'), Decimal('1')]
    """
    found = [Decimal(repr(options.curriculum_start))]
    while found[-1] < 1:
        found.append(min(Decimal(1), found[-1] + Decimal(repr(options.curriculum_increment))))
    return found

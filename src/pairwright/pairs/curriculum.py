"""The curriculum: tasks from easy to hard (or hard to easy), by their mean reward, and in stages that grow.

Stage 0 has the first share of the tasks (`curriculum_start`), and every later stage adds another
(`curriculum_increment`) until all are in. A pair has the stage of its task in the column `curriculum_stage`; a trainer
takes the pairs whose stage is at most that of its epoch, which grows by one every `curriculum_interval` epochs:

    start 0.3, increment 0.2, interval 5:   epochs 0-4 have 30% of the tasks, 5-9 50%, 10-14 70%, 15-19 90%, then all

A curriculum without stages is the order of the table, which a trainer keeps in every epoch.

Shares are of the tasks that have pairs, and round up; there is always one task in the first.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pairwright.errors import TableError
from pairwright.pairs.candidates import Indices
from pairwright.pairs.funnel import FILE_NAME, read_funnel
from pairwright.pairs.options import PairOptions


@dataclass(frozen=True)
class Curriculum:
    """How a trainer takes the pairs of a table: in the table's order, or by the stage of each pair (`stages`)."""

    name: str
    stages: Indices | None = None
    interval: int = 1

    def as_json(self) -> dict[str, Any]:
        stages = None if self.stages is None else self.stages.tolist()
        return {"name": self.name, "stages": stages, "interval": self.interval}


def read_curriculum(pairs: Path, column: pl.Series) -> Curriculum | None:
    """The curriculum that a pairs table was built with, as funnel.json beside it says; None where it has none.

    `column` is `curriculum_stage` of the pairs. Stages without a funnel.json are refused: nothing says when they begin.
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

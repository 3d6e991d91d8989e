"""What only all drafts together can decide: curriculum, the cap of a task, the sample, near-duplicates, length balance,
and then weights, the split and the order of writing. Everything goes by a few narrow columns of each draft.

Drafts are numbered through all partitions in their order. Each step looks at those that the steps before it left, and
decides by gap, then key, then number, so that the result does not depend on how they were parted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.errors import PairwrightError
from pairwright.pairs.balance import balance_weights, one_sided
from pairwright.pairs.candidates import Flags, Indices
from pairwright.pairs.curriculum import stages, task_ranks
from pairwright.pairs.funnel import Reason
from pairwright.pairs.gaps import Floats
from pairwright.pairs.identity import seeded, words_of
from pairwright.pairs.near import near_drafts
from pairwright.pairs.options import PairOptions
from pairwright.pairs.split import splits
from pairwright.store.table import Table

REASONS = (Reason.CURRICULUM, Reason.TASK_CAP, Reason.SAMPLED, Reason.NEAR_DUPLICATE, Reason.LENGTH)


@dataclass(frozen=True)
class Selection:
    """For every draft the number of its reason, 0 where it is kept; the rest is about those that are kept."""

    reasons: npt.NDArray[np.uint8]
    weights: Floats
    splits: pl.Series
    stages: Indices | None
    places: Indices | None
    """Where each kept draft is written, where that is not their own order."""
    differences: Floats
    """By how many characters the chosen side is longer."""


@dataclass(frozen=True)
class _Ranks:
    """The rank of each draft's task in the curriculum, and how many tasks there are."""

    of_drafts: Indices
    num_tasks: int


def narrow_columns(drafts: pl.DataFrame, options: PairOptions) -> pl.DataFrame:
    """Of drafts, only what `selected` will look at."""
    difference = pl.col("num_chosen_characters") - pl.col("num_rejected_characters")
    columns: list[pl.Expr | pl.Series | str] = ["gap", difference.cast(pl.Float64).alias("difference")]
    if options.weight == "chosen":
        columns.append("chosen_reward")
    if options.max_pairs_per_task is not None or options.validation or options.has_curriculum:
        columns.append("tid")
    if options.validation:
        columns += ["prompt_hash", "across_groups", pl.when("across_groups").then("rejected_uid").alias("rejected_uid")]
    if options.near_duplicates is not None:
        columns += [pl.col("chosen_uid").alias("near_chosen"), pl.col("rejected_uid").alias("near_rejected")]
        columns += [pl.col("chosen_at").alias("near_chosen_at"), pl.col("rejected_at").alias("near_rejected_at")]
    if options.max_pairs_per_task is not None or options.max_pairs is not None:
        words = words_of(drafts["key"])
        columns += [pl.Series("draw", seeded(options.seed, words))]
        columns += [pl.Series("key_one", words[:, 0].copy()), pl.Series("key_other", words[:, 1].copy())]
    return drafts.select(columns)


def selected(narrow: pl.DataFrame, tasks: pl.DataFrame, options: PairOptions, tables: Sequence[Table]) -> Selection:
    """Decide about all drafts, given by their narrow columns; `tasks` are the rewards of candidates by task."""
    ranks = _ranked(narrow, tasks, options)
    reasons = np.zeros(narrow.height, np.uint8)
    left = np.arange(narrow.height)
    for number, reason in enumerate(REASONS, 1):
        bad = _bad(reason, narrow if len(left) == narrow.height else narrow[left], ranks, left, options, tables)
        if bad is not None:
            reasons[left[bad]] = number
            left = left[~bad]
    kept = narrow if len(left) == narrow.height else narrow[left]
    in_order = None
    if ranks is not None and options.curriculum != "none":
        in_order = np.empty(len(left), np.int64)
        in_order[np.argsort(ranks.of_drafts[left], kind="stable")] = np.arange(len(left))
    differences = kept["difference"].to_numpy()
    return Selection(
        reasons=reasons,
        weights=_weights(kept, differences, options),
        splits=splits(kept, validation=options.validation, seed=options.seed),
        stages=None if ranks is None or options.curriculum_start is None else stages(ranks.of_drafts[left], options),
        places=in_order,
        differences=differences,
    )


def _bad(
    reason: Reason, narrow: pl.DataFrame, ranks: _Ranks | None, left: Indices, options: PairOptions,
    tables: Sequence[Table],
) -> Flags | None:  # fmt: skip
    """Which of the drafts that are left go by this reason; None where it was not asked for."""
    if not narrow.height:
        return None
    if reason is Reason.CURRICULUM and options.curriculum_share is not None and ranks is not None:
        return ranks.of_drafts[left] >= max(1, round(options.curriculum_share * ranks.num_tasks))
    if reason is Reason.TASK_CAP and options.max_pairs_per_task is not None:
        return _beyond_tasks(narrow, options.max_pairs_per_task)
    if reason is Reason.SAMPLED and options.max_pairs is not None and narrow.height > options.max_pairs:
        bad = np.ones(narrow.height, np.bool_)
        bad[np.argsort(narrow["draw"].to_numpy(), kind="stable")[: options.max_pairs]] = False
        return bad
    if reason is Reason.NEAR_DUPLICATE and options.near_duplicates is not None:
        return near_drafts(narrow, tables, options.near_duplicates)
    if reason is Reason.LENGTH and options.length_balance is not None and options.balance_by == "drop":
        return one_sided(narrow["difference"].to_numpy(), options.length_balance)
    return None


def _beyond_tasks(narrow: pl.DataFrame, most: int) -> Flags:
    """Drafts that are not among the largest gaps of their task."""
    task = narrow["tid"].cast(pl.Categorical).to_physical().to_numpy()
    keys = [narrow[name].to_numpy() for name in ("key_other", "key_one")]
    order = np.lexsort([np.arange(narrow.height), *keys, -narrow["gap"].to_numpy(), task])
    firsts = np.flatnonzero(np.diff(task[order].astype(np.int64), prepend=-1))
    rank = np.arange(len(order)) - np.repeat(firsts, np.diff(np.append(firsts, len(order))))
    bad = np.zeros(narrow.height, np.bool_)
    bad[order] = rank >= most
    return bad


def _ranked(narrow: pl.DataFrame, tasks: pl.DataFrame, options: PairOptions) -> _Ranks | None:
    if not options.has_curriculum or not narrow.height:
        return None
    ranks = task_ranks(tasks, options)
    found = narrow.select("tid").join(ranks, on="tid", how="left", maintain_order="left")["rank"]
    return _Ranks(found.fill_null(0).cast(pl.Int64).to_numpy(), ranks.height)


def _weights(kept: pl.DataFrame, differences: Floats, options: PairOptions) -> Floats:
    by_length = np.ones(kept.height)
    if options.length_balance is not None and options.balance_by == "reweight":
        by_length = balance_weights(differences, options.length_balance)
    if options.weight == "one":
        return by_length
    base = kept["gap" if options.weight == "gap" else "chosen_reward"].to_numpy()
    if len(base) and base.min() < 0:
        raise PairwrightError(
            f"weight: a chosen reward of {float(base.min())!r} cannot be a weight: "
            "use --weight gap, which is never negative"
        )
    return base * by_length

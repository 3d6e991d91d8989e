"""Selection among the drafts of all partitions, on a few narrow columns of each draft.

Drafts are dropped by curriculum, the cap of a task, sampling, near-duplicates and length balance, in this order; the
others get a weight, a split and a position in the pairs table. Draft numbers are global across
partitions. Each step sees the drafts that earlier steps kept and orders them by gap, key and number, so that the result
does not depend on the partitioning.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.errors import PairwrightError
from pairwright.pairs.candidates.candidates import Flags, Floats, Indices
from pairwright.pairs.candidates.pair_ids import seeded_draws, words_of
from pairwright.pairs.funnel import Reason
from pairwright.pairs.near_duplicates import near_drafts
from pairwright.pairs.options import PairOptions
from pairwright.records.experience import EID
from pairwright.store.table import Table

REASONS = (Reason.UNRELIABLE, Reason.CURRICULUM, Reason.TASK_CAP, Reason.SAMPLED, Reason.NEAR_DUPLICATE, Reason.LENGTH)


@dataclass(frozen=True)
class Selection:
    """The result of selection. `reasons` covers all drafts (0: kept, else 1 + index in REASONS), the rest kept ones."""

    reasons: npt.NDArray[np.uint8]
    weights: Floats
    splits: pl.Series
    places: Indices | None
    """Position of each kept draft in the pairs table; None if drafts are written in their own order."""
    differences: Floats
    """Characters of the chosen side minus those of the rejected side."""
    probabilities: Floats | None = None
    """Probability that the chosen side is the better one, by a calibrated score."""


def narrow_columns(drafts: pl.DataFrame, options: PairOptions) -> pl.DataFrame:
    """Select the columns of drafts that `select_drafts` needs."""
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
        columns += [pl.Series("draw", seeded_draws(options.seed, words))]
        columns += [pl.Series("key_one", words[:, 0].copy()), pl.Series("key_other", words[:, 1].copy())]
    return drafts.select(columns)


def select_drafts(
    narrow: pl.DataFrame,
    tasks: pl.DataFrame,
    options: PairOptions,
    tables: Sequence[Table],
    slope: float | None = None,
) -> Selection:
    """Select among the drafts of all partitions, given their `narrow_columns`.

    `tasks` (task id and reward of each candidate) are for the curriculum, `tables` are read for near-duplicates. With
    the `slope` of a calibrated score, the probability of a pair is 1 / (1 + exp(-slope · gap)).
    """
    reasons = np.zeros(narrow.height, np.uint8)
    left = np.arange(narrow.height)

    def drop(reason: Reason, bad: Flags) -> None:
        nonlocal left
        reasons[left[bad]] = 1 + REASONS.index(reason)
        left = left[~bad]

    likely: Floats | None = None
    ranks: Indices | None = None
    if slope is not None:
        likely = 1 / (1 + np.exp(-np.minimum(slope * narrow["gap"].to_numpy(), 500)))
        drop(Reason.UNRELIABLE, likely < options.min_probability)
    if options.has_curriculum and narrow.height:
        by_task = _rank_tasks(tasks, options)
        ranked = narrow.select("tid").join(by_task, on="tid", how="left", maintain_order="left")
        ranks = ranked["rank"].fill_null(0).cast(pl.Int64).to_numpy()
        if options.curriculum_share is not None:
            drop(Reason.CURRICULUM, ranks[left] >= max(1, round(options.curriculum_share * by_task.height)))
    if options.max_pairs_per_task is not None and len(left):
        drop(Reason.TASK_CAP, _beyond_tasks(narrow[left], options.max_pairs_per_task))
    if options.max_pairs is not None and len(left) > options.max_pairs:
        bad = np.ones(len(left), np.bool_)
        bad[np.argsort(narrow["draw"].to_numpy()[left], kind="stable")[: options.max_pairs]] = False
        drop(Reason.SAMPLED, bad)
    if options.near_duplicates is not None and len(left):
        drop(Reason.NEAR_DUPLICATE, near_drafts(narrow[left], tables, options.near_duplicates))
    if options.length_balance is not None and len(left):
        drop(Reason.LENGTH, one_sided(narrow["difference"].to_numpy()[left], options.length_balance))
    remaining = narrow if len(left) == narrow.height else narrow[left]
    in_order = None
    if ranks is not None and options.curriculum != "none":
        in_order = np.empty(len(left), np.int64)
        # The inverse of the sorting permutation: for each kept draft the place at which it is written.
        in_order[np.argsort(ranks[left], kind="stable")] = np.arange(len(left))
    differences = remaining["difference"].to_numpy()
    return Selection(
        reasons=reasons,
        weights=_weights(remaining, options, None if likely is None else likely[left]),
        splits=splits(remaining, validation=options.validation, seed=options.seed),
        places=in_order,
        differences=differences,
        probabilities=None if likely is None else likely[left],
    )


def _rank_tasks(tasks: pl.DataFrame, options: PairOptions) -> pl.DataFrame:
    """Rank tasks by the mean reward of their candidates: easy (high) first, or hard first; ties by task id."""
    # Sorted first: the mean of floats depends on the order of summation.
    sums = tasks.sort("tid", "reward").group_by("tid", maintain_order=True).agg(pl.col("reward").mean())
    order = sums.sort("reward", "tid", descending=[options.curriculum == "easy-first", False])
    return order.select("tid").with_row_index("rank")


def _beyond_tasks(narrow: pl.DataFrame, most: int) -> Flags:
    """Mask of drafts that are not among the `most` largest gaps of their task."""
    task = narrow["tid"].cast(pl.Categorical).to_physical().to_numpy()
    keys = [narrow[name].to_numpy() for name in ("key_other", "key_one")]
    # lexsort takes its last key first: by task, then descending gap, then key, then number.
    order = np.lexsort([np.arange(narrow.height), *keys, -narrow["gap"].to_numpy(), task])
    firsts = np.flatnonzero(np.diff(task[order].astype(np.int64), prepend=-1))
    rank = np.arange(len(order)) - np.repeat(firsts, np.diff(np.append(firsts, len(order))))
    bad = np.zeros(narrow.height, np.bool_)
    bad[order] = rank >= most
    return bad


def _weights(drafts: pl.DataFrame, options: PairOptions, likely: Floats | None) -> Floats:
    """Return the weights of drafts: 1, the gap or the chosen reward; optionally by reliability.

    A label that is correct with probability p carries 2p - 1 of the signal of a certain label.
    """
    weights = np.ones(drafts.height)
    if options.weight != "one":
        weights = drafts["gap" if options.weight == "gap" else "chosen_reward"].to_numpy()
    if len(weights) and weights.min() < 0:
        raise PairwrightError(
            f"weight: a chosen reward of {float(weights.min())!r} cannot be a weight: "
            "use --weight gap, which is never negative"
        )
    if likely is not None and options.reliability == "weight":
        weights = weights * (2 * likely - 1)
    return weights


def splits(drafts: pl.DataFrame, *, validation: float, seed: int) -> pl.Series:
    """Return 'train' or 'validation' for each draft.

    Drafts that share a task or a prompt, directly or through others, are in the same split. `validation` is the share
    of such sets to hold out.
    """
    if validation <= 0 or not drafts.height:
        return pl.Series("split", ["train"] * drafts.height, pl.String)
    sets = _sets(drafts)
    names = sets.unique().sort()
    hashes = seeded_draws(seed, words_of(names))
    # Draws are uniform in [0, 2**64), so this share of the sets is held out.
    held = hashes.astype(np.float64) < validation * 2.0**64
    if len(names) > 1 and validation < 1:  # with two or more sets, neither split is empty
        held[np.argmin(hashes)] = True
        if held.all():
            held[np.argmax(hashes)] = False
    side = pl.Series(np.where(held, "validation", "train"))
    return sets.replace_strict(names, side, return_dtype=pl.String).alias("split")


def _sets(drafts: pl.DataFrame) -> pl.Series:
    """Return the connected component (by task and prompt) of each draft, named by its smallest prompt hash."""
    links = drafts.select("tid", "prompt_hash")
    across = drafts.filter(pl.col("across_groups"))
    # A pair across groups also links the task of its rejected side to its prompt.
    if across.height:
        others = pl.Series("tid", [EID.parse(uid).tid for uid in across["rejected_uid"]], pl.String)
        links = pl.concat([links, across.select("prompt_hash").with_columns(others).select("tid", "prompt_hash")])
    links = links.with_columns(label=pl.col("prompt_hash"))
    # Connected components of the graph that links tasks and prompts, by propagating the smallest label.
    while True:
        spread = links.with_columns(label=pl.col("label").min().over("tid"))
        spread = spread.with_columns(label=pl.col("label").min().over("prompt_hash"))
        if spread["label"].equals(links["label"]):
            return spread["label"].head(drafts.height)
        links = spread


def length_effect(differences: Floats, weights: Floats | None = None) -> float:
    """Mean divided by standard deviation of (chosen - rejected) characters; infinite if all are equal and not 0."""
    weights = np.ones(len(differences)) if weights is None else weights
    total = weights.sum()
    if not total:
        return 0.0
    mean = float((weights * differences).sum() / total)
    deviation = float(np.sqrt((weights * (differences - mean) ** 2).sum() / total))
    if deviation == 0:
        return 0.0 if mean == 0 else float(np.copysign(np.inf, mean))
    return mean / deviation


def one_sided(differences: Floats, bound: float) -> Flags:
    """Mask of the pairs to drop so that the length effect is within the bound: the fewest, most one-sided first."""
    towards = np.sign(differences.mean()) or 1.0
    # Most one-sided pair first, in the prevailing direction; ties by number (the last key of lexsort is primary).
    order = np.lexsort([np.arange(len(differences)), -towards * differences])
    left = differences[order][::-1]  # reversed, so that cumsum covers suffixes of `order`
    counts = np.arange(1, len(left) + 1)
    means = np.cumsum(left) / counts
    # E[x²] - E[x]², which rounding can take slightly below 0.
    variances = np.maximum(np.cumsum(left**2) / counts - means**2, 0.0)
    fine = np.abs(means) <= bound * np.sqrt(variances) + 1e-12
    num_left = int(counts[fine].max()) if fine.any() else 0
    bad = np.zeros(len(differences), np.bool_)
    bad[order[: len(differences) - num_left]] = True
    return bad

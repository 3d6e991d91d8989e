"""Selection among the drafts of all partitions, on a few narrow columns of each draft.

Drafts are dropped by curriculum, the cap of a task, sampling, near-duplicates and length balance, in this order; the
others get a weight, a split, a curriculum stage and a position in the pairs table. Drafts are numbered across
partitions. Each step sees the drafts that earlier steps kept and orders them by gap, key and number, so that the result
does not depend on the partitioning.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import xxhash

from pairwright.errors import PairwrightError, TableError
from pairwright.pairs.candidates.candidates import Flags, Floats, Indices
from pairwright.pairs.candidates.pair_ids import seeded_draws, splits, words_of
from pairwright.pairs.candidates.trajectories import conversations
from pairwright.pairs.funnel import FILE_NAME, Reason, read_funnel
from pairwright.pairs.options import PairOptions
from pairwright.records.arrays import Array
from pairwright.records.messages import Message
from pairwright.store.table import Table

# Length balance: effect size of the length difference between chosen and rejected, and how to bound it


def length_effect(differences: Floats, weights: Floats | None = None) -> float:
    """Mean divided by standard deviation of (chosen - rejected) characters.

    It is 0 for no pairs, and infinite if all differences are equal and not 0.
    """
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
    """Mask of the pairs to drop so that the length effect is within the bound: as few as possible, largest first."""
    towards = np.sign(differences.mean()) or 1.0
    # From the most one-sided pair in the prevailing direction; lexsort takes its last key first, ties go by number.
    order = np.lexsort([np.arange(len(differences)), -towards * differences])
    left = differences[order][::-1]  # the last so many of `order`, summed from its end
    counts = np.arange(1, len(left) + 1)
    means = np.cumsum(left) / counts
    # E[x²] - E[x]², which rounding can take slightly below 0.
    variances = np.maximum(np.cumsum(left**2) / counts - means**2, 0.0)
    fine = np.abs(means) <= bound * np.sqrt(variances) + 1e-12
    num_left = int(counts[fine].max()) if fine.any() else 0
    bad = np.zeros(len(differences), np.bool_)
    bad[order[: len(differences) - num_left]] = True
    return bad


def balance_weights(weights: Floats, differences: Floats, bound: float) -> Floats:
    """Scale the weights of the prevailing direction down until the length effect of the weighted pairs is in bounds."""
    effect = length_effect(differences, weights)
    if abs(effect) <= bound:
        return weights
    direction = np.sign(effect)
    prevailing = np.sign(differences) == direction
    # Bisection: 60 halvings are more than the bits of a double.
    low, high = 0.0, 1.0
    for _ in range(60):  # the effect falls with the weight of the prevailing pairs
        middle = (low + high) / 2
        effect = length_effect(differences, np.where(prevailing, middle * weights, weights)) * direction
        low, high = (middle, high) if effect <= bound else (low, middle)
    return np.where(prevailing, low * weights, weights)


# Curriculum: tasks ranked by mean reward, easy or hard first, in growing stages


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


# Near-duplicates: pairs with similar texts, found by MinHash (optional)

# A signature has 64 hashes, in bands of 4: two texts are compared where a band is equal. Shingles have 5 words.
NUM_HASHES, ROWS_PER_BAND, WORDS = 64, 4, 5
Signature = npt.NDArray[np.uint64]
_RANDOM = np.random.Generator(np.random.PCG64(20))
# A fixed seed, so that signatures never change; odd factors are invertible modulo 2**64.
_FACTORS = _RANDOM.integers(1, 2**63, NUM_HASHES, dtype=np.uint64) | np.uint64(1)
_SHIFTS = _RANDOM.integers(0, 2**63, NUM_HASHES, dtype=np.uint64)


def near_drafts(narrow: pl.DataFrame, tables: Sequence[Table], least: float) -> npt.NDArray[np.bool_]:
    """Mask of drafts that are near-duplicates of an earlier one; reads the conversations of both sides.

    A side is the whole conversation, or if it has a position `at`, the conversation up to and including that message.
    """
    wanted = [list(narrow.select(f"near_{side}", f"near_{side}_at").iter_rows()) for side in ("chosen", "rejected")]
    ends: dict[str, set[int | None]] = defaultdict(set)
    for uid, at in (*wanted[0], *wanted[1]):
        # For each uid the positions at which a side of some draft ends.
        ends[uid].add(at)
    signatures = {
        (uid, at): signature(_text((*prompt, *completion)[: None if at is None else at + 1]))
        for uid, prompt, _, completion in conversations(tables, pl.Series(list(ends), dtype=pl.String))
        for at in ends[uid]
    }
    sides = [[signatures.get(side) for side in row] for row in wanted]
    both = [
        None if one is None or other is None else np.concatenate([one, other])
        for one, other in zip(*sides, strict=True)
    ]
    return near_duplicates(both, least)


def near_duplicates(signatures: list[Signature | None], least: float) -> npt.NDArray[np.bool_]:
    """Mask of signatures whose estimated similarity to an earlier kept one is at least `least`."""
    again = np.zeros(len(signatures), np.bool_)
    # For each band (its number and bytes) the places of kept signatures that have it.
    bands: dict[bytes, list[int]] = defaultdict(list)
    for place, own in enumerate(signatures):
        if own is None:
            continue
        names = [
            band.to_bytes(2, "little") + own[band * ROWS_PER_BAND : (band + 1) * ROWS_PER_BAND].tobytes()
            for band in range(len(own) // ROWS_PER_BAND)
        ]
        # At most 50 of a band, so that one frequent phrase does not make this quadratic.
        others = {other for name in names for other in bands[name][:50]}
        # The share of equal minimum hashes estimates the Jaccard similarity of the shingle sets.
        again[place] = any(float((own == signatures[other]).mean()) >= least for other in others)
        if not again[place]:
            for name in names:
                bands[name].append(place)
    return again


def signature(text: str) -> Signature:
    """Return the MinHash signature of a text: 64 minimum hashes of its word shingles."""
    words = text.split()
    digest = xxhash.xxh3_64_intdigest
    shingles = {digest(" ".join(words[at : at + WORDS]).encode()) for at in range(max(1, len(words) - WORDS + 1))}
    hashes = np.fromiter(shingles, np.uint64, len(shingles))
    least = np.full(NUM_HASHES, np.iinfo(np.uint64).max, np.uint64)
    # 4,096 shingles at a time: the intermediate array is 4,096 x 64.
    for start in range(0, len(hashes), 4096):
        mixed = hashes[start : start + 4096, None] * _FACTORS + _SHIFTS
        np.minimum(least, (mixed ^ (mixed >> np.uint64(29))).min(axis=0), out=least)
    return least


def _text(messages: tuple[Message, ...]) -> str:
    return " ".join(
        part
        for message in messages
        for part in (message.text, *(f"{call.name} {call.arguments}" for call in message.tool_calls))
    )


# Selection among all drafts

REASONS = (Reason.CURRICULUM, Reason.TASK_CAP, Reason.SAMPLED, Reason.NEAR_DUPLICATE, Reason.LENGTH)


@dataclass(frozen=True)
class Selection:
    """The result of selection. `reasons` covers all drafts (0: kept, else 1 + index in REASONS), the rest kept ones."""

    reasons: npt.NDArray[np.uint8]
    weights: Floats
    splits: pl.Series
    stages: Indices | None
    places: Indices | None
    """Position of each kept draft in the pairs table; None if drafts are written in their own order."""
    differences: Floats
    """Characters of the chosen side minus those of the rejected side."""


@dataclass(frozen=True)
class _Ranks:
    """The curriculum rank of each draft's task, and the number of tasks."""

    of_drafts: Indices
    num_tasks: int


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
    narrow: pl.DataFrame, tasks: pl.DataFrame, options: PairOptions, tables: Sequence[Table]
) -> Selection:
    """Select among the drafts of all partitions.

    Args:
        narrow: Narrow columns of all drafts (`narrow_columns`).
        tasks: Task id and reward of each candidate, for the curriculum.
        options: Options of the build; thresholds are rewards.
        tables: Tables with the texts, read only for near-duplicates.
    """
    ranks = _rank_tasks(narrow, tasks, options)
    reasons = np.zeros(narrow.height, np.uint8)
    # The numbers of the drafts that no reason has dropped so far.
    left = np.arange(narrow.height)
    for number, reason in enumerate(REASONS, 1):
        bad = _bad(reason, narrow if len(left) == narrow.height else narrow[left], ranks, left, options, tables)
        if bad is not None:
            reasons[left[bad]] = number
            left = left[~bad]
    remaining = narrow if len(left) == narrow.height else narrow[left]
    in_order = None
    if ranks is not None and options.curriculum != "none":
        in_order = np.empty(len(left), np.int64)
        # The inverse of the sorting permutation: for each kept draft the place at which it is written.
        in_order[np.argsort(ranks.of_drafts[left], kind="stable")] = np.arange(len(left))
    differences = remaining["difference"].to_numpy()
    return Selection(
        reasons=reasons,
        weights=_weights(remaining, differences, options),
        splits=splits(remaining, validation=options.validation, seed=options.seed),
        stages=None if ranks is None or options.curriculum_start is None else stages(ranks.of_drafts[left], options),
        places=in_order,
        differences=differences,
    )


def _bad(
    reason: Reason,
    narrow: pl.DataFrame,
    ranks: _Ranks | None,
    left: Indices,
    options: PairOptions,
    tables: Sequence[Table],
) -> Flags | None:
    """Mask of the remaining drafts that a reason drops; None if its option is not set."""
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
    """Mask of drafts that are not among the `most` largest gaps of their task."""
    task = narrow["tid"].cast(pl.Categorical).to_physical().to_numpy()
    keys = [narrow[name].to_numpy() for name in ("key_other", "key_one")]
    # lexsort takes its last key first: by task, then descending gap, then key, then number.
    order = np.lexsort([np.arange(narrow.height), *keys, -narrow["gap"].to_numpy(), task])
    firsts = np.flatnonzero(np.diff(task[order].astype(np.int64), prepend=-1))
    # The rank within the task: the place in `order` minus the place where the task begins.
    rank = np.arange(len(order)) - np.repeat(firsts, np.diff(np.append(firsts, len(order))))
    bad = np.zeros(narrow.height, np.bool_)
    bad[order] = rank >= most
    return bad


def _rank_tasks(narrow: pl.DataFrame, tasks: pl.DataFrame, options: PairOptions) -> _Ranks | None:
    if not options.has_curriculum or not narrow.height:
        return None
    ranks = task_ranks(tasks, options)
    rank_column = narrow.select("tid").join(ranks, on="tid", how="left", maintain_order="left")["rank"]
    return _Ranks(rank_column.fill_null(0).cast(pl.Int64).to_numpy(), ranks.height)


def _weights(drafts: pl.DataFrame, differences: Floats, options: PairOptions) -> Floats:
    """Return the weights of drafts: 1, the gap or the chosen reward, balanced by length on request."""
    weights = np.ones(drafts.height)
    if options.weight != "one":
        weights = drafts["gap" if options.weight == "gap" else "chosen_reward"].to_numpy()
    if len(weights) and weights.min() < 0:
        raise PairwrightError(
            f"weight: a chosen reward of {float(weights.min())!r} cannot be a weight: "
            "use --weight gap, which is never negative"
        )
    if options.length_balance is not None and options.balance_by == "reweight":
        # By the weights that training sees, which is how `pairs lint` counts the effect, too.
        weights = balance_weights(weights, differences, options.length_balance)
    return weights


# Which runs are good and which are bad on their own, by their reward: for KTO, which needs no pairs.


def choose_threshold(rewards: Array, threshold: float | None, *, option: str) -> float:
    """The reward from which on a run is desirable: `threshold`, or halfway between the lowest and the highest reward.

    Args:
        rewards: Finite rewards of the runs.
        threshold: The wish of the user; None for halfway.
        option: The name of that wish, for the error.

    Raises PairwrightError where all runs would be on one side.

    >>> choose_threshold(np.array([0.0, 1.0, 1.0]), None, option="--threshold")
    0.5
    """
    lowest, highest = float(rewards.min(initial=np.inf)), float(rewards.max(initial=-np.inf))
    if not len(rewards):
        raise PairwrightError("no run has a reward: nothing says which are good")
    if not lowest < highest:
        raise PairwrightError(f"all {len(rewards)} scored runs have the reward {lowest:g}: nothing to learn from")
    # Halfway is where 0 and 1, -1 and 1, or thumbs are told apart; other scales want a threshold of their own.
    chosen = (lowest + highest) / 2 if threshold is None else threshold
    if not lowest < chosen <= highest:
        raise PairwrightError(
            f"{option} {chosen:g}: all {len(rewards)} runs are on one side: rewards go from {lowest:g} to {highest:g}; "
            "choose a threshold above the first and not above the second"
        )
    return chosen

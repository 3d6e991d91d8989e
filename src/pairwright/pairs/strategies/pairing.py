"""Pairs of rows within sorted groups: enumerate the K largest gaps, count drops for the funnel, build drafts.

In a group sorted by reward, at least i·j - 1 other pairs have a gap no smaller than that of the i-th best and the j-th
worst row: the pairs of the i best with the j worst. So only pairs with i·j ≤ K can be among the K largest gaps: about
K·ln K of them, independent of the group size. If d pairs of a group are unusable (identical completions, rewards that
differ by float noise only), the bound is i·j ≤ K + d. Equal gaps are ordered by i + j, then by i, which is consistent
with the bound. The bound does not hold with a maximum gap, since the largest gaps are excluded; large groups are then
walked with a heap, in descending order of gap, from the largest allowed gap of each row.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.errors import PairwrightError
from pairwright.pairs.candidates.candidates import Candidates, Flags, Floats, Indices, is_tied, reward_gaps
from pairwright.pairs.candidates.pair_ids import Words, hex_digits, pair_keys, words_of
from pairwright.pairs.funnel import Funnel, Reason, Stage
from pairwright.pairs.options import PairOptions

MAX_PLANNED = 100_000_000
# With a maximum gap, all pairs of a group of up to this size are enumerated at once.
_SMALL = 32


@dataclass(frozen=True)
class RowPairs:
    """Pairs of rows: numbers of the chosen and the rejected row, and their reward gaps."""

    chosen: Indices
    rejected: Indices
    gaps: Floats

    def select(self, keep: npt.NDArray[np.bool_] | Indices) -> "RowPairs":
        return RowPairs(self.chosen[keep], self.rejected[keep], self.gaps[keep])


def group_pairs(
    candidates: Candidates,
    options: PairOptions,
    *,
    largest: int | None,
    num_high: Indices | None = None,
    num_low: Indices | None = None,
) -> RowPairs:
    """Return the pairs of each group with different completions and a gap within the bounds of the options.

    Args:
        candidates: Sorted rows in groups.
        options: Bounds of the gap and tie tolerance.
        largest: Number of pairs per group, by descending gap; None returns all.
        num_high: For each group, the chosen row is among its first `num_high` rows; None allows all.
        num_low: For each group, the rejected row is among its last `num_low` rows; None allows all.
    """
    hashes = candidates.completions
    sizes = candidates.sizes
    num_high = sizes if num_high is None else num_high
    num_low = sizes if num_low is None else num_low
    # The largest i·j of each group: -1 for no bound, 0 for no pair.
    budget = np.full(len(sizes), -1)
    walked: list[tuple[int, int]] = []
    if largest is not None and options.max_gap is None:
        budget = largest + _num_identical(candidates) + _num_noise_ties(candidates, options.tie_tolerance)
    # With a maximum gap, large groups are walked one by one, small ones enumerated.
    elif largest is not None:
        large = sizes > _SMALL
        budget[large] = 0
        for group in np.flatnonzero(large).tolist():
            walk = _walk_down(candidates, hashes, group, (int(num_high[group]), int(num_low[group])), options)
            walked += [pair for pair, _ in zip(walk, range(largest), strict=False)]
    chosen, rejected = _positions(candidates.starts, budget, num_high, num_low)
    if walked:
        chosen, rejected = (
            np.append(rows, more) for rows, more in zip((chosen, rejected), np.array(walked).T, strict=True)
        )
    near = [bound for bound in (options.min_gap, options.max_gap) if bound is not None]
    gaps = reward_gaps(candidates.rewards[chosen], candidates.rewards[rejected], near=near)
    tied = is_tied(candidates.rewards[chosen], candidates.rewards[rejected], options.tie_tolerance)
    keep = within_bounds(gaps, options) & ~tied
    differ = (hashes[chosen] != hashes[rejected]).any(axis=1)
    pairs = RowPairs(chosen, rejected, gaps).select(keep & differ)
    return pairs if largest is None else _largest(candidates, pairs, largest)


def _walk_down(
    candidates: Candidates, hashes: Words, group: int, most: tuple[int, int], options: PairOptions
) -> Iterator[tuple[int, int]]:
    """Lazily yield pairs of one group with a gap of at most `max_gap`, in descending order of gap.

    For the i-th best row, gaps decrease from the worst row upwards, so a heap with the next pair of each row gives the
    next pair overall. `most` bounds i and j.
    """
    start, end = int(candidates.starts[group]), int(candidates.starts[group + 1])
    rewards, size = candidates.rewards[start:end], end - start
    assert options.max_gap is not None
    near = [options.min_gap, options.max_gap]
    # firsts[i - 1] is the smallest j whose pair with the i-th best is within the maximum gap.
    ends = np.full(size, size)
    beyond = _first_where(_next_rows(ends), ends, rewards, _is_beyond(options.max_gap, inclusive=False))
    firsts = size - beyond + 1

    def entries(i: npt.NDArray[np.int64], j: npt.NDArray[np.int64]) -> list[tuple[float, int, int, int]]:
        # i + j <= size: the i-th best is before the j-th worst.
        there = (j <= most[1]) & (i + j <= size)
        i, j = i[there], j[there]
        gaps = reward_gaps(rewards[i - 1], rewards[size - j], near=near)
        # Sorts by descending gap, then i + j, then i (see the module docstring).
        return list(zip((-gaps).tolist(), (i + j).tolist(), i.tolist(), j.tolist(), strict=True))

    best = np.arange(1, min(most[0], size - 1) + 1)
    heap = entries(best, firsts[: len(best)])
    heapq.heapify(heap)
    while heap and -heap[0][0] >= options.min_gap and heap[0][0] < 0:
        _, _, i, j = heap[0]
        tied = is_tied(rewards[i - 1], rewards[size - j], options.tie_tolerance)
        if not tied and (hashes[start + i - 1] != hashes[end - j]).any():
            yield start + i - 1, end - j
        following = entries(np.array([i]), np.array([j + 1]))
        heapq.heapreplace(heap, following[0]) if following else heapq.heappop(heap)


def within_bounds(gaps: Floats, options: PairOptions) -> npt.NDArray[np.bool_]:
    keep = (gaps > 0) & (gaps >= options.min_gap)
    return keep if options.max_gap is None else keep & (gaps <= options.max_gap)


def count_gaps(starts: Indices, rewards: Floats, options: PairOptions) -> tuple[int, int, int]:
    """Count the pairs within groups that are tied, below the minimum gap and above the maximum gap."""
    ends = _ends(starts)
    apart = _first_apart(ends, rewards, options.tie_tolerance)
    tied = int((apart - _next_rows(ends)).sum())
    below = above = 0
    if options.min_gap > 0:
        far = _first_where(apart, ends, rewards, _is_beyond(options.min_gap, inclusive=True))
        below = int((far - apart).sum())
    if options.max_gap is not None:
        far = _first_where(apart, ends, rewards, _is_beyond(options.max_gap, inclusive=False))
        above = int((ends - far).sum())
    return tied, below, above


def _ends(starts: Indices) -> Indices:
    """Return for each row the end of its group."""
    return np.repeat(starts[1:], np.diff(starts))


def _next_rows(ends: Indices) -> Indices:
    return np.arange(1, len(ends) + 1)


def _first_apart(ends: Indices, rewards: Floats, tolerance: float) -> Indices:
    """Return for each row the first lower row of its group that does not tie with it."""
    return _first_where(_next_rows(ends), ends, rewards, lambda high, low: ~is_tied(high, low, tolerance))


def _is_beyond(bound: float, *, inclusive: bool) -> Callable[[Floats, Floats], Flags]:
    """Return a test for gaps of at least, or above, a bound."""

    def test(higher: Floats, lower: Floats) -> Flags:
        gaps = reward_gaps(higher, lower, near=[bound])
        return gaps >= bound if inclusive else gaps > bound

    return test


def _first_where(firsts: Indices, ends: Indices, rewards: Floats, holds: Callable[[Floats, Floats], Flags]) -> Indices:
    """For each row, return the first row from `firsts` to `ends` for which `holds` is true, or the end.

    Rewards descend within a group, and `holds` must be false up to some row and true from there on.

    >>> rewards, ends = np.array([1.0, 0.9, 0.2]), np.array([3, 3, 3])
    >>> _first_where(np.array([1, 2, 3]), ends, rewards, lambda higher, lower: higher - lower > 0.5).tolist()
    [2, 2, 3]
    """
    # Bisection for all rows at once; `open_` has the rows that are not done.
    low, high = firsts.copy(), ends.copy()
    open_ = np.flatnonzero(low < high)
    while len(open_):
        middle = (low[open_] + high[open_]) // 2
        true = holds(rewards[open_], rewards[middle])
        high[open_[true]] = middle[true]
        low[open_[~true]] = middle[~true] + 1
        open_ = open_[low[open_] < high[open_]]
    return low


def _num_identical(candidates: Candidates) -> Indices:
    """For each group, count the pairs with identical completions."""
    rows = candidates.recurring
    groups, hashes = candidates.groups[rows], candidates.completions[rows]
    # By group, then hash (two words): equal completions of a group become neighbours.
    order = np.lexsort([hashes[:, 1], hashes[:, 0], groups])
    same = (groups[order][1:] == groups[order][:-1]) & (hashes[order][1:] == hashes[order][:-1]).all(axis=1)
    # Where a run of equal completions starts; the slice handles zero rows.
    starts = np.flatnonzero(np.concatenate([[True], ~same]))[: len(groups)]
    counts = np.diff(np.append(starts, len(groups)))
    result = np.zeros(len(candidates.sizes), np.int64)
    np.add.at(result, groups[order][starts], counts * (counts - 1) // 2)
    return result


def _num_noise_ties(candidates: Candidates, tolerance: float) -> Indices:
    """For each group, count the pairs that tie although their rewards differ.

    Unlike exact ties, these are not always the smallest gaps, since the tolerance is relative to the rewards.
    """
    rewards, groups = candidates.rewards, candidates.groups
    near = is_tied(rewards[:-1], rewards[1:], tolerance) & (rewards[:-1] != rewards[1:]) & (groups[:-1] == groups[1:])
    result = np.zeros(len(candidates.sizes), np.int64)
    # Rewards that tie are neighbours: without tied neighbours there is nothing to count.
    if near.any():
        ends = _ends(candidates.starts)
        equal = _first_where(_next_rows(ends), ends, rewards, np.not_equal)
        np.add.at(result, groups, _first_apart(ends, rewards, tolerance) - equal)
    return result


def _positions(starts: Indices, budget: Indices, num_high: Indices, num_low: Indices) -> tuple[Indices, Indices]:
    """Return the row numbers of (i-th best, j-th worst) for each group with i·j within its budget (-1: no bound)."""
    sizes = np.diff(starts)
    columns = np.stack([sizes, budget, num_high, num_low])
    # Groups alike in all four columns have the same positions, which are computed once.
    firsts_of_shapes, shape_of = _shapes(columns)
    chosen, rejected, total = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for number, (size, bound, high, low) in enumerate(columns[:, firsts_of_shapes].T.tolist()):
        best = np.arange(1, min(high, size - 1) + 1)
        if bound >= 0:
            best = best[best <= bound]
        # For each i the number of valid j: i + j <= size, and i·j within the bound.
        most = np.minimum(low, size - best)
        if bound >= 0:
            most = np.minimum(most, bound // best)
        most = np.maximum(most, 0)
        firsts = starts[:-1][shape_of == number]
        total += int(most.sum()) * len(firsts)
        if total > MAX_PLANNED:
            raise PairwrightError(
                f"more than {MAX_PLANNED:,} pairs at prompts that must be planned together: bound them with "
                "--max-pairs-per-group"
            )
        i = np.repeat(best, most)
        # Counts from 1 within each run of equal i.
        j = np.arange(len(i)) - np.repeat(np.cumsum(most) - most, most) + 1
        chosen.append((firsts[:, None] + (i - 1)).ravel())
        rejected.append((firsts[:, None] + (size - j)).ravel())
    return np.concatenate(chosen), np.concatenate(rejected)


def _shapes(columns: Indices) -> tuple[Indices, Indices]:
    """Number the distinct columns of a matrix; returns the first group of each number, and the number of each group.

    >>> firsts, numbers = _shapes(np.array([[3, 5, 3], [1, 1, 1]]))  # groups 0 and 2 have equal columns
    >>> firsts.tolist(), numbers.tolist()
    ([0, 1], [0, 1, 0])
    """
    numbers = np.zeros(columns.shape[1], np.int64)
    firsts = np.zeros(min(1, columns.shape[1]), np.int64)
    for column in columns:
        # One integer from the number so far and the column (a mixed radix); + 1 since a budget may be -1.
        together = numbers * (int(column.max(initial=0)) + 2) + column + 1
        _, firsts, numbers = np.unique(together, return_index=True, return_inverse=True)
    return firsts, numbers


def _largest(candidates: Candidates, pairs: RowPairs, largest: int) -> RowPairs:
    """Return at most `largest` pairs of each group, in descending order of gap."""
    groups = candidates.groups[pairs.chosen]
    i = pairs.chosen - candidates.starts[groups]
    j = candidates.starts[groups + 1] - pairs.rejected
    # lexsort takes its last key first: by group, then descending gap, then i + j, then i.
    order = np.lexsort([i, i + j, -pairs.gaps, groups])
    pairs, groups = pairs.select(order), groups[order]
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    # The rank of each pair within its group.
    rank = np.arange(len(groups)) - np.repeat(firsts, np.diff(np.append(firsts, len(groups))))
    return pairs.select(rank < largest)


def count_groups(candidates: Candidates, pairs: RowPairs, options: PairOptions, funnel: Funnel) -> Flags:
    """Add the stage `groups` to the funnel; returns the mask of groups with at least one pair."""
    sizes, rewards = candidates.sizes, candidates.rewards
    stage = funnel.stage("groups", len(sizes))
    gave = np.zeros(len(sizes), np.bool_)
    gave[candidates.groups[pairs.chosen]] = True
    best, worst = rewards[candidates.starts[:-1]], rewards[candidates.starts[1:] - 1]
    largest = reward_gaps(best, worst, near=[options.min_gap])
    hashes = candidates.completions
    # The completion hash of the first row of each row's group.
    first = hashes[np.repeat(candidates.starts[:-1], sizes)]
    differs = np.bincount(candidates.groups, (hashes != first).any(axis=1), len(sizes))
    same = differs == 0
    tied = is_tied(best, worst, options.tie_tolerance)
    checks = [(Reason.IDENTICAL, same), (Reason.TIED, tied), (Reason.BELOW_GAP, largest < options.min_gap)]
    if options.strategy == "stratified":
        checks += [(Reason.NOT_HIGH, best < options.high.value), (Reason.NOT_LOW, worst > options.low.value)]
    if options.max_gap is not None:
        checks.append((Reason.ABOVE_GAP, np.ones(len(sizes), np.bool_)))
    # Groups without a pair, each counted under the first reason that holds.
    left = ~gave
    for reason, holds in checks:
        matching = left & holds
        stage.drop(reason, int(matching.sum()), candidates.first_uids(matching))
        left &= ~matching
    stage.drop(Reason.NOT_PICKED, int(left.sum()), candidates.first_uids(left))
    stage.close(int(gave.sum()))
    return gave


def count_group_pairs(
    candidates: Candidates, gave: Flags, num_pairs: int, options: PairOptions, funnel: Funnel
) -> Stage:
    """Add the stage `pairs` to the funnel, still open: all pairs of the groups in `gave`, and those not picked."""
    sizes, rows = candidates.sizes[gave], np.repeat(gave, candidates.sizes)
    stage = funnel.stage("pairs", int((sizes * (sizes - 1) // 2).sum()))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    tied, below, above = count_gaps(starts, candidates.rewards[rows], options)
    identical = _num_identical_apart(candidates, rows, options)
    stage.drop(Reason.TIED, tied)
    stage.drop(Reason.BELOW_GAP, below)
    stage.drop(Reason.ABOVE_GAP, above)
    stage.drop(Reason.IDENTICAL, identical)
    # The cap of a group, or the strategy, dropped the rest.
    rest = stage.num_in - tied - below - above - identical - num_pairs
    capped = options.strategy == "all"
    stage.drop(Reason.GROUP_CAP if capped else Reason.NOT_PICKED, rest)
    return stage


def _num_identical_apart(candidates: Candidates, giving: Flags, options: PairOptions) -> int:
    """Count the pairs of identical completions among the rows in `giving` whose gap is within the bounds."""
    rows = candidates.recurring[giving[candidates.recurring]]
    again = pl.DataFrame({"group": candidates.groups[rows], "reward": candidates.rewards[rows]})
    again = again.with_columns(completion_hash=candidates.frame["completion_hash"].gather(rows))
    again = again.filter(pl.len().over("group", "completion_hash") > 1) if again.height else again
    if not again.height:
        return 0
    again = again.sort("group", "completion_hash", "reward", descending=[False, False, True])
    # Treat the rows with one completion in one group as a group, so that `count_gaps` applies.
    runs = again.select(pl.struct("group", "completion_hash").rle_id()).to_series().to_numpy()
    starts = np.append(np.flatnonzero(np.diff(runs, prepend=-1)), again.height)
    sizes = np.diff(starts)
    return int((sizes * (sizes - 1) // 2).sum()) - sum(count_gaps(starts, again["reward"].to_numpy(), options))


# The columns of drafts: pairs without texts, which strategies return and filters work on.
DRAFT_SCHEMA: dict[str, Any] = {
    "key": pl.String,
    "tid": pl.String,
    "task": pl.String,
    "step": pl.Int64,
    "group": pl.Int64,
    "prompt_hash": pl.String,
    "chosen_hash": pl.String,
    "rejected_hash": pl.String,
    "chosen_uid": pl.String,
    "rejected_uid": pl.String,
    "chosen_row": pl.Int64,
    "rejected_row": pl.Int64,
    "chosen_reward": pl.Float64,
    "rejected_reward": pl.Float64,
    "gap": pl.Float64,
    "across_groups": pl.Boolean,
    "num_chosen_characters": pl.Int64,
    "num_rejected_characters": pl.Int64,
    "cut": pl.Int64,
    "chosen_at": pl.Int64,
    "rejected_at": pl.Int64,
    "row_uid": pl.String,
    "info": pl.String,
}
# The order of drafts, with gaps descending.
ORDER = ("prompt_hash", "tid", "step", "gap", "key", "chosen_uid", "rejected_uid")
_OF_PAIR = ("tid", "task", "step", "prompt_hash")
_OF_SIDE = ("completion_hash", "num_characters", "uid", "row", "reward")
HASHES = ("prompt_hash", "chosen_hash", "rejected_hash")


def drafts_of(candidates: Candidates, pairs: RowPairs) -> pl.DataFrame:
    """Convert pairs of rows to drafts, sorted."""
    frame = candidates.frame.select(*_OF_PAIR, *_OF_SIDE)
    prompts, completions = words_of(frame["prompt_hash"]), candidates.completions
    keys = pair_keys(prompts[pairs.chosen], completions[pairs.chosen], completions[pairs.rejected])
    groups = candidates.groups[pairs.chosen]
    order = _order(groups, pairs, keys)
    pairs = pairs.select(order)
    chosen, rejected = frame[pairs.chosen], frame.select(_OF_SIDE)[pairs.rejected]
    columns = {
        "key": hex_digits(keys[order]),
        **{name: chosen[name] for name in _OF_PAIR},
        "group": groups[order],
        "gap": pairs.gaps,
        "across_groups": (prompts[pairs.chosen] != prompts[pairs.rejected]).any(axis=1),
    }
    for side, rows in (("chosen", chosen), ("rejected", rejected)):
        columns |= {f"{side}_hash": rows["completion_hash"], f"num_{side}_characters": rows["num_characters"]}
        columns |= {f"{side}_{name}": rows[name] for name in ("uid", "row", "reward")}
    return _complete(pl.DataFrame(columns))


def add_keys(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the key and all missing columns of DRAFT_SCHEMA; keeps the order of rows."""
    keys = hex_digits(pair_keys(*(words_of(frame[name]) for name in HASHES)))
    return _complete(frame.with_columns(keys.alias("key")))


def no_drafts() -> pl.DataFrame:
    return pl.DataFrame(schema=DRAFT_SCHEMA)


def _order(groups: Indices, pairs: RowPairs, keys: Words) -> Indices:
    """Return the sort order of drafts: by group, descending gap, key, then row numbers.

    Candidates with equal reward and completion are sorted by id, so row numbers order drafts with equal keys by id.
    """
    # Sorted by two columns first: the others matter only where group and gap tie.
    order = np.lexsort([-pairs.gaps, groups])
    tied = (np.diff(groups[order]) == 0) & (np.diff(pairs.gaps[order]) == 0)
    places = np.flatnonzero(np.append(tied, False) | np.insert(tied, 0, False))
    some = order[places]  # rows with equal group and gap are contiguous, and stay so
    columns = (pairs.rejected, pairs.chosen, keys[:, 1], keys[:, 0], -pairs.gaps, groups)
    order[places] = some[np.lexsort([column[some] for column in columns])]
    return order


def _complete(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [name for name in DRAFT_SCHEMA if name not in frame.columns]
    frame = frame.with_columns(pl.lit(None, DRAFT_SCHEMA[name]).alias(name) for name in missing)
    frame = frame.with_columns(pl.col("across_groups").fill_null(False))
    return frame.select(pl.col(name).cast(kind) for name, kind in DRAFT_SCHEMA.items())

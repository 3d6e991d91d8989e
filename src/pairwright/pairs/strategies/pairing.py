"""Pairs of rows within sorted groups: enumerate the K largest gaps, count drops for the funnel, build drafts.

In a group sorted by reward, at least i·j - 1 other pairs have a gap no smaller than that of the i-th best and the j-th
worst row: the pairs of the i best with the j worst. So only pairs with i·j ≤ K can be among the K largest gaps: about
K·ln K of them, independent of the group size. If d pairs of a group are unusable (identical completions, rewards that
differ by float noise only), the bound is i·j ≤ K + d. A maximum gap excludes the largest gaps, so that the bound does
not hold: then only the K + d rows whose largest allowed gaps come first are used, each with K + d others. Equal gaps
are ordered by i + j, then by i.
"""

from collections.abc import Callable
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

    `largest` is the number of pairs per group, by descending gap; None returns all. The chosen row is among the first
    `num_high` rows of its group, the rejected row among the last `num_low`; None allows all.
    """
    hashes, rewards, groups = candidates.completions, candidates.rewards, candidates.groups
    rows, ends = np.arange(len(rewards)), _ends(candidates.starts)
    # Each row is paired with rows below it, from `firsts` to before `lasts`.
    firsts, lasts = rows + 1, ends
    if num_low is not None:
        firsts = np.maximum(firsts, (candidates.starts[1:] - num_low)[groups])
    if options.max_gap is not None:
        lasts = _first_where(rows + 1, ends, rewards, _is_beyond(options.max_gap, inclusive=False))
    counts = np.maximum(lasts - firsts, 0)
    if num_high is not None:
        counts[rows >= (candidates.starts[:-1] + num_high)[groups]] = 0
    near = [bound for bound in (options.min_gap, options.max_gap) if bound is not None]
    if largest is not None:
        most = (largest + _num_identical(candidates) + _num_noise_ties(candidates, options.tie_tolerance))[groups]
        if options.max_gap is None:
            counts = np.minimum(counts, most // (rows - candidates.starts[groups] + 1))
        else:
            some = np.flatnonzero(counts)
            widest = RowPairs(some, lasts[some] - 1, reward_gaps(rewards[some], rewards[lasts[some] - 1], near=near))
            used = _largest(candidates, widest, most).chosen
            counts[np.setdiff1d(rows, used, assume_unique=True)] = 0
            counts = np.minimum(counts, most)
    total = int(counts.sum())
    if total > MAX_PLANNED:
        raise PairwrightError(
            f"more than {MAX_PLANNED:,} pairs at prompts that must be planned together: bound them with "
            "--max-pairs-per-group"
        )
    chosen = np.repeat(rows, counts)
    rejected = np.repeat(lasts + np.cumsum(counts) - counts, counts) - 1 - np.arange(total)
    gaps = reward_gaps(rewards[chosen], rewards[rejected], near=near)
    tied = is_tied(rewards[chosen], rewards[rejected], options.tie_tolerance)
    # The maximum gap holds already: `lasts` are the rows beyond it.
    keep = (gaps > 0) & (gaps >= options.min_gap) & ~tied
    differ = (hashes[chosen] != hashes[rejected]).any(axis=1)
    pairs = RowPairs(chosen, rejected, gaps).select(keep & differ)
    return pairs if largest is None else _largest(candidates, pairs, np.full(len(rows), largest))


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
    """For each group, count the pairs that tie although their rewards differ: not always those of the smallest gaps."""
    rewards, groups = candidates.rewards, candidates.groups
    near = is_tied(rewards[:-1], rewards[1:], tolerance) & (rewards[:-1] != rewards[1:]) & (groups[:-1] == groups[1:])
    result = np.zeros(len(candidates.sizes), np.int64)
    # Rewards that tie are neighbours: without tied neighbours there is nothing to count.
    if near.any():
        ends = _ends(candidates.starts)
        equal = _first_where(_next_rows(ends), ends, rewards, np.not_equal)
        np.add.at(result, groups, _first_apart(ends, rewards, tolerance) - equal)
    return result


def _largest(candidates: Candidates, pairs: RowPairs, most: Indices) -> RowPairs:
    """Return the pairs with the largest gaps of each group, in descending order; `most` is their number, by row."""
    groups = candidates.groups[pairs.chosen]
    i = pairs.chosen - candidates.starts[groups]
    j = candidates.starts[groups + 1] - pairs.rejected
    # lexsort takes its last key first: by group, then descending gap, then i + j, then i.
    order = np.lexsort([i, i + j, -pairs.gaps, groups])
    pairs, groups = pairs.select(order), groups[order]
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    rank = np.arange(len(groups)) - np.repeat(firsts, np.diff(np.append(firsts, len(groups))))
    return pairs.select(rank < most[pairs.chosen])


def count_groups(candidates: Candidates, pairs: RowPairs, options: PairOptions, funnel: Funnel) -> Flags:
    """Add the stage `groups` to the funnel; returns the mask of groups with at least one pair."""
    sizes, rewards = candidates.sizes, candidates.rewards
    stage = funnel.stage("groups", len(sizes))
    gave = np.zeros(len(sizes), np.bool_)
    gave[candidates.groups[pairs.chosen]] = True
    best, worst = rewards[candidates.starts[:-1]], rewards[candidates.starts[1:] - 1]
    largest = reward_gaps(best, worst, near=[options.min_gap])
    hashes = candidates.completions
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

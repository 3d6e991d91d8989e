"""Pairs of rows inside sorted groups, without building more of them than are wanted.

In a group sorted by reward, the i-th best with the j-th worst has at least i·j - 1 pairs with no smaller gap: those of
the i best with the j worst. So only pairs with i·j ≤ K can be among the K largest gaps: about K·ln K of them, however
large the group. Where d of a group's pairs are of no use (identical completions), i·j ≤ K + d takes their place.
Equal gaps are ordered by i + j, then by i, which respects that rule.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pairwright.errors import PairwrightError
from pairwright.pairs.candidates import Candidates, Indices
from pairwright.pairs.gaps import Floats, reward_gaps
from pairwright.pairs.options import PairOptions

MAX_PLANNED = 100_000_000
_SMALL = 32


@dataclass(frozen=True)
class RowPairs:
    """Rows that are paired: the chosen one, the rejected one, and by how much they differ."""

    chosen: Indices
    rejected: Indices
    gaps: Floats

    def select(self, keep: npt.NDArray[np.bool_] | Indices) -> "RowPairs":
        return RowPairs(self.chosen[keep], self.rejected[keep], self.gaps[keep])


def group_pairs(
    candidates: Candidates, options: PairOptions, *, largest: int | None,
    num_high: Indices | None = None, num_low: Indices | None = None,
) -> RowPairs:  # fmt: skip
    """Pairs of each group with a gap within bounds and different completions; the `largest` K gaps, or all.

    With `num_high` and `num_low`, the chosen one is among the first so many rows of its group, the rejected one among
    the last so many.
    """
    codes = candidates.frame["completion_hash"].rank("dense").to_numpy().astype(np.int64)
    spare = _num_identical(candidates, codes)
    sizes = candidates.sizes
    if options.max_gap is not None and largest is not None:
        budget = np.full(len(sizes), -1)  # the rule needs every larger gap to be a valid one
    else:
        budget = np.full(len(sizes), -1) if largest is None else largest + spare
    num_high = sizes if num_high is None else num_high
    num_low = sizes if num_low is None else num_low
    chosen, rejected = _positions(candidates.starts, budget, num_high, num_low)
    near = [bound for bound in (options.min_gap, options.max_gap) if bound is not None]
    gaps = reward_gaps(candidates.rewards[chosen], candidates.rewards[rejected], near=near)
    keep = within_bounds(gaps, options) & (candidates.rewards[chosen] > candidates.rewards[rejected])
    pairs = RowPairs(chosen, rejected, gaps).select(keep & (codes[chosen] != codes[rejected]))
    return _ordered(candidates, pairs, largest)


def within_bounds(gaps: Floats, options: PairOptions) -> npt.NDArray[np.bool_]:
    keep = (gaps > 0) & (gaps >= options.min_gap)
    return keep if options.max_gap is None else keep & (gaps <= options.max_gap)


def count_gaps(starts: Indices, rewards: Floats, options: PairOptions) -> tuple[int, int, int]:
    """How many of all the pairs inside groups are tied, below the minimum gap, above the maximum gap."""
    sizes = np.diff(starts)
    tied = below = above = 0
    for size in np.unique(sizes[sizes > 1]).tolist():
        firsts = starts[:-1][sizes == size]
        if size <= _SMALL:
            high, low = np.triu_indices(size, 1)
            for piece in np.array_split(firsts, max(1, len(firsts) * len(high) // 2_000_000)):
                counts = _counted(rewards[piece[:, None] + high], rewards[piece[:, None] + low], options)
                tied, below, above = (a + b for a, b in zip((tied, below, above), counts, strict=True))
            continue
        for first in firsts.tolist():
            counts = _counted_in_large(rewards[first : first + size], options)
            tied, below, above = (a + b for a, b in zip((tied, below, above), counts, strict=True))
    return tied, below, above


def _counted(higher: Floats, lower: Floats, options: PairOptions) -> tuple[int, int, int]:
    near = [bound for bound in (options.min_gap, options.max_gap) if bound is not None]
    gaps = reward_gaps(higher, lower, near=near)
    tied = int((higher == lower).sum())
    below = int(((gaps < options.min_gap) & (higher > lower)).sum())
    above = 0 if options.max_gap is None else int((gaps > options.max_gap).sum())
    return tied, below, above


def _counted_in_large(rewards: Floats, options: PairOptions) -> tuple[int, int, int]:
    """The same for one large group, sorted from the highest reward down, in n·log n by distinct rewards."""
    values, counts = np.unique(rewards, return_counts=True)
    tied = int((counts * (counts - 1) // 2).sum())
    totals = np.concatenate([[0], np.cumsum(counts)])
    own = np.arange(len(values))
    below = above = 0
    if options.min_gap > 0:
        below = int((counts * (totals[own] - totals[_num_beyond(values, options.min_gap, inclusive=True)])).sum())
    if options.max_gap is not None:
        above = int((counts * totals[_num_beyond(values, options.max_gap, inclusive=False)]).sum())
    return tied, below, above


def _num_beyond(values: Floats, bound: float, *, inclusive: bool) -> Indices:
    """For each of the ascending values, how many lower ones are at least (or more than) `bound` away: by bisection."""
    low, high = np.zeros(len(values), np.int64), np.arange(len(values))
    while (open_ := low < high).any():
        middle = (low + high) // 2
        gaps = reward_gaps(values, values[middle], near=[bound])
        beyond = gaps >= bound if inclusive else gaps > bound
        low = np.where(open_ & beyond, middle + 1, low)
        high = np.where(open_ & ~beyond, middle, high)
    return low


def _num_identical(candidates: Candidates, codes: Indices) -> Indices:
    """For each group, how many of its pairs have one and the same completion."""
    key = candidates.groups * (codes.max(initial=0) + 1) + codes
    values, counts = np.unique(key, return_counts=True)
    groups = values // (codes.max(initial=0) + 1)
    result = np.zeros(len(candidates.sizes), np.int64)
    np.add.at(result, groups, counts * (counts - 1) // 2)
    return result


def _positions(starts: Indices, budget: Indices, num_high: Indices, num_low: Indices) -> tuple[Indices, Indices]:
    """Rows (i-th best, j-th worst) of each group with i·j within its budget; -1 is no bound."""
    sizes = np.diff(starts)
    shapes, shape_of = np.unique(np.stack([sizes, budget, num_high, num_low], axis=1), axis=0, return_inverse=True)
    chosen, rejected, total = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for number, (size, bound, high, low) in enumerate(shapes.tolist()):
        best = np.arange(1, min(high, size - 1) + 1)
        if bound >= 0:
            best = best[best <= bound]
        most = np.minimum(low, size - best)
        if bound >= 0:
            most = np.minimum(most, bound // best)
        most = np.maximum(most, 0)
        firsts = starts[:-1][shape_of.ravel() == number]
        total += int(most.sum()) * len(firsts)
        if total > MAX_PLANNED:
            raise PairwrightError(
                f"more than {MAX_PLANNED:,} pairs to look at: bound them with --max-pairs-per-group "
                "(and without --max-gap, which makes that costly)"
            )
        i = np.repeat(best, most)
        j = np.arange(len(i)) - np.repeat(np.cumsum(most) - most, most) + 1
        chosen.append((firsts[:, None] + (i - 1)).ravel())
        rejected.append((firsts[:, None] + (size - j)).ravel())
    return np.concatenate(chosen), np.concatenate(rejected)


def _ordered(candidates: Candidates, pairs: RowPairs, largest: int | None) -> RowPairs:
    """By group, then from the largest gap down; at most `largest` of each group."""
    groups = candidates.groups[pairs.chosen]
    i = pairs.chosen - candidates.starts[groups]
    j = candidates.starts[groups + 1] - pairs.rejected
    order = np.lexsort([i, i + j, -pairs.gaps, groups])
    pairs, groups = pairs.select(order), groups[order]
    if largest is None:
        return pairs
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    rank = np.arange(len(groups)) - np.repeat(firsts, np.diff(np.append(firsts, len(groups))))
    return pairs.select(rank < largest)

"""Strategy `stratified`: high rewards against low ones, at or above one threshold and at or below another.

A threshold is a reward or a quantile of the rewards of all candidates. Pairs stay within a group. Across groups, on
request, each chosen one meets at most `max_per_chosen` rejected ones, dealt out in a seeded order: as many pairs as
there are high candidates, times that number, never their product.
"""

import numpy as np
import numpy.typing as npt

from pairwright.errors import ConfigError
from pairwright.pairs.candidates import Candidates, Indices
from pairwright.pairs.gaps import Floats, reward_gaps
from pairwright.pairs.identity import Words, seeded, words_of
from pairwright.pairs.options import PairOptions, Threshold
from pairwright.pairs.pairing import RowPairs, group_pairs


def stratified_pairs(candidates: Candidates, options: PairOptions) -> RowPairs:
    """Pairs of a high and a low candidate of one group."""
    rewards, high, low = candidates.rewards, options.high.value, options.low.value
    return group_pairs(
        candidates, options, largest=options.max_pairs_per_group,
        num_high=_count(candidates, rewards >= high), num_low=_count(candidates, rewards <= low),
    )  # fmt: skip


def across_groups_pairs(candidates: Candidates, options: PairOptions) -> RowPairs:
    """Each high candidate with a few low ones of any prompt; bounds of the gap are not looked at here."""
    rewards, high, low = candidates.rewards, options.high.value, options.low.value
    order = seeded(options.seed, *(words_of(candidates.frame[name]) for name in ("prompt_hash", "completion_hash")))
    highs, lows = (_by(order, np.flatnonzero(rows)) for rows in (rewards >= high, rewards <= low))
    num_each = min(options.max_per_chosen, len(lows))
    chosen = np.repeat(highs, num_each)
    rejected = lows[np.arange(len(chosen)) % len(lows)] if len(lows) else chosen[:0]
    near = [bound for bound in (options.min_gap, options.max_gap) if bound is not None]
    gaps = reward_gaps(rewards[chosen], rewards[rejected], near=near)
    return RowPairs(chosen, rejected, gaps)


def with_thresholds(options: PairOptions, rewards: Floats) -> PairOptions:
    """Options whose thresholds are rewards: quantiles are looked up among the rewards of all candidates."""
    high, low = (_value(rewards, threshold) for threshold in (options.high, options.low))
    if low > high:
        raise ConfigError(f"low: got {options.low} ({low!r}), expected at most high, {options.high} ({high!r})")
    return options.model_copy(update={"high": Threshold(high), "low": Threshold(low)})


def _value(rewards: Floats, threshold: Threshold) -> float:
    if not threshold.is_quantile or not len(rewards):
        return threshold.value
    return float(np.quantile(rewards, threshold.value, method="inverted_cdf"))


def _count(candidates: Candidates, rows: npt.NDArray[np.bool_]) -> Indices:
    totals = np.concatenate([[0], np.cumsum(rows)])
    return np.asarray(totals[candidates.starts[1:]] - totals[candidates.starts[:-1]], np.int64)


def _by(order: Words, rows: Indices) -> Indices:
    return rows[np.argsort(order[rows], kind="stable")]

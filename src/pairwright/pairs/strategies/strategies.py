"""Strategies by name: each turns the rows of a partition into drafts and counts what it drops.

Strategies in `IN_GROUPS` need only the rows of one group at a time, so rows can be partitioned by prompt hash.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from pairwright.config.user_code import STRATEGIES as OWN_STRATEGIES
from pairwright.config.user_code import load_function
from pairwright.errors import ConfigError, PairwrightError
from pairwright.pairs.candidates.candidates import Candidates, Floats, assign_groups, candidates_of, reward_gaps
from pairwright.pairs.candidates.pair_ids import seeded_draws, words_of
from pairwright.pairs.funnel import Reason
from pairwright.pairs.options import PairOptions, Threshold
from pairwright.pairs.partition_state import PartitionState
from pairwright.pairs.strategies.divergence import plan_divergence
from pairwright.pairs.strategies.imported import plan_imported
from pairwright.pairs.strategies.pairing import RowPairs, count_group_pairs, count_groups, drafts_of, group_pairs
from pairwright.pairs.strategies.teachers import plan_teachers


def _high_with_low(candidates: Candidates, options: PairOptions) -> RowPairs:
    """Pair high with low candidates of the same group."""
    # totals[k] is the number of flagged rows before row k.
    totals = (
        np.append(0, np.cumsum(flags))
        for flags in (candidates.rewards >= options.high.value, candidates.rewards <= options.low.value)
    )
    num_high, num_low = (np.diff(total[candidates.starts]) for total in totals)
    return group_pairs(candidates, options, largest=options.max_pairs_per_group, num_high=num_high, num_low=num_low)


def _deal_lows(candidates: Candidates, options: PairOptions) -> RowPairs:
    """Pair each high candidate with a few low ones of any prompt; bounds of the gap are not applied."""
    rewards, high, low = candidates.rewards, options.high.value, options.low.value
    order = seeded_draws(
        options.seed, *(words_of(candidates.frame[name]) for name in ("prompt_hash", "completion_hash"))
    )
    by_draw = np.argsort(order, kind="stable")
    highs, lows = by_draw[rewards[by_draw] >= high], by_draw[rewards[by_draw] <= low]
    num_each = min(options.max_per_chosen, len(lows))
    chosen = np.repeat(highs, num_each)
    # Low rows are dealt round robin, so that each is used about equally often.
    rejected = lows[np.arange(len(chosen)) % len(lows)] if len(lows) else chosen[:0]
    near = [bound for bound in (options.min_gap, options.max_gap) if bound is not None]
    gaps = reward_gaps(rewards[chosen], rewards[rejected], near=near)
    return RowPairs(chosen, rejected, gaps)


def with_thresholds(options: PairOptions, rewards: Floats) -> PairOptions:
    """Replace quantile thresholds in the options by rewards, given the rewards of all candidates."""
    high, low = (_value(rewards, threshold) for threshold in (options.high, options.low))
    if low > high:
        raise ConfigError(f"low: got {options.low} ({low!r}), expected at most high, {options.high} ({high!r})")
    return options.model_copy(update={"high": Threshold(high), "low": Threshold(low)})


def _value(rewards: Floats, threshold: Threshold) -> float:
    if not threshold.is_quantile or not len(rewards):
        return threshold.value
    # `inverted_cdf` gives a reward that occurs, without interpolation.
    return float(np.quantile(rewards, threshold.value, method="inverted_cdf"))


Planner = Callable[[PartitionState], pl.DataFrame]


def in_groups(pick: Callable[[Candidates, PairOptions], RowPairs]) -> Planner:
    """Return a strategy that pairs rows within groups with `pick`."""

    def plan(state: PartitionState) -> pl.DataFrame:
        state.rows, candidates = assign_groups(state.rows, state.options)
        state.candidates = candidates
        pairs = pick(candidates, state.options)
        gave = count_groups(candidates, pairs, state.options, state.funnel)
        count_group_pairs(candidates, gave, len(pairs.chosen), state.options, state.funnel)
        return drafts_of(candidates, pairs)

    return plan


def plan_stratified(state: PartitionState) -> pl.DataFrame:
    """Return drafts of high against low candidates, within groups, or at any prompts if `across_groups` is set."""
    if not state.options.across_groups:
        return in_groups(_high_with_low)(state)
    candidates = state.candidates = candidates_of(state.rows)
    dealt = _deal_lows(candidates, state.options)
    state.funnel.stage("pairs", len(dealt.chosen))
    drafts = drafts_of(candidates, dealt)
    # Pairs across groups were not checked before, so all reasons are counted on drafts.
    checks = [(Reason.TIED, pl.col("gap") <= 0), *state.gap_checks()]
    return state.drop_where(drafts, [*checks, (Reason.IDENTICAL, pl.col("chosen_hash") == pl.col("rejected_hash"))])


@dataclass(frozen=True)
class Group:
    """The candidates of one prompt and task, for a custom strategy; the best reward comes first.

    rewards         their rewards, descending
    uids            their ids in the experience table
    num_characters  the lengths of their completions
    models          the models that generated them, None if unknown
    """

    rewards: list[float]
    uids: list[str]
    num_characters: list[int]
    models: list[str | None]


def own_strategy(pick: Callable[[Group, PairOptions], Iterable[tuple[int, int]]]) -> Planner:
    """Return a strategy from a function that picks (chosen, rejected) positions of each group.

    Pairs with tied rewards, a gap out of bounds or identical completions are left out, as in all strategies. An invalid
    position, or a chosen reward below the rejected one, is an error.
    """

    def pairs_of(candidates: Candidates, options: PairOptions) -> RowPairs:
        columns = candidates.frame.select("reward", "uid", "num_characters", "model_version")
        places: set[tuple[int, int]] = set()
        for start, end in pairwise(candidates.starts.tolist()):
            group = Group(*(column.to_list() for column in columns[start:end]))
            for chosen, rejected in pick(group, options):
                if not 0 <= chosen < rejected < end - start:
                    raise PairwrightError(
                        f"strategy {options.strategy}: picked ({chosen}, {rejected}) in a group of {end - start}; "
                        "expected 0 <= chosen < rejected, since the best reward comes first"
                    )
                places.add((start + chosen, start + rejected))
        rows = np.array(sorted(places), np.int64).reshape(-1, 2)
        allowed = group_pairs(candidates, options, largest=None)
        codes = (allowed.chosen << 32) | allowed.rejected
        return allowed.select(np.isin(codes, (rows[:, 0] << 32) | rows[:, 1]))

    return in_groups(pairs_of)


STRATEGIES: dict[str, Planner] = {
    "all": in_groups(lambda rows, options: group_pairs(rows, options, largest=options.max_pairs_per_group)),
    # If the best and the worst completion are identical, the pair with the next largest gap is used.
    "best-worst": in_groups(lambda rows, options: group_pairs(rows, options, largest=1)),
    "stratified": plan_stratified,
    "divergence": plan_divergence,
    "teachers": plan_teachers,
    "imported": plan_imported,
}
# Rows of these strategies may be split by prompt hash unless `across_groups` is set.
IN_GROUPS = ("all", "best-worst", "stratified")


def find_strategy(name: str) -> Planner:
    """Return a strategy of `STRATEGIES`, or the user's `file.py:FUNCTION` or entry point."""
    return STRATEGIES[name] if name in STRATEGIES else own_strategy(load_function(name, group=OWN_STRATEGIES))


def compares_groups(name: str) -> bool:
    """Return whether a strategy needs only the rows of one group at a time; custom strategies do."""
    return name in IN_GROUPS or name not in STRATEGIES

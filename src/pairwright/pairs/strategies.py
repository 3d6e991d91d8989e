"""The strategies by name: each turns the rows of a partition into drafts, and counts what it leaves.

`IN_GROUPS` are those that need nothing but the rows of a group, so that rows may be parted by prompt hash.
"""

from collections.abc import Callable

import polars as pl

from pairwright.pairs.candidates import Candidates, candidates_of, grouped
from pairwright.pairs.divergence import plan_divergence
from pairwright.pairs.drafts import drafts_of
from pairwright.pairs.funnel import Reason
from pairwright.pairs.gap_funnel import count_group_pairs, count_groups
from pairwright.pairs.gaps import tied_rewards
from pairwright.pairs.given import plan_given
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pairing import RowPairs, group_pairs
from pairwright.pairs.stratified import across_groups_pairs, stratified_pairs
from pairwright.pairs.teachers import plan_teachers
from pairwright.pairs.work import Work

Planner = Callable[[Work], pl.DataFrame]


def in_groups(pick: Callable[[Candidates, PairOptions], RowPairs]) -> Planner:
    """A strategy that picks pairs of rows inside groups."""

    def plan(work: Work) -> pl.DataFrame:
        work.rows, candidates = grouped(work.rows, work.options)
        work.candidates = candidates
        pairs = pick(candidates, work.options)
        gave = count_groups(candidates, pairs, work.options, work.funnel)
        count_group_pairs(candidates, gave, len(pairs.chosen), work.options, work.funnel)
        return drafts_of(candidates, pairs)

    return plan


def all_pairs(candidates: Candidates, options: PairOptions) -> RowPairs:
    """Every two candidates of a group with different rewards, or the `max_pairs_per_group` with the largest gaps."""
    return group_pairs(candidates, options, largest=options.max_pairs_per_group)


def best_worst_pairs(candidates: Candidates, options: PairOptions) -> RowPairs:
    """The best against the worst of each group, one pair a group.

    Where they are the same completion, the next largest gap between two different ones takes their place.
    """
    return group_pairs(candidates, options, largest=1)


def plan_stratified(work: Work) -> pl.DataFrame:
    """High against low, inside groups unless asked for otherwise."""
    if not work.options.across_groups:
        return in_groups(stratified_pairs)(work)
    candidates = work.candidates = candidates_of(work.rows)
    dealt = across_groups_pairs(candidates, work.options)
    work.funnel.stage("pairs", len(dealt.chosen))
    drafts = drafts_of(candidates, dealt)
    gap, options = pl.col("gap"), work.options
    for reason, bad in (
        (Reason.TIED, tied_rewards(options.tie_tolerance) | (gap <= 0)),
        (Reason.BELOW_GAP, gap < options.min_gap),
        (Reason.ABOVE_GAP, gap > (float("inf") if options.max_gap is None else options.max_gap)),
        (Reason.IDENTICAL, pl.col("chosen_hash") == pl.col("rejected_hash")),
    ):
        drafts = work.drop(drafts, reason, drafts.select(bad.alias("bad")).to_series())
    return drafts


STRATEGIES: dict[str, Planner] = {
    "all": in_groups(all_pairs),
    "best-worst": in_groups(best_worst_pairs),
    "stratified": plan_stratified,
    "divergence": plan_divergence,
    "teachers": plan_teachers,
    "imported": plan_given,
}
IN_GROUPS = ("all", "best-worst", "stratified")

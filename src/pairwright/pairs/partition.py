"""Plan one partition: all rows of a range of prompts, or all rows of the build.

Candidates, the pairs of a strategy, contradictions, duplicates and the cap of a group depend on one prompt only, so
they are final here. Selection among all partitions follows in pairs/selection.py. For strategies that compare groups,
planning is a pure function of its arguments and reads no table, so partitions can be planned in any process.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from pairwright.pairs.candidates.candidates import (
    Floats,
    Scale,
    assign_groups,
    candidates_of,
    group_keys,
    is_tied,
    reward_gaps,
    scales_of,
    with_reasons,
)
from pairwright.pairs.funnel import Funnel, Reason
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition_state import Clues, PartitionState, clues_of
from pairwright.pairs.prompt_filters import filter_drafts
from pairwright.pairs.strategies.strategies import find_strategy
from pairwright.pairs.strategies.votes import Votes, plan_votes
from pairwright.store.table import Table

# Reasons of rows that belong to a group: candidates, single candidates and repeated candidates.
_COMPARABLE = (None, Reason.SINGLE.value, Reason.REPEATED_CANDIDATE.value)
_LOST = {"row": pl.Int64, "lost": pl.String}


@dataclass(frozen=True)
class PartitionPlan:
    """The result of planning a partition.

    drafts        the drafts, in order
    experiences   `reason` of each row, null for candidates; `lost`: the reason if a candidate ends up in no pair
    steps         mark of the task and step of each group: groups with equal marks have different prompts
    tasks         task id and reward of each candidate if there is a curriculum, else no rows
    """

    drafts: pl.DataFrame
    experiences: pl.DataFrame
    steps: pl.DataFrame
    tasks: pl.DataFrame
    funnel: Funnel
    scales: dict[str, Scale]
    clues: Clues


def plan_partition(
    rows: pl.DataFrame, options: PairOptions, *, tables: Sequence[Table] = (), votes: Votes | None = None
) -> PartitionPlan:
    """Plan the rows of a partition.

    Args:
        rows: Narrow rows of the partition.
        options: Options of the build; thresholds must be rewards, not quantiles.
        tables: All tables, for strategies that read texts.
        votes: Pairwise votes, which replace the strategy.
    """
    state = PartitionState(tables, options, with_reasons(rows, options))
    drafts = find_strategy(options.strategy)(state) if votes is None else plan_votes(state, votes)
    drafts = filter_drafts(drafts, state)
    comparable = state.rows.filter(pl.col("reason").is_in(_COMPARABLE, nulls_equal=True))
    groups = comparable.select(group_keys(options)).unique()
    tasks = state.rows.filter(pl.col("reason").is_null()).select("tid", "reward")
    single = pl.col("reason") == Reason.SINGLE.value
    return PartitionPlan(
        drafts=drafts,
        experiences=_by_prompt(comparable, state)
        .select("prompt_hash", "uid", "row", "reason", pl.when(single).then(mark_of_step(options)).alias("mark"))
        .join(_lost(state), on="row", how="left", maintain_order="left"),
        steps=groups.select(mark_of_step(options).alias("mark")),
        tasks=tasks if options.has_curriculum else tasks.clear(),
        funnel=state.funnel,
        scales=scales_of(state.rows),
        clues=clues_of(state.candidates, options),
    )


def candidate_rewards(rows: pl.DataFrame, options: PairOptions) -> Floats:
    """Return the rewards of the rows that are candidates, to compute quantile thresholds."""
    rows = with_reasons(rows, options)
    candidates = candidates_of(rows) if options.across_groups else assign_groups(rows, options)[1]
    return candidates.rewards


def mark_of_step(options: PairOptions) -> pl.Expr:
    """Polars expression for a 128-bit hash of task and step; it is used during a build and never stored."""
    step = pl.struct(name for name in group_keys(options) if name != "prompt_hash")
    # Two 64-bit hashes with different seeds.
    return pl.struct(step.hash(1).alias("one"), step.hash(2).alias("other"))


def _by_prompt(comparable: pl.DataFrame, state: PartitionState) -> pl.DataFrame:
    """Sort rows by prompt; for strategies in groups, comparable rows keep their order and come before others."""
    by_id = ["prompt_hash", "uid", "reason", "row"]
    if state.candidates is None or state.options.across_groups:
        return state.rows.sort(by_id)
    if comparable.height == state.rows.height:
        return state.rows
    others = state.rows.filter(~pl.col("reason").is_in(_COMPARABLE, nulls_equal=True)).sort(by_id)
    return pl.concat([comparable, others]).sort("prompt_hash", maintain_order=True)


def _lost(state: PartitionState) -> pl.DataFrame:
    """Return for each candidate why its last draft was dropped, or why it never had one."""
    late = pl.DataFrame(schema=_LOST)
    if state.lost:
        # Frames are in the order of dropping: use the reason of a row's last draft.
        gone = [lost.with_columns(place=pl.lit(number)) for number, lost in enumerate(state.lost)]
        rows = pl.concat(
            [pl.concat(gone).select("place", "reason", row=f"{side}_row") for side in ("chosen", "rejected")]
        )
        late = rows.sort("place").group_by("row").agg(pl.col("reason").last().alias("lost"))
    early = _never_paired(state)
    return pl.concat([late, early.join(late, on="row", how="anti")]) if late.height else early


def _never_paired(state: PartitionState) -> pl.DataFrame:
    """Return for each candidate the reason that applies if it is in no draft."""
    candidates, options = state.candidates, state.options
    if candidates is None or not candidates.frame.height:
        return pl.DataFrame(schema=_LOST)
    rewards, groups = candidates.rewards, candidates.groups
    # Rows are sorted by descending reward, so a group's first row is its best and its last row its worst.
    best, worst = rewards[candidates.starts[:-1]][groups], rewards[candidates.starts[1:] - 1][groups]
    near = [options.min_gap]
    # The largest gap between a row and any other row of its group.
    largest = np.maximum(reward_gaps(best, rewards, near=near), reward_gaps(rewards, worst, near=near))
    tied = pl.lit(pl.Series(is_tied(best, worst, options.tie_tolerance)))
    below = pl.lit(pl.Series(largest < options.min_gap))
    picked = Reason.GROUP_CAP if options.strategy == "all" else Reason.NOT_PICKED
    reason = pl.when(tied).then(pl.lit(Reason.TIED.value)).when(below).then(pl.lit(Reason.BELOW_GAP.value))
    return candidates.frame.select("row", reason.otherwise(pl.lit(picked.value)).alias("lost"))

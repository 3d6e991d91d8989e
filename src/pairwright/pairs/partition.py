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
    Flags,
    Floats,
    Scale,
    assign_groups,
    candidates_of,
    group_keys,
    is_tied,
    is_tied_expression,
    reward_gaps,
    scales_of,
    with_reasons,
)
from pairwright.pairs.funnel import Funnel, Reason
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition_state import Clues, PartitionState, clues_of
from pairwright.pairs.strategies.pairing import HASHES
from pairwright.pairs.strategies.strategies import find_strategy
from pairwright.pairs.strategies.votes import Votes, plan_votes
from pairwright.store.table import Table

# Reasons of rows that belong to a group: candidates, single candidates and repeated candidates.
_COMPARABLE = (None, Reason.SINGLE.value, Reason.REPEATED_CANDIDATE.value)
_LOST = {"row": pl.Int64, "lost": pl.String}
# Arguments of `sort`: the largest gap first, ties by content.
_BEST_FIRST = {"by": ["gap", "key", "chosen_uid", "rejected_uid"], "descending": [True, False, False, False]}


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
    """Plan the narrow rows of a partition; thresholds in the options must be rewards, not quantiles.

    `tables` are for strategies that read texts; `votes` on pairs replace the strategy.
    """
    state = PartitionState(tables, options, with_reasons(rows, options))
    drafts = find_strategy(options.strategy)(state) if votes is None else plan_votes(state, votes)
    drafts = _filter_drafts(drafts, state)
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
    return pl.struct(step.hash(1).alias("one"), step.hash(2).alias("other"))


def _filter_drafts(drafts: pl.DataFrame, state: PartitionState) -> pl.DataFrame:
    """Drop contradictions, duplicates and drafts beyond the cap of their group; keeps the order of the others."""
    drafts = state.drop(drafts, Reason.CONTRADICTION, _has_contradiction(drafts, state))
    if state.options.dedupe and not state.options.verbatim:
        drafts = state.drop(drafts, Reason.DUPLICATE, _beyond(drafts, by="key", most=1))
    if state.options.max_pairs_per_group is not None:
        most = state.options.max_pairs_per_group
        drafts = state.drop(drafts, Reason.GROUP_CAP, _beyond(drafts, by="group", most=most))
    return drafts


def _has_contradiction(drafts: pl.DataFrame, state: PartitionState) -> Flags:
    """Mask of drafts to drop as contradictions at their prompt."""
    policy = state.options.contradictions
    if policy == "keep" or state.options.verbatim or not drafts.height:
        return np.zeros(drafts.height, np.bool_)
    preferences = _count_in_groups(drafts, state) if state.candidates is not None else _count_in_drafts(drafts)
    if not preferences.height:
        return np.zeros(drafts.height, np.bool_)
    counts = drafts.select(HASHES).join(preferences, on=HASHES, how="left", maintain_order="left")
    against = counts["against"].fill_null(0)
    # `drop` removes every contradicted preference, `majority` keeps those seen more often than their opposite.
    bad = against > 0 if policy == "drop" else (against > 0) & (against >= counts["for"].fill_null(1))
    return bad.to_numpy()


def _beyond(drafts: pl.DataFrame, *, by: str, most: int) -> Flags:
    """Mask of drafts that are not among the `most` largest gaps with the same value of column `by`."""
    if drafts[by].n_unique() == drafts.height:
        return np.zeros(drafts.height, np.bool_)
    order = drafts.with_row_index("place").sort(**_BEST_FIRST)  # type: ignore[arg-type]
    rank = order.select("place", rank=pl.int_range(pl.len()).over(by)).sort("place")["rank"]
    return (rank >= most).to_numpy()


def _count_in_drafts(drafts: pl.DataFrame) -> pl.DataFrame:
    """Count how often each preference (`for`) and its opposite (`against`) occur among the drafts."""
    counts = drafts.group_by(HASHES).agg(pl.len().alias("for"))
    opposite = counts.rename({"chosen_hash": "rejected_hash", "rejected_hash": "chosen_hash", "for": "against"})
    return counts.join(opposite, on=HASHES, how="left")


def _count_in_groups(drafts: pl.DataFrame, state: PartitionState) -> pl.DataFrame:
    """Count preferences and opposites among all comparisons of groups in which a completion has several rewards."""
    assert state.candidates is not None
    rows = state.candidates.frame.select("prompt_hash", "completion_hash", "reward")[state.candidates.recurring]
    rewards = rows.group_by("prompt_hash", "completion_hash").agg(pl.col("reward").n_unique())
    noisy = rewards.filter(pl.col("reward") > 1).select("prompt_hash").unique()
    if not noisy.height:
        return pl.DataFrame(schema=dict.fromkeys(HASHES, pl.String))
    usable = pl.col("reason").is_null() | (pl.col("reason") == Reason.REPEATED_CANDIDATE.value)
    rows = state.rows.filter(usable).join(noisy, on="prompt_hash", how="semi")
    keys = group_keys(state.options)
    rows = rows.group_by(*keys, "completion_hash", "reward").len()
    pairs = drafts.select(HASHES).unique().join(noisy, on="prompt_hash", how="semi")
    # Self-join of a group: every (chosen reward, rejected reward) with the completions of a draft.
    chosen = rows.rename({"completion_hash": "chosen_hash", "reward": "chosen_reward", "len": "num_chosen"})
    rejected = rows.rename({"completion_hash": "rejected_hash", "reward": "rejected_reward", "len": "num_rejected"})
    both = pairs.join(chosen, on=["prompt_hash", "chosen_hash"])
    both = both.join(rejected, on=[*keys, "rejected_hash"], nulls_equal=True)  # collected rows have no source
    # Rows were counted by reward, so one joined row represents several comparisons.
    times = pl.col("num_chosen") * pl.col("num_rejected")
    both = both.filter(~is_tied_expression(state.options.tie_tolerance))
    return both.group_by(HASHES).agg(
        pl.when(pl.col("chosen_reward") > pl.col("rejected_reward")).then(times).sum().alias("for"),
        pl.when(pl.col("chosen_reward") < pl.col("rejected_reward")).then(times).sum().alias("against"),
    )


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

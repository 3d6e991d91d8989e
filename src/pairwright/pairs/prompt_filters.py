"""Filters within a prompt: contradictions, duplicates, cap of a group."""

import numpy as np
import polars as pl

from pairwright.pairs.candidates.candidates import (
    Flags,
    group_keys,
    is_tied_expression,
)
from pairwright.pairs.funnel import Reason
from pairwright.pairs.partition_state import PartitionState
from pairwright.pairs.strategies.pairing import HASHES

# Arguments of `sort`: the largest gap first, ties by content.
_BEST_FIRST = {"by": ["gap", "key", "chosen_uid", "rejected_uid"], "descending": [True, False, False, False]}


def filter_drafts(drafts: pl.DataFrame, state: PartitionState) -> pl.DataFrame:
    """Drop contradictions, duplicates and drafts beyond the cap of their group; keeps the order of the others."""
    drafts = state.drop(drafts, Reason.CONTRADICTION, _has_contradiction(drafts, state))
    if state.options.dedupe and not state.options.verbatim:
        drafts = state.drop(drafts, Reason.DUPLICATE, _beyond(drafts, by="key", most=1))
    if state.options.max_pairs_per_group is not None:
        most = state.options.max_pairs_per_group
        drafts = state.drop(drafts, Reason.GROUP_CAP, _beyond(drafts, by="group", most=most))
    return drafts


def _has_contradiction(drafts: pl.DataFrame, state: PartitionState) -> Flags:
    """Mask of drafts to drop as contradictions.

    Policy `drop`: the opposite preference occurs at the same prompt. Policy `majority`: it occurs at least as often.
    """
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
    # The rank of each draft among drafts with the same `by`, in the original order of drafts.
    order = drafts.with_row_index("place").sort(**_BEST_FIRST)  # type: ignore[arg-type]
    rank = order.select("place", rank=pl.int_range(pl.len()).over(by)).sort("place")["rank"]
    return (rank >= most).to_numpy()


def _count_in_drafts(drafts: pl.DataFrame) -> pl.DataFrame:
    """Count how often each preference (`for`) and its opposite (`against`) occur among the drafts."""
    counts = drafts.group_by(HASHES).agg(pl.len().alias("for"))
    opposite = counts.rename({"chosen_hash": "rejected_hash", "rejected_hash": "chosen_hash", "for": "against"})
    return counts.join(opposite, on=HASHES, how="left")


def _count_in_groups(drafts: pl.DataFrame, state: PartitionState) -> pl.DataFrame:
    """Count preferences and opposites among all possible comparisons within groups, drafted or not.

    Only prompts at which one completion has several rewards can have contradictions; others are not in the result.
    """
    assert state.candidates is not None
    rows = state.candidates.frame.select("prompt_hash", "completion_hash", "reward")[state.candidates.recurring]
    rewards = rows.group_by("prompt_hash", "completion_hash").agg(pl.col("reward").n_unique())
    # Prompts at which one completion has several rewards.
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

"""Contradictions, duplicates, and the cap of a group: what can be decided where all that shares a prompt is at hand.

Every step orders what it keeps by gap and then by key, so the same drafts in any order give the same result.
"""

import numpy as np
import polars as pl

from pairwright.pairs.candidates import Flags, group_keys
from pairwright.pairs.drafts import HASHES
from pairwright.pairs.funnel import Reason
from pairwright.pairs.gaps import tied_rewards
from pairwright.pairs.work import Work

_BEST_FIRST = {"by": ["gap", "key", "chosen_uid", "rejected_uid"], "descending": [True, False, False, False]}


def filtered(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """The drafts that contradict nothing, once each, and not more of a group than are wanted; their order stays."""
    drafts = work.drop(drafts, Reason.CONTRADICTION, _contradicted(drafts, work))
    if work.options.dedupe:
        drafts = work.drop(drafts, Reason.DUPLICATE, _beyond(drafts, by="key", most=1))
    if work.options.max_pairs_per_group is not None:
        most = work.options.max_pairs_per_group
        drafts = work.drop(drafts, Reason.GROUP_CAP, _beyond(drafts, by="group", most=most))
    return drafts


def _contradicted(drafts: pl.DataFrame, work: Work) -> Flags:
    """Where the opposite was seen at the same prompt, or where it was seen as often or more."""
    policy = work.options.contradictions
    if policy == "keep" or not drafts.height:
        return np.zeros(drafts.height, np.bool_)
    seen = _seen_in_groups(drafts, work) if work.candidates is not None else _seen_in_drafts(drafts)
    if not seen.height:
        return np.zeros(drafts.height, np.bool_)
    counts = drafts.select(HASHES).join(seen, on=HASHES, how="left", maintain_order="left")
    against = counts["against"].fill_null(0)
    bad = against > 0 if policy == "drop" else (against > 0) & (against >= counts["for"].fill_null(1))
    return bad.to_numpy()


def _beyond(drafts: pl.DataFrame, *, by: str, most: int) -> Flags:
    """The drafts of each `by` that are not among its first `most`, from the largest gap down."""
    if drafts[by].n_unique() == drafts.height:
        return np.zeros(drafts.height, np.bool_)
    order = drafts.with_row_index("place").sort(**_BEST_FIRST)  # type: ignore[arg-type]
    rank = order.select("place", rank=pl.int_range(pl.len()).over(by)).sort("place")["rank"]
    return (rank >= most).to_numpy()


def _seen_in_drafts(drafts: pl.DataFrame) -> pl.DataFrame:
    """How often each preference is among the drafts, and how often its opposite."""
    counts = drafts.group_by(HASHES).agg(pl.len().alias("for"))
    opposite = counts.rename({"chosen_hash": "rejected_hash", "rejected_hash": "chosen_hash", "for": "against"})
    return counts.join(opposite, on=HASHES, how="left")


def _seen_in_groups(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """The same among all comparisons that the groups of a prompt allow, whether or not a draft was made of them.

    Only a prompt at which one completion has several rewards can contradict itself; the others are left out here.
    """
    assert work.candidates is not None
    rows = work.candidates.frame.select("prompt_hash", "completion_hash", "reward")[work.candidates.recurring]
    rewards = rows.group_by("prompt_hash", "completion_hash").agg(pl.col("reward").n_unique())
    noisy = rewards.filter(pl.col("reward") > 1).select("prompt_hash").unique()
    if not noisy.height:
        return pl.DataFrame(schema=dict.fromkeys(HASHES, pl.String))
    usable = pl.col("reason").is_null() | (pl.col("reason") == Reason.REPEATED_CANDIDATE.value)
    rows = work.rows.filter(usable).join(noisy, on="prompt_hash", how="semi")
    keys = group_keys(work.options)
    rows = rows.group_by(*keys, "completion_hash", "reward").len()
    pairs = drafts.select(HASHES).unique().join(noisy, on="prompt_hash", how="semi")
    chosen = rows.rename({"completion_hash": "chosen_hash", "reward": "chosen_reward", "len": "num_chosen"})
    rejected = rows.rename({"completion_hash": "rejected_hash", "reward": "rejected_reward", "len": "num_rejected"})
    both = pairs.join(chosen, on=["prompt_hash", "chosen_hash"])
    both = both.join(rejected, on=[*keys, "rejected_hash"], nulls_equal=True)  # what was collected has no source
    times = pl.col("num_chosen") * pl.col("num_rejected")
    both = both.filter(~tied_rewards(work.options.tie_tolerance))
    return both.group_by(HASHES).agg(
        pl.when(pl.col("chosen_reward") > pl.col("rejected_reward")).then(times).sum().alias("for"),
        pl.when(pl.col("chosen_reward") < pl.col("rejected_reward")).then(times).sum().alias("against"),
    )

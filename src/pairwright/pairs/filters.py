"""What becomes of drafts, in this order: contradictions, duplicates, curriculum, caps, sample. Each drop is counted.

Every step orders what it keeps by gap and then by key, so the same drafts in any order give the same result.
"""

import numpy as np
import polars as pl

from pairwright.pairs.candidates import GROUP_KEYS
from pairwright.pairs.drafts import ordered, seeded_hashes
from pairwright.pairs.funnel import Reason
from pairwright.pairs.work import Work

_CONTENT = ["prompt_hash", "chosen_hash", "rejected_hash"]
_BEST_FIRST = {"by": ["gap", "key", "chosen_uid", "rejected_uid"], "descending": [True, False, False, False]}


def filtered(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """The drafts that become pairs, in order."""
    drafts = without_contradictions(ordered(drafts), work)
    if work.options.dedupe:
        drafts = _beyond(drafts, work, Reason.DUPLICATE, by="key", most=1)
    drafts = within_curriculum(drafts, work)
    if work.options.max_pairs_per_group is not None:
        drafts = _beyond(drafts, work, Reason.GROUP_CAP, by="group", most=work.options.max_pairs_per_group)
    if work.options.max_pairs_per_task is not None:
        drafts = _beyond(drafts, work, Reason.TASK_CAP, by="tid", most=work.options.max_pairs_per_task)
    return sampled(drafts, work)


def without_contradictions(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """Drop a pair where the opposite was seen at the same prompt, or where it was seen as often or more."""
    policy = work.options.contradictions
    if policy == "keep" or not drafts.height:
        return drafts
    seen = _seen_in_groups(drafts, work) if work.candidates is not None else _seen_in_drafts(drafts)
    counts = drafts.select(_CONTENT).join(seen, on=_CONTENT, how="left", maintain_order="left")
    against = counts["against"].fill_null(0)
    bad = against > 0 if policy == "drop" else (against > 0) & (against >= counts["for"].fill_null(1))
    return work.drop(drafts, Reason.CONTRADICTION, bad)


def within_curriculum(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """Only the tasks that come first in curriculum order, where a share is asked for."""
    share = work.options.curriculum_share
    if share is None or not drafts.height:
        return drafts
    ranks = task_ranks(work)
    most = max(1, round(share * ranks.height))
    rank = drafts.select("tid").join(ranks, on="tid", how="left", maintain_order="left")["rank"]
    return work.drop(drafts, Reason.CURRICULUM, rank.fill_null(0) >= most)


def task_ranks(work: Work) -> pl.DataFrame:
    """The tasks that have candidates, by their mean reward: easy (high) first, or hard first; ties by id."""
    rows = work.rows.filter(pl.col("reason").is_null()).select("tid", "reward").sort("tid", "reward")
    means = rows.group_by("tid", maintain_order=True).agg(pl.col("reward").mean())
    easy_first = work.options.curriculum != "hard-first"
    return means.sort("reward", "tid", descending=[easy_first, False]).select("tid").with_row_index("rank")


def sampled(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """At most `max_pairs`: those whose hash of seed and key is smallest."""
    most = work.options.max_pairs
    if most is None or drafts.height <= most:
        return drafts
    hashes = seeded_hashes(drafts["key"], work.options.seed)
    place = np.empty(drafts.height, np.int64)
    place[np.lexsort([np.arange(drafts.height), hashes])] = np.arange(drafts.height)
    return work.drop(drafts, Reason.SAMPLED, place >= most)


def _beyond(drafts: pl.DataFrame, work: Work, reason: Reason, *, by: str, most: int) -> pl.DataFrame:
    order = drafts.with_row_index("place").sort(**_BEST_FIRST)  # type: ignore[arg-type]
    rank = order.select("place", rank=pl.int_range(pl.len()).over(by)).sort("place")["rank"]
    return work.drop(drafts, reason, rank >= most)


def _seen_in_drafts(drafts: pl.DataFrame) -> pl.DataFrame:
    """How often each preference is among the drafts, and how often its opposite."""
    counts = drafts.group_by(_CONTENT).agg(pl.len().alias("for"))
    opposite = counts.rename({"chosen_hash": "rejected_hash", "rejected_hash": "chosen_hash", "for": "against"})
    return counts.join(opposite, on=_CONTENT, how="left")


def _seen_in_groups(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """The same among all comparisons that the groups of a prompt allow, whether or not a draft was made of them."""
    usable = pl.col("reason").is_null() | (pl.col("reason") == Reason.REPEATED_CANDIDATE.value)
    rows = work.rows.filter(usable).select(*GROUP_KEYS, "completion_hash", "reward")
    noisy = (
        rows.group_by("prompt_hash", "completion_hash").agg(pl.col("reward").n_unique()).filter(pl.col("reward") > 1)
    )
    rows = rows.join(noisy.select("prompt_hash").unique(), on="prompt_hash", how="semi")
    rows = rows.group_by(*GROUP_KEYS, "completion_hash", "reward").len()
    pairs = drafts.select(_CONTENT).unique().join(rows.select("prompt_hash").unique(), on="prompt_hash", how="semi")
    chosen = rows.rename({"completion_hash": "chosen_hash", "reward": "chosen_reward", "len": "num_chosen"})
    rejected = rows.rename({"completion_hash": "rejected_hash", "reward": "rejected_reward", "len": "num_rejected"})
    both = pairs.join(chosen, on=["prompt_hash", "chosen_hash"]).join(rejected, on=[*GROUP_KEYS, "rejected_hash"])
    times = pl.col("num_chosen") * pl.col("num_rejected")
    return both.group_by(_CONTENT).agg(
        pl.when(pl.col("chosen_reward") > pl.col("rejected_reward")).then(times).sum().alias("for"),
        pl.when(pl.col("chosen_reward") < pl.col("rejected_reward")).then(times).sum().alias("against"),
    )

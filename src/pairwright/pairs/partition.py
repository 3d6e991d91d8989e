"""The plan of one partition: all rows of some prompts, or all rows there are. A function of its rows and the options.

What a partition decides alone is final: who is a candidate, which pairs a strategy makes, contradictions, duplicates
and the cap of a group never look beyond one prompt. What needs all partitions (selection.py) comes after. For the
strategies in groups no table is read and nothing but the arguments matters, so that partitions may be planned anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from pairwright.pairs.candidates.candidates import Flags, assign_groups, candidates_of, group_keys, with_reasons
from pairwright.pairs.candidates.gaps import Floats, Scale, is_tied, is_tied_expression, reward_gaps, scales_of
from pairwright.pairs.funnel import Funnel, Reason
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition_state import Work
from pairwright.pairs.strategies.pairing import HASHES
from pairwright.pairs.strategies.strategies import STRATEGIES
from pairwright.pairs.strategies.votes import Votes, plan_votes
from pairwright.pairs.why_empty import Clues, clues_of
from pairwright.store.table import Table

# Contradictions, duplicates, and the cap of a group: what can be decided where all that shares a prompt is at hand.

# Arguments of `sort`: the largest gap first, ties by content.
_BEST_FIRST = {"by": ["gap", "key", "chosen_uid", "rejected_uid"], "descending": [True, False, False, False]}


def filter_drafts(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """The drafts that contradict nothing, once each, and not more of a group than are wanted; their order stays."""
    drafts = work.drop(drafts, Reason.CONTRADICTION, _has_contradiction(drafts, work))
    if work.options.dedupe and not work.options.verbatim:
        drafts = work.drop(drafts, Reason.DUPLICATE, _beyond(drafts, by="key", most=1))
    if work.options.max_pairs_per_group is not None:
        most = work.options.max_pairs_per_group
        drafts = work.drop(drafts, Reason.GROUP_CAP, _beyond(drafts, by="group", most=most))
    return drafts


def _has_contradiction(drafts: pl.DataFrame, work: Work) -> Flags:
    """Where the opposite was seen at the same prompt, or where it was seen as often or more."""
    policy = work.options.contradictions
    if policy == "keep" or work.options.verbatim or not drafts.height:
        return np.zeros(drafts.height, np.bool_)
    preferences = _count_in_groups(drafts, work) if work.candidates is not None else _count_in_drafts(drafts)
    if not preferences.height:
        return np.zeros(drafts.height, np.bool_)
    counts = drafts.select(HASHES).join(preferences, on=HASHES, how="left", maintain_order="left")
    against = counts["against"].fill_null(0)
    # `drop` lets no contradicted preference through, `majority` those that were seen more often than their opposite.
    bad = against > 0 if policy == "drop" else (against > 0) & (against >= counts["for"].fill_null(1))
    return bad.to_numpy()


def _beyond(drafts: pl.DataFrame, *, by: str, most: int) -> Flags:
    """The drafts of each `by` that are not among its first `most`, from the largest gap down."""
    if drafts[by].n_unique() == drafts.height:
        return np.zeros(drafts.height, np.bool_)
    # The rank of each draft within its `by`, brought back into the order of the drafts.
    order = drafts.with_row_index("place").sort(**_BEST_FIRST)  # type: ignore[arg-type]
    rank = order.select("place", rank=pl.int_range(pl.len()).over(by)).sort("place")["rank"]
    return (rank >= most).to_numpy()


def _count_in_drafts(drafts: pl.DataFrame) -> pl.DataFrame:
    """How often each preference is among the drafts, and how often its opposite."""
    counts = drafts.group_by(HASHES).agg(pl.len().alias("for"))
    opposite = counts.rename({"chosen_hash": "rejected_hash", "rejected_hash": "chosen_hash", "for": "against"})
    return counts.join(opposite, on=HASHES, how="left")


def _count_in_groups(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """The same among all comparisons that the groups of a prompt allow, whether or not a draft was made of them.

    Only a prompt at which one completion has several rewards can contradict itself; the others are left out here.
    """
    assert work.candidates is not None
    rows = work.candidates.frame.select("prompt_hash", "completion_hash", "reward")[work.candidates.recurring]
    rewards = rows.group_by("prompt_hash", "completion_hash").agg(pl.col("reward").n_unique())
    # Prompts at which one completion has several rewards.
    noisy = rewards.filter(pl.col("reward") > 1).select("prompt_hash").unique()
    if not noisy.height:
        return pl.DataFrame(schema=dict.fromkeys(HASHES, pl.String))
    usable = pl.col("reason").is_null() | (pl.col("reason") == Reason.REPEATED_CANDIDATE.value)
    rows = work.rows.filter(usable).join(noisy, on="prompt_hash", how="semi")
    keys = group_keys(work.options)
    rows = rows.group_by(*keys, "completion_hash", "reward").len()
    pairs = drafts.select(HASHES).unique().join(noisy, on="prompt_hash", how="semi")
    # Self-join of a group: every (chosen reward, rejected reward) with the completions of a draft.
    chosen = rows.rename({"completion_hash": "chosen_hash", "reward": "chosen_reward", "len": "num_chosen"})
    rejected = rows.rename({"completion_hash": "rejected_hash", "reward": "rejected_reward", "len": "num_rejected"})
    both = pairs.join(chosen, on=["prompt_hash", "chosen_hash"])
    both = both.join(rejected, on=[*keys, "rejected_hash"], nulls_equal=True)  # what was collected has no source
    # Rows were counted by reward, so one joined row stands for so many comparisons.
    times = pl.col("num_chosen") * pl.col("num_rejected")
    both = both.filter(~is_tied_expression(work.options.tie_tolerance))
    return both.group_by(HASHES).agg(
        pl.when(pl.col("chosen_reward") > pl.col("rejected_reward")).then(times).sum().alias("for"),
        pl.when(pl.col("chosen_reward") < pl.col("rejected_reward")).then(times).sum().alias("against"),
    )


# The plan of one partition: all rows of some prompts, or all rows there are. A function of its rows and the options.

# Rows that stand in a group: candidates, and what only the size of the group or a duplicate keeps out.
_COMPARABLE = (None, Reason.SINGLE.value, Reason.TOO_FEW.value, Reason.REPEATED_CANDIDATE.value)
_LOST = {"row": pl.Int64, "lost": pl.String}


@dataclass(frozen=True)
class PartitionPlan:
    """What a partition gives, and what the whole build wants to know of it.

    drafts        in order
    experiences   the reason of each row, null for candidates, and in `lost` why a candidate would be in no pair
    steps         marks of the task and step of each group: groups that share one have different prompts
    tasks         the rewards of candidates by task, where a curriculum needs them
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
    """Plan the rows of a partition; thresholds in the options are rewards, not quantiles."""
    work = Work(tables, options, with_reasons(rows, options))
    drafts = STRATEGIES[options.strategy](work) if votes is None else plan_votes(work, votes)
    drafts = filter_drafts(drafts, work)
    comparable = work.rows.filter(pl.col("reason").is_in(_COMPARABLE, nulls_equal=True))
    groups = comparable.group_by(group_keys(options)).len()
    tasks = work.rows.filter(pl.col("reason").is_null()).select("tid", "reward")
    single = pl.col("reason") == Reason.SINGLE.value
    return PartitionPlan(
        drafts=drafts,
        experiences=_by_prompt(comparable, work)
        .select("prompt_hash", "uid", "row", "reason", pl.when(single).then(mark_of_step(options)).alias("mark"))
        .join(_lost(work), on="row", how="left", maintain_order="left"),
        steps=groups.select(mark_of_step(options).alias("mark")),
        tasks=tasks if options.has_curriculum else tasks.clear(),
        funnel=work.funnel,
        scales=scales_of(work.rows),
        clues=clues_of(work.candidates, groups.select(pl.col("len").max()).item() or 0, options),
    )


def candidate_rewards(rows: pl.DataFrame, options: PairOptions) -> Floats:
    """The rewards of the rows that are candidates, for quantiles of them."""
    rows = with_reasons(rows, options)
    candidates = candidates_of(rows) if options.across_groups else assign_groups(rows, options)[1]
    return candidates.rewards


def mark_of_step(options: PairOptions) -> pl.Expr:
    """128 bits that stand for a task and step while pairs are being built; they are never written down."""
    step = pl.struct(name for name in group_keys(options) if name != "prompt_hash")
    # Two 64-bit hashes with different seeds.
    return pl.struct(step.hash(1).alias("one"), step.hash(2).alias("other"))


def _by_prompt(comparable: pl.DataFrame, work: Work) -> pl.DataFrame:
    """Rows by prompt. In groups those of one prompt stand as they were compared, and then the others by id."""
    by_id = ["prompt_hash", "uid", "reason", "row"]
    if work.candidates is None or work.options.across_groups:
        return work.rows.sort(by_id)
    if comparable.height == work.rows.height:
        return work.rows
    others = work.rows.filter(~pl.col("reason").is_in(_COMPARABLE, nulls_equal=True)).sort(by_id)
    return pl.concat([comparable, others]).sort("prompt_hash", maintain_order=True)


def _lost(work: Work) -> pl.DataFrame:
    """Why the last of a candidate's pairs went, or why there never was one."""
    late = pl.DataFrame(schema=_LOST)
    if work.lost:
        # Frames in the order of dropping: for each row, the reason of its last draft counts.
        gone = [lost.with_columns(place=pl.lit(number)) for number, lost in enumerate(work.lost)]
        rows = pl.concat(
            [pl.concat(gone).select("place", "reason", row=f"{side}_row") for side in ("chosen", "rejected")]
        )
        late = rows.sort("place").group_by("row").agg(pl.col("reason").last().alias("lost"))
    early = _never_paired(work)
    return pl.concat([late, early.join(late, on="row", how="anti")]) if late.height else early


def _never_paired(work: Work) -> pl.DataFrame:
    candidates, options = work.candidates, work.options
    if candidates is None or not candidates.frame.height:
        return pl.DataFrame(schema=_LOST)
    rewards, groups = candidates.rewards, candidates.groups
    # Rows are sorted by descending reward, so a group's first row is its best and its last row its worst.
    best, worst = rewards[candidates.starts[:-1]][groups], rewards[candidates.starts[1:] - 1][groups]
    near = [options.min_gap]
    # The largest gap that a row could have with any other of its group.
    largest = np.maximum(reward_gaps(best, rewards, near=near), reward_gaps(rewards, worst, near=near))
    tied = pl.lit(pl.Series(is_tied(best, worst, options.tie_tolerance)))
    below = pl.lit(pl.Series(largest < options.min_gap))
    picked = Reason.GROUP_CAP if options.strategy == "all" else Reason.NOT_PICKED
    reason = pl.when(tied).then(pl.lit(Reason.TIED.value)).when(below).then(pl.lit(Reason.BELOW_GAP.value))
    return candidates.frame.select("row", reason.otherwise(pl.lit(picked.value)).alias("lost"))

"""The plan of one partition: all rows of some prompts, or all rows there are. A function of its rows and the options.

What a partition decides alone is final: who is a candidate, which pairs a strategy makes, contradictions, duplicates
and the cap of a group never look beyond one prompt. What needs all partitions (selection.py) comes after. For the
strategies in groups no table is read and nothing but the arguments matters, so that partitions may be planned anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from pairwright.pairs.candidates import candidates_of, group_keys, grouped, with_reasons
from pairwright.pairs.filters import filtered
from pairwright.pairs.funnel import Funnel, Reason
from pairwright.pairs.gaps import Floats, is_tied, reward_gaps
from pairwright.pairs.hints import Clues, clues_of
from pairwright.pairs.options import PairOptions
from pairwright.pairs.scale import Scale, scales_of
from pairwright.pairs.strategies import STRATEGIES
from pairwright.pairs.votes import Votes, plan_votes
from pairwright.pairs.work import Work
from pairwright.store.table import Table

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
    drafts = filtered(drafts, work)
    comparable = work.rows.filter(pl.col("reason").is_in(_COMPARABLE, nulls_equal=True))
    groups = comparable.group_by(group_keys(options)).len()
    tasks = work.rows.filter(pl.col("reason").is_null()).select("tid", "reward")
    single = pl.col("reason") == Reason.SINGLE.value
    return PartitionPlan(
        drafts=drafts,
        experiences=_by_prompt(comparable, work).select(
            "prompt_hash", "uid", "row", "reason", pl.when(single).then(mark_of_step(options)).alias("mark")
        ).join(_lost(work), on="row", how="left", maintain_order="left"),
        steps=groups.select(mark_of_step(options).alias("mark")),
        tasks=tasks if options.has_curriculum else tasks.clear(),
        funnel=work.funnel,
        scales=scales_of(work.rows),
        clues=clues_of(work.candidates, groups.select(pl.col("len").max()).item() or 0, options),
    )  # fmt: skip


def candidate_rewards(rows: pl.DataFrame, options: PairOptions) -> Floats:
    """The rewards of the rows that are candidates, for quantiles of them."""
    rows = with_reasons(rows, options)
    candidates = candidates_of(rows) if options.across_groups else grouped(rows, options)[1]
    return candidates.rewards


def mark_of_step(options: PairOptions) -> pl.Expr:
    """128 bits that stand for a task and step while pairs are being built; they are never written down."""
    step = pl.struct(name for name in group_keys(options) if name != "prompt_hash")
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
    best, worst = rewards[candidates.starts[:-1]][groups], rewards[candidates.starts[1:] - 1][groups]
    near = [options.min_gap]
    largest = np.maximum(reward_gaps(best, rewards, near=near), reward_gaps(rewards, worst, near=near))
    tied = pl.lit(pl.Series(is_tied(best, worst, options.tie_tolerance)))
    below = pl.lit(pl.Series(largest < options.min_gap))
    picked = Reason.GROUP_CAP if options.strategy == "all" else Reason.NOT_PICKED
    reason = pl.when(tied).then(pl.lit(Reason.TIED.value)).when(below).then(pl.lit(Reason.BELOW_GAP.value))
    return candidates.frame.select("row", reason.otherwise(pl.lit(picked.value)).alias("lost"))

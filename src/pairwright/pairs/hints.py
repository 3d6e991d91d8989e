"""When no pair results: which filter removed the last ones, and what value would have let some through."""

import numpy as np
import polars as pl

from pairwright.pairs.candidates import GROUP_KEYS
from pairwright.pairs.funnel import Reason
from pairwright.pairs.gaps import reward_gaps
from pairwright.pairs.work import Work

_ADVICE = {
    Reason.IS_A_PAIR: "--strategy given passes them through",
    Reason.IS_NO_PAIR: "--strategy best-worst makes pairs of scored experiences",
    Reason.UNSCORED: "give them rewards: pairwright import --reward NAME or --scores FILE",
    Reason.FAILED: "--keep-masked lets them through",
    Reason.TRUNCATED: "leave out --drop-truncated",
    Reason.DIFFERENT_PROMPTS: "--strategy divergence compares runs from where they part; --strategy stratified "
    "--across-groups allows different prompts",
    Reason.SINGLE: "run each task more than once, or --strategy stratified --across-groups",
    Reason.CONTRADICTION: "--contradictions majority or keep lets some through",
    Reason.TIED: "only rewards that tell candidates apart give pairs",
    Reason.IDENTICAL: "sample with a higher temperature",
    Reason.LENGTH: "a higher --length-balance, or --balance-by reweight, lets some through",
    Reason.ENVIRONMENT: "--environment-divergence lets them through, marked",
    Reason.NO_TEACHER: "the teachers' tables must have the very prompts of the student's",
    Reason.TEACHERS_DISAGREE: "a lower --min-teachers lets some through",
    Reason.NO_VOTE: "the file of votes names none of these experiences",
    Reason.CURRICULUM: "a larger --curriculum-share lets some through",
}  # fmt: skip


def hint_for(work: Work) -> str:
    """One sentence for a build without pairs."""
    last = next((stage for stage in reversed(work.funnel.stages) if stage.drops), None)
    if last is None:
        return "there was nothing to pair: the tables are empty"
    in_order = last is not work.funnel.stages[0]  # reasons of experiences stand by name, those of pairs by time
    reason, drop = list(last.drops.items())[-1] if in_order else max(last.drops.items(), key=lambda item: item[1].count)
    text = f"no pairs: the last {drop.count:,} {last.unit} went by {reason!r}"
    advice = _value(Reason(reason), work) or _ADVICE.get(Reason(reason))
    text = f"{text}; {advice}" if advice else text
    first = work.funnel.stages[0]
    if first is not last and first.drops:
        reason, drop = max(first.drops.items(), key=lambda item: item[1].count)
        if drop.count * 2 > first.num_in:
            advice = _ADVICE.get(Reason(reason))
            text += f". Before, {drop.count:,} of {first.num_in:,} {first.unit} went by {reason!r}"
            text += f"; {advice}" if advice else ""
    return text


def _value(reason: Reason, work: Work) -> str | None:
    options, candidates = work.options, work.candidates
    if reason is Reason.TOO_FEW:
        usable = pl.col("reason").is_null() | (pl.col("reason") == Reason.TOO_FEW.value)
        most = work.rows.filter(usable).group_by(GROUP_KEYS).len()["len"].max()
        return f"--min-candidates {most!r} would let some through, now {options.min_candidates}"
    if candidates is None or not candidates.frame.height:
        return None
    rewards = candidates.rewards
    best, worst = rewards[candidates.starts[:-1]], rewards[candidates.starts[1:] - 1]
    gaps = reward_gaps(best, worst, near=[options.min_gap])
    if reason is Reason.BELOW_GAP:
        return f"--min-gap {float(gaps.max())!r} would let some through, now {options.min_gap!r}"
    if reason is Reason.ABOVE_GAP:
        steps = reward_gaps(rewards[:-1], rewards[1:])
        inside = (np.diff(candidates.groups) == 0) & (steps > 0)
        least = float(steps[inside].min()) if inside.any() else None
        return f"--max-gap {least!r} would let some through, now {options.max_gap!r}"
    if reason is Reason.NOT_HIGH:
        return f"--high {float(best.max())!r} would let some through, now {options.high}"
    if reason is Reason.NOT_LOW:
        return f"--low {float(worst.min())!r} would let some through, now {options.low}"
    return None

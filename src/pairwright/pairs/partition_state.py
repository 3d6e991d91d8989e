"""State of a partition during planning, with a record of every drop; and hints for a build without pairs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.pairs.candidates.candidates import Candidates, is_tied, is_tied_expression, reward_gaps
from pairwright.pairs.funnel import NUM_EXAMPLES, Funnel, Reason, Stage
from pairwright.pairs.options import PairOptions
from pairwright.records.json_text import from_json
from pairwright.store.table import Table


@dataclass
class PartitionState:
    """Rows with their reasons so far, the funnel, and the dropped drafts.

    `tables` are for strategies that read texts while planning; strategies in groups do not use them.
    """

    tables: Sequence[Table]
    options: PairOptions
    rows: pl.DataFrame
    funnel: Funnel = field(default_factory=Funnel)
    candidates: Candidates | None = None
    # One frame for each reason, in the order of dropping: chosen_row, rejected_row, reason.
    lost: list[pl.DataFrame] = field(default_factory=list)

    @property
    def stage(self) -> Stage:
        """The current stage of the funnel, which is its last one."""
        return self.funnel.stages[-1]

    def drop(self, drafts: pl.DataFrame, reason: Reason, bad: npt.NDArray[np.bool_] | pl.Series) -> pl.DataFrame:
        """Return the drafts outside the mask `bad`; count the others under `reason`."""
        mask = pl.Series(bad)
        num_bad = int(mask.sum())
        gone = drafts.filter(mask) if num_bad else drafts.clear()
        self.stage.drop(reason, num_bad, pair_examples(gone))
        # Most filters drop nothing: the frame is passed on without a copy.
        if not num_bad:
            return drafts
        self.lost.append(gone.select("chosen_row", "rejected_row").with_columns(reason=pl.lit(reason.value)))
        return drafts.filter(~mask)

    def drop_where(self, drafts: pl.DataFrame, checks: Iterable[tuple[Reason, pl.Expr]]) -> pl.DataFrame:
        """Drop drafts for which a condition holds; each is counted under the first such condition."""
        for reason, bad in checks:
            drafts = self.drop(drafts, reason, drafts.select(bad.alias("bad")).to_series())
        return drafts

    def gap_checks(self) -> list[tuple[Reason, pl.Expr]]:
        """Return the conditions that drop drafts with tied rewards or a gap out of bounds."""
        gap, options = pl.col("gap"), self.options
        most = float("inf") if options.max_gap is None else options.max_gap
        tied = is_tied_expression(options.tie_tolerance)
        return [(Reason.TIED, tied), (Reason.BELOW_GAP, gap < options.min_gap), (Reason.ABOVE_GAP, gap > most)]


def pair_examples(drafts: pl.DataFrame) -> list[str]:
    """Return a few drafts as text, "UID over UID"; independent of the order of drafts."""
    named = drafts.select(pl.concat_str("chosen_uid", pl.lit(" over "), "rejected_uid").alias("pair"))
    return named.to_series().bottom_k(NUM_EXAMPLES).sort().to_list()


# Advice in the hint of a build without pairs, by the reason of its last drops.
_ADVICE = {
    Reason.EXCLUDED: "exclusions.csv in the folder of the table says who excluded them and why",
    Reason.FILTERED: "a wider --where lets some through",
    Reason.IS_A_PAIR: "--strategy imported passes them through",
    Reason.IS_NO_PAIR: "--strategy best-worst makes pairs of scored experiences",
    Reason.UNSCORED: "give them rewards: pairwright import --reward NAME or --scores FILE, or score them: pairwright "
    "score TABLE --with programs",
    Reason.FAILED: "--keep-masked lets them through",
    Reason.TRUNCATED: "leave out --drop-truncated",
    Reason.DIFFERENT_PROMPTS: "--strategy divergence compares runs from where they part; --strategy stratified "
    "--across-groups allows different prompts",
    Reason.SINGLE: "run each task more than once, or --strategy stratified --across-groups",
    Reason.CONTRADICTION: "--contradictions majority or keep lets some through",
    Reason.TIED: "only rewards that tell candidates apart give pairs",
    Reason.IDENTICAL: "sample with a higher temperature",
    Reason.LENGTH: "a higher --length-balance lets some through",
    Reason.ENVIRONMENT: "users and tools that answer alike make runs comparable",
    Reason.NO_TEACHER: "a teacher answers at a state: its prompt must be the student's, and what the run said since",
    Reason.TEACHERS_DISAGREE: "a lower --min-teachers lets some through",
    Reason.NO_VOTE: "the file of votes names none of these experiences",
    Reason.CURRICULUM: "a larger --curriculum-share lets some through",
}


class Clues(NamedTuple):
    """Extreme values of a partition, from which the hint derives option values; None if there are none."""

    largest_gap: float | None = None
    highest: float | None = None
    least_step: float | None = None
    """The smallest gap between neighbours."""
    lowest: float | None = None


def clues_of(candidates: Candidates | None, options: PairOptions) -> Clues:
    if candidates is None or not candidates.frame.height:
        return Clues()
    rewards = candidates.rewards
    # Rows are sorted by descending reward within each group.
    best, worst = rewards[candidates.starts[:-1]], rewards[candidates.starts[1:] - 1]
    steps = reward_gaps(rewards[:-1], rewards[1:])
    inside = (np.diff(candidates.groups) == 0) & ~is_tied(rewards[:-1], rewards[1:], options.tie_tolerance)
    return Clues(
        largest_gap=float(reward_gaps(best, worst, near=[options.min_gap]).max()),
        highest=float(best.max()),
        least_step=float(steps[inside].min()) if inside.any() else None,
        lowest=float(worst.min()),
    )


def hint_for(funnel: Funnel, clues: Sequence[Clues], options: PairOptions) -> str:
    """Return a hint for a build without pairs: the reason of the last drops, and what to change."""
    last = next((stage for stage in reversed(funnel.stages) if stage.drops), None)
    if last is None:
        return "there was nothing to pair: the tables are empty"
    drops = list(last.drops.items())
    in_order = last is not funnel.stages[0]  # experience reasons are sorted by name, pair reasons in pipeline order
    reason, drop = drops[-1] if in_order else max(drops, key=lambda item: item[1].count)
    text = f"no pairs: all {drop.count:,} remaining {last.unit} were dropped: {reason.value}"
    advice = _value(reason, clues, options) or _advice(reason, options)
    text = f"{text}; {advice}" if advice else text
    first = funnel.stages[0]
    if first is not last and first.drops:
        reason, drop = max(first.drops.items(), key=lambda item: item[1].count)
        if drop.count * 2 > first.num_in:
            advice = _advice(reason, options)
            text += f". Before, {drop.count:,} of {first.num_in:,} {first.unit} were dropped: {reason.value}"
            text += f"; {advice}" if advice else ""
    return text


_NUM_ROWS = 5_000  # rows in which a field that groups them is searched


def grouping_hint(tables: Iterable[Table]) -> str:
    """Return the `--task` of an import that would group single experiences; "" if there is none.

    Experiences must have equal prompts to be comparable, so a field that groups different prompts is suggested
    together with the strategy `divergence`.
    """
    prompts: Counter[str] = Counter()
    values: defaultdict[str, Counter[str]] = defaultdict(Counter)
    num_rows = 0
    for table in tables:
        for batch in table.scan(columns=["prompt_hash", "info"]):
            room = max(0, _NUM_ROWS - num_rows)
            prompts.update(batch.column("prompt_hash").slice(0, room).to_pylist())
            for text in batch.column("info").slice(0, room).to_pylist():
                for name, value in (from_json(text) if text else {}).items():
                    if isinstance(value, str | int) and not isinstance(value, bool):
                        values[name][str(value)] += 1
            num_rows += min(room, batch.num_rows)
    num_shared = sum(count for count in prompts.values() if count > 1)
    if num_shared:
        return f"{num_shared:,} of {num_rows:,} share their prompt with another one: import with --task prompt"
    # A grouping field has several values, but fewer than rows; the one with the most rows in groups is suggested.
    grouped = {
        name: sum(count for count in counts.values() if count > 1)
        for name, counts in values.items()
        if 1 < len(counts) < sum(counts.values())
    }
    if not any(grouped.values()):
        return ""
    name = max(grouped, key=lambda name: grouped[name])
    text = f"{name!r} groups {grouped[name]:,} of them, at different prompts"
    return f"{text}: import with --task {name}, then --strategy divergence"


def _advice(reason: Reason, options: PairOptions) -> str | None:
    if reason is Reason.SINGLE and options.within_run:
        return "record several candidates a run, or compare those of all runs: --no-within-run"
    if reason is Reason.SINGLE and options.within is not None:
        return f"no two candidates of a prompt agree in {options.within}: leave out --within"
    return _ADVICE.get(reason)


def _value(reason: Reason, clues: Sequence[Clues], options: PairOptions) -> str | None:
    """Return the option that causes a reason, with a value that would let some through; None if no option does."""
    options_of = {
        Reason.BELOW_GAP: ("--min-gap", [clue.largest_gap for clue in clues], max, options.min_gap),
        Reason.ABOVE_GAP: ("--max-gap", [clue.least_step for clue in clues], min, options.max_gap),
        Reason.NOT_HIGH: ("--high", [clue.highest for clue in clues], max, options.high),
        Reason.NOT_LOW: ("--low", [clue.lowest for clue in clues], min, options.low),
    }
    if reason not in options_of:
        return None
    name, values, extreme, now = options_of[reason]
    known = [value for value in values if value is not None]
    return f"{name} {extreme(known)!r} would let some through, now {now}" if known else None

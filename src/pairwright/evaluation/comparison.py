"""Compares two models on the same tasks: means, difference with interval, exact tests, wins, regressions.

    comparison = compare(before, after, Metric("reward"), CompareOptions())
    comparison.difference      Interval(mean=0.31, low=0.27, high=0.35)

All statistics are paired: a run counts if both models have a score for that task and run. A task's score is the mean of
its runs; its difference is exact in the decimals of the scores. If one model has no score, the run is refused, filled
in with a score, or left out and counted: a model that crashes on hard tasks must not look better for it.
"""

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pairwright.config.problems import CheckedSection
from pairwright.config.sections import CompareTerms
from pairwright.errors import PairwrightError
from pairwright.evaluation.paired_statistics import (
    Interval,
    bootstrap_intervals,
    mcnemar_test,
    sign_test,
)
from pairwright.evaluation.scores import Key, Scores

Missing = Literal["refuse", "leave_out"] | float
Outcome = Literal["win", "draw", "loss"]
SEVERAL_RUNS = "several runs of a task are not independent: see the sign test over tasks"
FEW_TASKS = 20  # below this number a note warns that the interval is too narrow


@dataclass(frozen=True)
class Metric:
    """A number of each run, and the direction in which it is better."""

    name: str
    better: Literal["higher", "lower"] = "higher"


NUM_RESAMPLES = 10_000  # of the bootstrap


class CompareOptions(CheckedSection, CompareTerms):
    """How two models are compared; `CompareTerms` has the defaults and bounds."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the bootstrap."""


@dataclass(frozen=True)
class TaskRow:
    """A task: its scores before and after (means of its runs), and the outcome."""

    task: str
    before: float
    after: float
    difference: float
    num_runs: int
    outcome: Outcome


@dataclass(frozen=True)
class McNemar:
    """Runs solved by both, by one, by none, and the exact p-value, or the reason why there is none."""

    both: int
    only_before: int
    only_after: int
    neither: int
    p_value: float | None
    reason: str | None = None


@dataclass(frozen=True)
class Comparison:
    metric: Metric
    before: Interval
    after: Interval
    difference: Interval
    num_tasks: int
    num_runs: int
    wins: int
    draws: int
    losses: int
    sign_test: float
    mcnemar: McNemar | None
    left_out: dict[str, int]
    tasks: list[TaskRow] = field(repr=False)
    notes: list[str] = field(default_factory=list)

    @property
    def improvement(self) -> Interval:
        """The difference, positive if the new model is better, whatever the metric's direction."""
        difference = self.difference
        if self.metric.better == "higher":
            return difference
        low, high = difference.low, difference.high
        # negating an interval swaps its bounds
        return Interval(-difference.mean, None if high is None else -high, None if low is None else -low)

    @property
    def regressions(self) -> list[TaskRow]:
        """Tasks on which the new model is worse, in descending order of the loss."""
        worse = [row for row in self.tasks if row.outcome == "loss"]
        return sorted(worse, key=lambda row: (-abs(row.difference), row.task))


def compare(before: Scores, after: Scores, metric: Metric, options: CompareOptions | None = None) -> Comparison:
    options = options or CompareOptions()
    runs, left_out, filled_in = _pair_runs(before, after, metric, options.missing)
    rows = _task_rows(runs, metric, options.tie)
    values = np.array([[row.before for row in rows], [row.after for row in rows], [row.difference for row in rows]])
    old, new, difference = bootstrap_intervals(
        values,  # (3, tasks): before, after, difference
        confidence=options.confidence,
        num_resamples=NUM_RESAMPLES,
        seed=options.seed,
    )
    count = Counter(row.outcome for row in rows)
    return Comparison(
        metric,
        old,
        new,
        difference,
        num_tasks=len(rows),
        num_runs=len(runs),
        wins=count["win"],
        draws=count["draw"],
        losses=count["loss"],
        sign_test=sign_test(count["win"], count["loss"]),
        mcnemar=_mcnemar(runs, len(rows), metric, options.success),
        left_out=left_out,
        tasks=rows,
        notes=_notes(rows, {**left_out, **filled_in}),
    )


def _pair_runs(
    before: Scores, after: Scores, metric: Metric, missing: Missing
) -> tuple[dict[Key, tuple[float, float]], dict[str, int], dict[str, int]]:
    """Return the runs scored by both, in the order of the first; counts of runs left out and filled in, by reason."""
    columns = before.column(metric.name), after.column(metric.name)
    paired: dict[Key, tuple[float, float]] = {}
    left_out: Counter[str] = Counter()
    filled_in: Counter[str] = Counter()
    missing_runs: list[str] = []
    # the union of both models' keys, in the order of the first
    for key in dict.fromkeys([*columns[0], *columns[1]]):
        values = columns[0].get(key), columns[1].get(key)
        if values[0] is None and values[1] is None:
            left_out["unscored_in_both"] += 1
            continue
        # the side without a score, if the other side has one
        side = "before" if values[0] is None else "after"
        if values[0] is not None and values[1] is not None:
            paired[key] = values[0], values[1]
        elif not isinstance(missing, str):
            first, second = (float(missing) if value is None else value for value in values)
            paired[key] = first, second
            filled_in[f"no_score_{side}, given {missing:g}"] += 1
        else:
            left_out[f"no_score_{side}"] += 1
            missing_runs.append(f"task {key[0]!r} run {key[1]} has none {side}")
    if missing_runs and missing == "refuse":
        more = f" and {len(missing_runs) - 3:,} more" if len(missing_runs) > 3 else ""
        raise PairwrightError(
            f"{metric.name}: scores are missing: {'; '.join(missing_runs[:3])}{more}. Score those runs, give them a "
            "score with --missing 0, or leave them out of both with --missing leave_out"
        )
    if not paired:
        raise PairwrightError(
            f"{metric.name}: no run of a task has a score in both {before.source} and {after.source}, which have "
            f"{', '.join(before.metrics) or 'none'} and {', '.join(after.metrics) or 'none'}: name one with --metric"
        )
    return paired, dict(left_out), dict(filled_in)


def _task_rows(runs: dict[Key, tuple[float, float]], metric: Metric, tie: float) -> list[TaskRow]:
    by_task: dict[str, list[tuple[float, float]]] = {}
    for (task, _), scores in runs.items():
        by_task.setdefault(task, []).append(scores)
    bound = Fraction(repr(tie))  # exact: a difference equal to the tie must not depend on rounding
    rows = []
    for task, values in by_task.items():
        # side 0 is the old model, side 1 the new one; fractions are exact, so that equal scores are a draw
        before, after = (_exact_mean([value[side] for value in values]) for side in (0, 1))
        gain = after - before if metric.better == "higher" else before - after
        outcome: Outcome = "win" if gain > bound else "loss" if gain < -bound else "draw"
        rows.append(TaskRow(task, float(before), float(after), float(after - before), len(values), outcome))
    return rows


def _exact_mean(values: list[float]) -> Fraction:
    return sum((Fraction(repr(value)) for value in values), Fraction()) / len(values)


def _mcnemar(
    runs: dict[Key, tuple[float, float]], num_tasks: int, metric: Metric, success: float | None
) -> McNemar | None:
    """The table of solved runs; None if scores are not binary and no `success` threshold is set."""
    if success is None:
        # only 0 and 1: the metric is a success by itself and needs no threshold
        if not {value for values in runs.values() for value in values} <= {0.0, 1.0}:
            return None
        success = 1.0 if metric.better == "higher" else 0.0
    is_lower = metric.better == "lower"
    # keys are (solved before, solved after)
    count = Counter(
        tuple(value <= success if is_lower else value >= success for value in values) for values in runs.values()
    )
    cells = count[True, True], count[True, False], count[False, True], count[False, False]
    # McNemar's test assumes independent pairs, and several runs of one task are not independent
    if len(runs) > num_tasks:
        return McNemar(*cells, p_value=None, reason=SEVERAL_RUNS)
    return McNemar(*cells, p_value=mcnemar_test(cells[1], cells[2]))


def _notes(rows: list[TaskRow], counted: dict[str, int]) -> list[str]:
    notes = []
    if len(rows) < FEW_TASKS:
        notes.append(f"{len(rows)} tasks: with fewer than {FEW_TASKS} a bootstrap interval tends to be too narrow")
    if len(rows) > 1 and len({row.difference for row in rows}) == 1:
        notes.append("the difference is the same on every task, so its interval has no width")
    notes += [f"{count:,} runs: {reason.replace('_', ' ')}" for reason, count in counted.items()]
    return notes

"""Compares two models on the same tasks: means, difference with interval, exact tests, wins, regressions; and the gate.

    comparison = compare(before, after, Metric("reward"), CompareOptions())
    comparison.difference      Interval(mean=0.31, low=0.27, high=0.35)

All statistics are paired: a run counts if both models have a score for that task and run. A task's score is the mean of
its runs; its difference is exact in the decimals of the scores. If one model has no score, the run is refused, filled
in with a score, or left out and counted: a model that crashes on hard tasks must not look better for it.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import NormalDist
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from pairwright.config import EvaluateConfig
from pairwright.config.config_file import Options
from pairwright.config.sections import CompareTerms
from pairwright.config.sections import GateConfig as Gate
from pairwright.errors import PairwrightError
from pairwright.evaluate.scores import Key, Scores

# Statistics of a paired comparison: bootstrap intervals and exact tests, with numpy and integers only.
#
# The unit of resampling is the task, not the run: runs of one task are correlated, and resampling runs would make the
# interval too narrow. All rows of values share the same resamples, so that a difference is paired.


Floats = npt.NDArray[np.float64]
Method = Literal["bca", "percentile"]
MAX_DRAWS_AT_ONCE = 4_000_000
MAX_INTEGER_TRIALS = 50_000
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its confidence interval; None if there are too few tasks."""

    mean: float
    low: float | None
    high: float | None


def bootstrap_intervals(
    rows: Floats, *, confidence: float, num_resamples: int, seed: int, method: Method = "bca"
) -> list[Interval]:
    """The interval of each row's mean. `rows` is (rows, tasks); all rows share the same resamples of tasks.

    `percentile` takes the quantiles of the resampled means (linear between order statistics). `bca` corrects them for
    bias and skewness (Efron 1987, "Better bootstrap confidence intervals", section 3); resamples that tie with the mean
    count half.
    """
    num_tasks = rows.shape[1]
    means = rows.mean(axis=1)
    if num_tasks < 2:
        return [Interval(float(mean), None, None) for mean in means]
    resampled = _resample_means(rows, num_resamples, seed)
    intervals = []
    for row, mean, draws in zip(rows, means, resampled, strict=True):
        low, high = (1 - confidence) / 2, (1 + confidence) / 2
        if method == "bca":
            low, high = _bca_levels(row, float(mean), draws, (low, high))
        bounds = np.quantile(draws, [low, high])
        intervals.append(Interval(float(mean), float(bounds[0]), float(bounds[1])))
    return intervals


def _resample_means(rows: Floats, num_resamples: int, seed: int) -> Floats:
    generator = np.random.Generator(np.random.PCG64(seed))
    num_tasks = rows.shape[1]
    means = np.empty((len(rows), num_resamples))
    step = max(1, MAX_DRAWS_AT_ONCE // num_tasks)  # resamples per chunk, to bound memory
    for start in range(0, num_resamples, step):
        size = min(step, num_resamples - start)
        # task numbers (resamples, tasks), drawn with replacement; row[tasks] has the values of each resample
        tasks = generator.integers(0, num_tasks, size=(size, num_tasks), dtype=np.int32)
        for number, row in enumerate(rows):
            means[number, start : start + size] = row[tasks].mean(axis=1)
    return means


def _bca_levels(row: Floats, mean: float, draws: Floats, levels: tuple[float, float]) -> tuple[float, float]:
    """The quantile levels of the interval, corrected by the bias z0 and the acceleration a."""
    deviation = row - mean
    spread = float(np.abs(deviation).max())
    if spread <= 1e-12 * max(1.0, abs(mean)):  # all tasks are equal, so every resampled mean is the mean
        return levels
    # z0 measures how far the share of resamples below the mean is from one half; rounding must not break ties
    equal = np.abs(draws - mean) <= 1e-12 * max(spread, abs(mean))
    below = float(((draws < mean) & ~equal).mean() + equal.mean() / 2)
    if not 0 < below < 1:  # the mean lies outside of all resamples: the correction is undefined
        return levels
    z0 = _NORMAL.inv_cdf(below)
    scaled = deviation / spread
    # skewness of the values; for a mean the jackknife formula of the acceleration reduces to this
    acceleration = float((scaled**3).sum() / (6 * (scaled**2).sum() ** 1.5))

    def shift_level(level: float) -> float:
        shifted = z0 + _NORMAL.inv_cdf(level)
        return _NORMAL.cdf(z0 + shifted / (1 - acceleration * shifted))

    return shift_level(levels[0]), shift_level(levels[1])


def sign_test(num_wins: int, num_losses: int) -> float:
    """The exact two-sided p-value of wins against losses under equal probability; draws are ignored.

    >>> sign_test(9, 1)
    0.021484375
    """
    trials, fewer = num_wins + num_losses, min(num_wins, num_losses)
    if trials == 0 or 2 * fewer >= trials:
        return 1.0
    if trials <= MAX_INTEGER_TRIALS:
        term = total = 1
        for number in range(fewer):  # sums binomial coefficients as integers: exact up to the last division
            term = term * (trials - number) // (number + 1)
            total += term
        return min(1.0, total * 2 / (1 << trials))
    # for many trials the same sum in logarithms: C(n, k+1) / C(n, k) = (n - k) / (k + 1)
    ratios = np.log(trials - np.arange(fewer)) - np.log1p(np.arange(fewer))
    logs = np.concatenate([[0.0], np.cumsum(ratios)]) + math.log(2) * (1 - trials)
    return min(1.0, float(np.exp(logs).sum()))


def mcnemar_test(only_before: int, only_after: int) -> float:
    """McNemar's exact p-value: the sign test on the tasks that only one of the two models solved.

    >>> mcnemar_test(1, 7)
    0.0703125
    """
    return sign_test(only_after, only_before)


Missing = Literal["refuse", "leave_out"] | float
Outcome = Literal["win", "draw", "loss"]
SEVERAL_RUNS = "several runs of a task are not independent: see the sign test over tasks"
FEW_TASKS = 20  # below this number a note warns that the interval is too narrow


@dataclass(frozen=True)
class Metric:
    """A number of each run, and the direction in which it is better."""

    name: str
    better: Literal["higher", "lower"] = "higher"


class CompareOptions(Options, CompareTerms):
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
    """Compare two models by one metric."""
    options = options or CompareOptions()
    runs, left_out, filled_in = _pair_runs(before, after, metric, options.missing)
    rows = _task_rows(runs, metric, options.tie)
    values = np.array([[row.before for row in rows], [row.after for row in rows], [row.difference for row in rows]])
    old, new, difference = bootstrap_intervals(
        values,  # (3, tasks): before, after, difference
        confidence=options.confidence,
        num_resamples=options.num_resamples,
        seed=options.seed,
        method=options.method,
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
    """Runs scored by both, in the order of the first; counts of runs left out, and of runs filled in, by reason."""
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
        # the side that has no score, if only one has one
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
        # 0 is the old model, 1 the new one; exact fractions, so that equal scores are a draw
        before, after = (_exact_mean([value[side] for value in values]) for side in (0, 1))
        gain = after - before if metric.better == "higher" else before - after
        outcome: Outcome = "win" if gain > bound else "loss" if gain < -bound else "draw"
        rows.append(TaskRow(task, float(before), float(after), float(after - before), len(values), outcome))
    return rows


def _exact_mean(values: list[float]) -> Fraction:
    """The exact mean of the numbers' shortest decimal representations."""
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


# The gate: whether the evidence suffices to deploy. A negative verdict is exit code 2.

__all__ = ["Gate", "Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """The decision of the gate, and its reason."""

    passed: bool
    reason: str
    metric: str
    gate: Gate


def judge(comparison: Comparison, gate: Gate) -> Verdict:
    """Judge a comparison whose intervals have the gate's confidence."""
    improvement = comparison.improvement
    name = comparison.metric.name
    # with fewer than two tasks there is no interval, whatever the gate asks for
    if comparison.num_tasks < gate.min_tasks or improvement.low is None:
        least = max(gate.min_tasks, 2)
        reason = f"{comparison.num_tasks} tasks are too few to say: at least {least} are asked for"
        return Verdict(False, reason, name, gate)
    bounds = (
        f"{improvement.mean:+.4g} ({gate.confidence:.4g} interval {improvement.low:+.4g} to {improvement.high:+.4g})"
    )
    # the lower bound decides, not the mean: the gate asks for evidence of the improvement
    if improvement.low < gate.min_improvement:
        reason = f"{name} improved by {bounds}; the lower bound is below {gate.min_improvement:.4g}"
        return Verdict(False, reason, name, gate)
    if gate.min_improvement >= 0 and improvement.low <= 0:
        return Verdict(False, f"{name} improved by {bounds}; the interval does not exclude zero", name, gate)
    return Verdict(True, f"{name} improved by {bounds}", name, gate)


# The `evaluate` section of a configuration as keyword arguments


def evaluate_settings(section: EvaluateConfig, *, seed: int) -> dict[str, Any]:
    """The keyword arguments of `evaluate`."""
    terms = {name: getattr(section, name) for name in CompareTerms.model_fields}
    return {
        "metrics": tuple(Metric(metric.name, metric.better) for metric in section.metrics),
        "options": CompareOptions(**terms, seed=seed),
        "gate": section.gate,
    }

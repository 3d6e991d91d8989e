"""The statistics of a paired comparison: bootstrap intervals and exact tests, on numpy and integers alone.

The unit that is drawn again is the task, never the run: runs of one task are alike, and drawing them one by one would
make an interval too narrow. The same draws are used for every row of values, so that a difference is paired.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Method = Literal["bca", "percentile"]
MAX_DRAWS_AT_ONCE = 4_000_000
MAX_INTEGER_TRIALS = 50_000
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its confidence interval; None where there are too few tasks for one."""

    mean: float
    low: float | None
    high: float | None


def bootstrap_intervals(
    rows: Floats, *, confidence: float, num_resamples: int, seed: int, method: Method = "bca"
) -> list[Interval]:
    """The interval of each row's mean. `rows` is (rows, tasks); all rows are drawn with the same tasks.

    `percentile` takes the quantiles of the drawn means (linear between order statistics). `bca` moves them for bias and
    skewness (Efron 1987, "Better bootstrap confidence intervals", section 3); ties of a draw with the mean count half.
    """
    num_tasks = rows.shape[1]
    means = rows.mean(axis=1)
    if num_tasks < 2:
        return [Interval(float(mean), None, None) for mean in means]
    drawn = _drawn_means(rows, num_resamples, seed)
    found = []
    for row, mean, draws in zip(rows, means, drawn, strict=True):
        low, high = (1 - confidence) / 2, (1 + confidence) / 2
        if method == "bca":
            low, high = _bca_levels(row, float(mean), draws, (low, high))
        bounds = np.quantile(draws, [low, high])
        found.append(Interval(float(mean), float(bounds[0]), float(bounds[1])))
    return found


def _drawn_means(rows: Floats, num_resamples: int, seed: int) -> Floats:
    draw = np.random.Generator(np.random.PCG64(seed))
    num_tasks = rows.shape[1]
    drawn = np.empty((len(rows), num_resamples))
    step = max(1, MAX_DRAWS_AT_ONCE // num_tasks)
    for start in range(0, num_resamples, step):
        size = min(step, num_resamples - start)
        tasks = draw.integers(0, num_tasks, size=(size, num_tasks), dtype=np.int32)
        for number, row in enumerate(rows):
            drawn[number, start : start + size] = row[tasks].mean(axis=1)
    return drawn


def _bca_levels(row: Floats, mean: float, draws: Floats, levels: tuple[float, float]) -> tuple[float, float]:
    """The quantiles of the draws that bound the interval, moved by bias z0 and acceleration a."""
    away = row - mean
    spread = float(np.abs(away).max())
    if spread <= 1e-12 * max(1.0, abs(mean)):  # every task alike: every draw is the mean
        return levels
    equal = np.abs(draws - mean) <= 1e-12 * max(spread, abs(mean))
    below = float(((draws < mean) & ~equal).mean() + equal.mean() / 2)
    if not 0 < below < 1:  # the mean lies outside of all draws: no correction can be computed
        return levels
    z0 = _NORMAL.inv_cdf(below)
    scaled = away / spread
    acceleration = float((scaled**3).sum() / (6 * (scaled**2).sum() ** 1.5))

    def moved(level: float) -> float:
        shifted = z0 + _NORMAL.inv_cdf(level)
        return _NORMAL.cdf(z0 + shifted / (1 - acceleration * shifted))

    return moved(levels[0]), moved(levels[1])


def sign_test(num_wins: int, num_losses: int) -> float:
    """The exact two-sided p-value of this many wins and losses if both were as likely; draws say nothing.

    >>> sign_test(9, 1)
    0.021484375
    """
    trials, fewer = num_wins + num_losses, min(num_wins, num_losses)
    if trials == 0 or 2 * fewer >= trials:
        return 1.0
    if trials <= MAX_INTEGER_TRIALS:
        term = total = 1
        for number in range(fewer):  # whole numbers: nothing is rounded before the last division
            term = term * (trials - number) // (number + 1)
            total += term
        return min(1.0, total * 2 / (1 << trials))
    ratios = np.log(trials - np.arange(fewer)) - np.log1p(np.arange(fewer))
    logs = np.concatenate([[0.0], np.cumsum(ratios)]) + math.log(2) * (1 - trials)
    return min(1.0, float(np.exp(logs).sum()))


def mcnemar_test(only_before: int, only_after: int) -> float:
    """McNemar's exact p-value: tasks solved by one of the two only. It is the sign test on them.

    >>> mcnemar_test(1, 7)
    0.0703125
    """
    return sign_test(only_after, only_before)

"""Statistics of a paired comparison: bootstrap intervals and exact tests, with numpy and integers only.

The unit of resampling is the task, not the run: runs of one task are correlated, and resampling runs would make the
interval too narrow. The rows (before, after, difference) share their resamples, so that the difference is paired.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MAX_DRAWS_AT_ONCE = 4_000_000
MAX_INTEGER_TRIALS = 50_000
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its confidence interval; None if there are too few tasks."""

    mean: float
    low: float | None
    high: float | None


def bootstrap_intervals(rows: Floats, *, confidence: float, num_resamples: int, seed: int) -> list[Interval]:
    """The interval of each row's mean. `rows` is (rows, tasks); all rows share the same resamples of tasks.

    The interval is bias-corrected and accelerated (Efron 1987, "Better bootstrap confidence intervals", section 3);
    resamples that tie with the mean count half.
    """
    num_tasks = rows.shape[1]
    means = rows.mean(axis=1)
    if num_tasks < 2:
        return [Interval(float(mean), None, None) for mean in means]
    resampled = _resample_means(rows, num_resamples, seed)
    intervals = []
    for row, mean, draws in zip(rows, means, resampled, strict=True):
        levels = _bca_levels(row, float(mean), draws, ((1 - confidence) / 2, (1 + confidence) / 2))
        # rounded: an error of 1e-17 in a sum of zero would exclude zero from the interval
        bounds = np.quantile(draws, levels).round(12) + 0.0
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


@dataclass(frozen=True)
class SampleSize:
    """Tasks that a comparison needs, from the spread of the differences of a pilot.

    deviation    standard deviation of the differences between tasks, runs averaged
    num_tasks    so that an interval excludes zero with this power, if the true difference is `difference`
    detectable   the least difference that the pilot's own number of tasks detects with this power
    """

    deviation: float
    difference: float
    power: float
    confidence: float
    num_pilot: int
    num_tasks: int
    detectable: float


def plan_tasks(differences: Floats, *, difference: float, power: float = 0.8, confidence: float = 0.95) -> SampleSize:
    """Plan a paired comparison: n = ((z_confidence + z_power) · deviation / difference)², rounded up.

    The upper 80% bound of the pilot's variance is used (chi-squared, by Wilson and Hilferty's approximation), since the
    variance of a small pilot often gives too few tasks (Browne 1995).
    """
    freedom = len(differences) - 1
    if freedom < 1 or difference <= 0:
        raise ValueError("expected at least two tasks and a difference above 0")
    z = _NORMAL.inv_cdf((1 + confidence) / 2) + _NORMAL.inv_cdf(power)
    low = freedom * (1 - 2 / (9 * freedom) + _NORMAL.inv_cdf(0.2) * math.sqrt(2 / (9 * freedom))) ** 3
    deviation = float(differences.std(ddof=1)) * math.sqrt(freedom / max(low, 1e-9))
    return SampleSize(
        deviation=deviation,
        difference=difference,
        power=power,
        confidence=confidence,
        num_pilot=len(differences),
        num_tasks=max(2, math.ceil((z * deviation / difference) ** 2)),
        detectable=z * deviation / math.sqrt(len(differences)),
    )


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


def seed_interval(values: Sequence[float], *, confidence: float) -> Interval:
    """The mean over seeds with Student's t interval; no bounds for a single seed.

    >>> interval = seed_interval([0.2, 0.3, 0.4], confidence=0.95)
    >>> round(interval.mean, 3), round(interval.low, 3), round(interval.high, 3)
    (0.3, 0.052, 0.548)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None, None)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    half = t_quantile(0.5 + confidence / 2, len(values) - 1) * error
    return Interval(mean, mean - half, mean + half)


def t_quantile(level: float, freedom: int) -> float:
    """A quantile above the median of Student's t distribution, found by bisection of its distribution function.

    >>> round(t_quantile(0.975, 1), 2), round(t_quantile(0.975, 4), 3)
    (12.71, 2.776)
    """
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def below(bound: float) -> float:
        # t = sqrt(freedom) · tan(angle) makes the integrand cos(angle) ** (freedom - 1), smooth on a bounded range
        angles = np.linspace(0.0, math.atan(bound / math.sqrt(freedom)), 2001)
        area = float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles))
        return 0.5 + scale * math.sqrt(freedom) * area

    low, high = 0.0, 1.0
    while below(high) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < level else (low, middle)
    return high

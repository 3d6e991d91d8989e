"""Statistics of a judge against labels: agreement, Cohen's kappa, biases, each with a confidence interval.

Inputs are plain arrays. An interval is None if the data does not determine one: for example, kappa of a judge that
always gives the same answer is 0 by definition.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CONFIDENCE = 0.95  # of all intervals
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Estimate:
    """A value with the bounds of its confidence interval; None if undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None


def share(num_good: int, num_all: int) -> Estimate:
    """Return a share with Wilson's interval (1927)."""
    if not num_all:
        return Estimate(None)
    z, mean = _Z, num_good / num_all
    centre = (mean + z * z / (2 * num_all)) / (1 + z * z / num_all)
    half = z / (1 + z * z / num_all) * math.sqrt(mean * (1 - mean) / num_all + z * z / (4 * num_all**2))
    return Estimate(mean, max(0.0, centre - half), min(1.0, centre + half))


def cohen_kappa(judge: Ints, labels: Ints) -> Estimate:
    """Return Cohen's kappa of two ratings of the same items, given as classes from 0.

    The interval uses the asymptotic variance of Fleiss, Cohen and Everitt (1969), for any number of classes. It is
    computed on Fisher's scale, with one observation spread over all cells: this keeps the coverage for judges that are
    almost always right. Without a disagreement, the upper bound is 1.
    """
    num_classes = int(max(judge.max(initial=0), labels.max(initial=0))) + 1
    counts = np.zeros((num_classes, num_classes))
    np.add.at(counts, (judge, labels), 1)
    num = len(judge)
    if num < 2 or num_classes == 1:
        return Estimate(None)
    kappa = _kappa_of(counts / num)
    if max(counts.sum(0).max(), counts.sum(1).max()) == num:  # one of the two is constant
        return Estimate(0.0 if np.trace(counts) < num else None)
    smooth = counts + 1 / num_classes**2
    centre, variance = _kappa_of(smooth / (num + 1)), _kappa_variance(smooth / (num + 1), num + 1)
    half = _t(num - 1) * math.sqrt(variance) / (1 - centre**2)
    is_perfect = np.trace(counts) == num
    high = 1.0 if is_perfect else math.tanh(math.atanh(centre) + half)
    return Estimate(kappa, math.tanh(math.atanh(centre) - half), high)


def _kappa_of(table: Floats) -> float:
    chance = float(table.sum(1) @ table.sum(0))
    return (float(np.trace(table)) - chance) / (1 - chance) if chance < 1 else 0.0


def _kappa_variance(table: Floats, num: float) -> float:
    rows, columns = table.sum(1), table.sum(0)
    kappa, chance = _kappa_of(table), float(rows @ columns)
    sums = columns[:, None] + rows[None, :]  # p_.i + p_j. of the cell (i, j)
    own = np.diag(table) * (1 - np.diag(sums) * (1 - kappa)) ** 2
    others = (1 - kappa) ** 2 * ((table - np.diag(np.diag(table))) * sums**2).sum()
    variance = (own.sum() + others - (kappa - chance * (1 - kappa)) ** 2) / (num * (1 - chance) ** 2)
    return max(0.0, float(variance))


def clustered_mean(values: Floats, clusters: Ints) -> Estimate:
    """Return a mean with a cluster-robust interval: values of one cluster, such as a task, may be dependent."""
    if not len(values):
        return Estimate(None)
    mean = float(values.mean())
    sums = np.bincount(clusters, weights=values - mean)
    num_clusters = int((np.bincount(clusters) > 0).sum())
    if num_clusters < 2:
        return Estimate(mean)
    variance = num_clusters / (num_clusters - 1) * float((sums**2).sum()) / len(values) ** 2
    half = _t(num_clusters - 1) * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half)


def length_slope(scores: Floats, labels: Floats, lengths: Floats) -> Estimate:
    """Return the increase of the score per standard deviation of log length, at the same label.

    Least squares of the score on the label and the standardised log length; the interval is robust against unequal
    variances (HC3, MacKinnon and White 1985).
    """
    logs = np.log1p(lengths)
    if len(scores) < 5 or np.ptp(logs) == 0:
        return Estimate(None)
    columns = [np.ones(len(scores)), (logs - logs.mean()) / logs.std(), labels]
    design = np.stack(columns[:2] if np.ptp(labels) == 0 else columns, axis=1)
    inverse = np.linalg.pinv(design.T @ design)
    coefficients = inverse @ design.T @ scores
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    residuals = (scores - design @ coefficients) / np.maximum(1 - leverage, 1e-9)
    variance = (inverse @ (design.T * residuals**2) @ design @ inverse)[1, 1]
    half = _t(len(scores) - design.shape[1]) * math.sqrt(max(0.0, float(variance)))
    slope = float(coefficients[1])
    return Estimate(slope, slope - half, slope + half)


def preference_slope(differences: Floats, weights: Floats) -> float:
    """Fit k of P(better) = 1 / (1 + exp(-k Δ)), where Δ > 0 is a score difference; returns k.

    `differences` are scores of the better minus the worse side, as labelled by people; negative if the judge is wrong.
    A prior of one pair in each direction, with the mean size of Δ, keeps k finite if the judge is never wrong. The
    minimum of k is 0: a judge that is worse than chance gives no information.

    >>> differences, weights = np.array([0.5, 0.5, -0.5]), np.ones(3)
    >>> round(preference_slope(differences, weights), 2), preference_slope(-differences, weights)
    (0.81, 0.0)
    """
    sizes = np.abs(differences)
    told = sizes > 0  # equal scores give no information about k
    if not told.any():
        return 0.0
    typical = float(np.average(sizes[told], weights=weights[told]))
    values = np.append(differences[told], [typical, -typical])
    counts = np.append(weights[told], [1.0, 1.0])
    slope = 0.0
    for _ in range(100):
        odds = 1 / (1 + np.exp(np.clip(slope * values, -500, 500)))
        gradient = float((counts * values * odds).sum())
        curvature = float((counts * values**2 * odds * (1 - odds)).sum())
        step = gradient / max(curvature, 1e-12)
        slope += float(np.clip(step, -2 / typical, 2 / typical))
        if abs(step) * typical < 1e-9:
            break
    return max(0.0, slope)


def _t(freedom: int) -> float:
    """Return the quantile of Student's t by the Cornish-Fisher expansion; accurate from 5 degrees of freedom on."""
    z, n = _Z, max(1, freedom)
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)

"""Length balance: how much the chosen sides are longer than the rejected ones, and how to bring that under a bound.

The effect size is the mean of the differences of lengths over their standard deviation. Left alone it teaches a model
to write more, whatever it says.
"""

import numpy as np

from pairwright.pairs.candidates import Flags
from pairwright.pairs.gaps import Floats


def length_effect(differences: Floats, weights: Floats | None = None) -> float:
    """Mean over standard deviation of (chosen - rejected) characters; 0 for no pairs, inf where all differ alike."""
    weights = np.ones(len(differences)) if weights is None else weights
    total = weights.sum()
    if not total:
        return 0.0
    mean = float((weights * differences).sum() / total)
    deviation = float(np.sqrt((weights * (differences - mean) ** 2).sum() / total))
    if deviation == 0:
        return 0.0 if mean == 0 else float(np.copysign(np.inf, mean))
    return mean / deviation


def one_sided(differences: Floats, bound: float) -> Flags:
    """The fewest of the most one-sided pairs without which the effect is within the bound."""
    towards = np.sign(differences.mean()) or 1.0
    order = np.lexsort([np.arange(len(differences)), -towards * differences])
    left = differences[order][::-1]  # the last so many of `order`, summed from its end
    counts = np.arange(1, len(left) + 1)
    means = np.cumsum(left) / counts
    variances = np.maximum(np.cumsum(left**2) / counts - means**2, 0.0)
    fine = np.abs(means) <= bound * np.sqrt(variances) + 1e-12
    num_left = int(counts[fine].max()) if fine.any() else 0
    bad = np.zeros(len(differences), np.bool_)
    bad[order[: len(differences) - num_left]] = True
    return bad


def balance_weights(differences: Floats, bound: float) -> Floats:
    """Weights that bring the effect within the bound: pairs of the prevailing direction count for less."""
    weights = np.ones(len(differences))
    if not len(differences) or abs(length_effect(differences)) <= bound:
        return weights
    direction = np.sign(differences.mean())
    prevailing = np.sign(differences) == direction
    low, high = 0.0, 1.0
    for _ in range(60):  # the effect falls with the weight of the prevailing pairs
        middle = (low + high) / 2
        effect = length_effect(differences, np.where(prevailing, middle, 1.0)) * direction
        low, high = (middle, high) if effect <= bound else (low, middle)
    return np.where(prevailing, low, 1.0)

"""Length balance: effect size of the length difference between chosen and rejected, and how to bound it."""

import numpy as np

from pairwright.pairs.candidates.candidates import Flags, Floats


def length_effect(differences: Floats, weights: Floats | None = None) -> float:
    """Mean divided by standard deviation of (chosen - rejected) characters.

    It is 0 for no pairs, and infinite if all differences are equal and not 0.
    """
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
    """Mask of the pairs to drop so that the length effect is within the bound: the fewest, most one-sided first."""
    towards = np.sign(differences.mean()) or 1.0
    # Most one-sided pair first, in the prevailing direction; ties by number (the last key of lexsort is primary).
    order = np.lexsort([np.arange(len(differences)), -towards * differences])
    left = differences[order][::-1]  # reversed, so that cumsum covers suffixes of `order`
    counts = np.arange(1, len(left) + 1)
    means = np.cumsum(left) / counts
    # E[x²] - E[x]², which rounding can take slightly below 0.
    variances = np.maximum(np.cumsum(left**2) / counts - means**2, 0.0)
    fine = np.abs(means) <= bound * np.sqrt(variances) + 1e-12
    num_left = int(counts[fine].max()) if fine.any() else 0
    bad = np.zeros(len(differences), np.bool_)
    bad[order[: len(differences) - num_left]] = True
    return bad

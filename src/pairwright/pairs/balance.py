"""Length balance: how much the chosen sides are longer than the rejected ones, and how to bring that under a bound.

The effect size is the mean of the differences of lengths over their standard deviation. Left alone it teaches a model
to write more, whatever it says.
"""

import numpy as np
import polars as pl

from pairwright.pairs.funnel import Reason
from pairwright.pairs.gaps import Floats
from pairwright.pairs.work import Work


def length_effect(drafts: pl.DataFrame, weights: Floats | None = None) -> float:
    """Mean over standard deviation of (chosen - rejected) characters; 0 for no pairs, inf where all differ alike."""
    return _effect(_differences(drafts), np.ones(drafts.height) if weights is None else weights)


def balanced(drafts: pl.DataFrame, work: Work) -> pl.DataFrame:
    """Drafts without the fewest of the most one-sided pairs that bring the effect within the bound."""
    bound = work.options.length_balance
    if bound is None or work.options.balance_by != "drop" or not drafts.height:
        return drafts
    differences = _differences(drafts)
    towards = np.sign(differences.mean()) or 1.0
    order = np.lexsort([np.arange(drafts.height), -towards * differences])
    left = differences[order][::-1]  # the last so many of `order`, summed from its end
    counts = np.arange(1, len(left) + 1)
    means = np.cumsum(left) / counts
    variances = np.maximum(np.cumsum(left**2) / counts - means**2, 0.0)
    fine = np.abs(means) <= bound * np.sqrt(variances) + 1e-12
    num_left = int(counts[fine].max()) if fine.any() else 0
    bad = np.zeros(drafts.height, np.bool_)
    bad[order[: drafts.height - num_left]] = True
    return work.drop(drafts, Reason.LENGTH, bad)


def balance_weights(drafts: pl.DataFrame, work: Work) -> Floats:
    """Weights that bring the effect within the bound: pairs of the prevailing direction count for less."""
    bound = work.options.length_balance
    weights = np.ones(drafts.height)
    if bound is None or work.options.balance_by != "reweight" or not drafts.height:
        return weights
    differences = _differences(drafts)
    prevailing = np.sign(differences) == np.sign(differences.mean())
    low, high = 0.0, 1.0
    if abs(_effect(differences, weights)) <= bound:
        return weights
    for _ in range(60):  # the effect falls with the weight of the prevailing pairs
        middle = (low + high) / 2
        effect = _effect(differences, np.where(prevailing, middle, 1.0)) * np.sign(differences.mean())
        low, high = (middle, high) if effect <= bound else (low, middle)
    return np.where(prevailing, low, 1.0)


def _differences(drafts: pl.DataFrame) -> Floats:
    return (drafts["num_chosen_characters"] - drafts["num_rejected_characters"]).cast(pl.Float64).to_numpy()


def _effect(differences: Floats, weights: Floats) -> float:
    total = weights.sum()
    if not total:
        return 0.0
    mean = float((weights * differences).sum() / total)
    deviation = float(np.sqrt((weights * (differences - mean) ** 2).sum() / total))
    if deviation == 0:
        return 0.0 if mean == 0 else float(np.copysign(np.inf, mean))
    return mean / deviation

"""Desirability of runs: desirable or not by reward alone, for KTO, which needs no pairs."""

import numpy as np

from pairwright.errors import PairwrightError
from pairwright.records.arrays import Array


def choose_threshold(rewards: Array, threshold: float | None, *, option: str) -> float:
    """Return the minimum reward of a desirable run: `threshold`, or halfway between lowest and highest reward.

    Raises PairwrightError, which names the `option`, if all runs would be on one side.

    >>> choose_threshold(np.array([0.0, 1.0, 1.0]), None, option="--threshold")
    0.5
    """
    lowest, highest = float(rewards.min(initial=np.inf)), float(rewards.max(initial=-np.inf))
    if not len(rewards):
        raise PairwrightError("no run has a reward, so none can be labelled")
    if not lowest < highest:
        raise PairwrightError(f"all {len(rewards)} scored runs have the reward {lowest:g}: nothing to learn from")
    # Halfway separates 0 from 1, -1 from 1, and thumbs down from up; other scales need an explicit threshold.
    chosen = (lowest + highest) / 2 if threshold is None else threshold
    if not lowest < chosen <= highest:
        raise PairwrightError(
            f"{option} {chosen:g}: all {len(rewards)} runs are on one side: rewards go from {lowest:g} to {highest:g}; "
            "choose a threshold above the first and not above the second"
        )
    return chosen

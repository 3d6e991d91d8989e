"""Desirability of runs: which are good and which are bad by their reward alone, for KTO, which needs no pairs."""

import numpy as np

from pairwright.errors import PairwrightError
from pairwright.records.arrays import Array


def choose_threshold(rewards: Array, threshold: float | None, *, option: str) -> float:
    """The reward from which on a run is desirable: `threshold`, or halfway between the lowest and the highest reward.

    Args:
        rewards: Finite rewards of the runs.
        threshold: The wish of the user; None for halfway.
        option: The name of that wish, for the error.

    Raises PairwrightError where all runs would be on one side.

    >>> choose_threshold(np.array([0.0, 1.0, 1.0]), None, option="--threshold")
    0.5
    """
    lowest, highest = float(rewards.min(initial=np.inf)), float(rewards.max(initial=-np.inf))
    if not len(rewards):
        raise PairwrightError("no run has a reward: nothing says which are good")
    if not lowest < highest:
        raise PairwrightError(f"all {len(rewards)} scored runs have the reward {lowest:g}: nothing to learn from")
    # Halfway is where 0 and 1, -1 and 1, or thumbs are distinguished; other scales want a threshold of their own.
    chosen = (lowest + highest) / 2 if threshold is None else threshold
    if not lowest < chosen <= highest:
        raise PairwrightError(
            f"{option} {chosen:g}: all {len(rewards)} runs are on one side: rewards go from {lowest:g} to {highest:g}; "
            "choose a threshold above the first and not above the second"
        )
    return chosen

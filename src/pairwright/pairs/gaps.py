"""Differences of rewards as people write them: 0.3 - 0.1 is 0.2, not 0.19999999999999998.

A reward stands for the decimal number that its shortest text shows. Nearly all rewards have at most nine decimals: they
are whole numbers of 1e-9, and their differences are exact in integers. The others are subtracted as floats, and again
as decimals where the result lies so near a threshold that rounding could decide.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_UNITS = 1e9
_LIMIT = 2.0**52  # below it a whole number of units is exact, and so is a difference of two


def reward_gaps(higher: Floats, lower: Floats, *, near: Sequence[float] = ()) -> Floats:
    """higher - lower, row by row, as decimals; exact where it decides about one of the thresholds in `near`.

    >>> import numpy as np
    >>> 0.3 - 0.1 >= 0.2, bool(reward_gaps(np.array([0.3]), np.array([0.1]))[0] >= 0.2)
    (False, True)
    """
    higher, lower = np.broadcast_arrays(higher, lower)
    units_high, on_grid_high = _units(higher)
    units_low, on_grid_low = _units(lower)
    on_grid = on_grid_high & on_grid_low
    with np.errstate(over="ignore"):  # rewards of 1e308 and -1e308: the gap is infinite, and is one all the same
        plain = np.minimum(higher - lower, np.finfo(np.float64).max)
    gaps: Floats = np.where(on_grid, (units_high - units_low) / _UNITS, plain)
    if near and not on_grid.all():
        _sharpen(gaps, higher, lower, near, ~on_grid)
    return gaps


def decimal_gap(higher: float, lower: float) -> float:
    """The same for two numbers, always exact."""
    return float(Decimal(repr(float(higher))) - Decimal(repr(float(lower))))


def _units(rewards: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.rint(rewards * _UNITS)
        on_grid = (np.abs(units) < _LIMIT) & (units / _UNITS == rewards)
    return np.where(on_grid, units, 0.0), on_grid


def _sharpen(gaps: Floats, higher: Floats, lower: Floats, near: Sequence[float], off_grid: Any) -> None:
    size = np.maximum(np.abs(higher), np.abs(lower))
    for threshold in near:
        doubtful = off_grid & (np.abs(gaps - threshold) <= 1e-12 * np.maximum(size, abs(threshold)))
        for place in zip(*np.nonzero(doubtful), strict=True):
            gaps[place] = decimal_gap(higher[place], lower[place])

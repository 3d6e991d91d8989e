"""Reward gaps in decimal arithmetic, ties within float noise, and the reward scale of each source.

0.3 - 0.1 is 0.2, not 0.19999999999999998: a reward is treated as the decimal number of its shortest representation.
Nearly all rewards have at most nine decimals: they are integer multiples of 1e-9, and their differences are exact.
Others are subtracted as floats, and as decimals if the result is so close to a threshold that rounding could matter.

Rewards that differ by no more than float noise are tied, such as 1.0 and 0.9999999999999998. The tolerance is relative
to the larger magnitude, which is at least `TIE_FLOOR`, so that 0.1 + 0.2 - 0.3 ties with 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
# Rewards in units of 1e-9: nine decimals.
_UNITS = 1e9
TIE_TOLERANCE = 1e-9
TIE_FLOOR = 1e-6
_LIMIT = 2.0**52  # below it a whole number of units is exact, and so is a difference of two


def reward_gaps(higher: Floats, lower: Floats, *, near: Sequence[float] = ()) -> Floats:
    """Return higher - lower elementwise, in decimal arithmetic; exact if close to a threshold in `near`.

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
    # Units are 0 for rewards off the grid; `where` takes the plain difference there.
    gaps: Floats = np.where(on_grid, (units_high - units_low) / _UNITS, plain)
    if near and not on_grid.all():
        _sharpen(gaps, higher, lower, near, ~on_grid)
    return gaps


def decimal_gap(higher: float, lower: float) -> float:
    """Return higher - lower of two numbers in exact decimal arithmetic."""
    return float(Decimal(repr(float(higher))) - Decimal(repr(float(lower))))


def is_tied(
    higher: Floats | float, lower: Floats | float, tolerance: float, *, scale: Floats | float = TIE_FLOOR
) -> Flags:
    """Mask of rewards that differ by at most `tolerance` times the larger magnitude, which is at least `scale`.

    In sorted order, the rewards that tie with a given one are contiguous.

    >>> is_tied(np.array([1.0, 1.0, 2e-12]), np.array([0.9999999999999998, 0.999, 1e-12]), 1e-9).tolist()
    [True, False, False]
    """
    with np.errstate(over="ignore"):
        size = np.maximum(np.maximum(np.abs(higher), np.abs(lower)), scale)
        tied: Flags = np.abs(higher - lower) <= tolerance * size
    return tied


def is_tied_expression(tolerance: float, one: str = "chosen_reward", other: str = "rejected_reward") -> pl.Expr:
    """Polars expression: `is_tied` of two columns."""
    size = pl.max_horizontal(pl.col(one).abs(), pl.col(other).abs(), pl.lit(TIE_FLOOR))
    tied: pl.Expr = (pl.col(one) - pl.col(other)).abs() <= tolerance * size
    return tied


def _units(rewards: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.rint(rewards * _UNITS)
        # On the grid where the whole number of units gives back the very same float.
        on_grid = (np.abs(units) < _LIMIT) & (units / _UNITS == rewards)
    return np.where(on_grid, units, 0.0), on_grid


def _sharpen(gaps: Floats, higher: Floats, lower: Floats, near: Sequence[float], off_grid: Any) -> None:
    size = np.maximum(np.abs(higher), np.abs(lower))
    for threshold in near:
        # 1e-12 is far above the relative rounding error of one subtraction (about 1e-16), so no doubtful gap is missed.
        doubtful = off_grid & (np.abs(gaps - threshold) <= 1e-12 * np.maximum(size, abs(threshold)))
        for place in zip(*np.nonzero(doubtful), strict=True):
            gaps[place] = decimal_gap(higher[place], lower[place])


# Reward scale of each source: range and mean, with exact sums that do not depend on the order of addition

# Mantissas have 53 bits; summed as high part and low 26 bits, int64 does not overflow below 2**36 values.
_BITS, _LOW = 53, 26


@dataclass(frozen=True)
class Scale:
    """Number, exact sum, minimum and maximum of rewards."""

    num: int
    total: Fraction
    least: float
    most: float

    def __add__(self, other: "Scale") -> "Scale":
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Scale(self.num + other.num, self.total + other.total, least, most)

    def as_json(self) -> dict[str, float]:
        return {"min": self.least, "mean": float(self.total / self.num), "max": self.most}


def scales_of(rows: pl.DataFrame) -> dict[str, Scale]:
    """Return the scale of each source format that has rewards."""
    scored = rows.select("source_format", "reward").drop_nulls("reward")
    scales = {}
    for (name,), some in scored.group_by("source_format"):
        rewards = some["reward"].to_numpy()
        scales[str(name)] = Scale(len(rewards), exact_sum(rewards), float(rewards.min()), float(rewards.max()))
    return scales


def add_scales(one: dict[str, Scale], other: dict[str, Scale]) -> dict[str, Scale]:
    """Merge two sets of scales by name."""
    both = {name: one[name] + other[name] for name in one.keys() & other.keys()}
    return dict(sorted({**one, **other, **both}.items()))


def exact_sum(values: Floats) -> Fraction:
    """Return the exact sum of finite floats: integer mantissas are summed for each exponent.

    >>> exact_sum(np.array([0.1] * 10 + [-1.0])) == 10 * Fraction(0.1) - 1
    True
    """
    # value = mantissa * 2**exponent with a mantissa below 1 in magnitude, so mantissa * 2**53 is whole.
    mantissas, exponents = np.frexp(values)
    wholes = np.ldexp(mantissas, _BITS).astype(np.int64)
    total = Fraction(0)
    for exponent in np.unique(exponents).tolist():
        some = wholes[exponents == exponent]
        whole = (int((some >> _LOW).sum()) << _LOW) + int((some & (2**_LOW - 1)).sum())
        total += Fraction(whole) * Fraction(2) ** (exponent - _BITS)
    return total

"""The scale of rewards by source: range and mean. Sums are exact, so that the order of adding does not matter."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import polars as pl

from pairwright.pairs.gaps import Floats

_BITS, _LOW = 53, 26


@dataclass(frozen=True)
class Scale:
    """How many rewards there are, their sum, and the smallest and largest of them."""

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
    """The scale of each source format that has rewards."""
    scored = rows.select("source_format", "reward").drop_nulls("reward")
    found = {}
    for (name,), some in scored.group_by("source_format"):
        rewards = some["reward"].to_numpy()
        found[str(name)] = Scale(len(rewards), exact_sum(rewards), float(rewards.min()), float(rewards.max()))
    return found


def added(one: dict[str, Scale], other: dict[str, Scale]) -> dict[str, Scale]:
    """Both together, by name."""
    both = {name: one[name] + other[name] for name in one.keys() & other.keys()}
    return dict(sorted({**one, **other, **both}.items()))


def exact_sum(values: Floats) -> Fraction:
    """The sum of finite floats, without rounding: whole numbers times powers of two, added power by power.

    >>> exact_sum(np.array([0.1] * 10 + [-1.0])) == 10 * Fraction(0.1) - 1
    True
    """
    mantissas, exponents = np.frexp(values)
    wholes = np.ldexp(mantissas, _BITS).astype(np.int64)
    total = Fraction(0)
    for exponent in np.unique(exponents).tolist():
        some = wholes[exponents == exponent]
        whole = (int((some >> _LOW).sum()) << _LOW) + int((some & (2**_LOW - 1)).sum())
        total += Fraction(whole) * Fraction(2) ** (exponent - _BITS)
    return total

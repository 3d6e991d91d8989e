"""The options of pair building: the `pairs` section of the configuration, with a seed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pairwright.config import Config, PairsConfig
from pairwright.config.pairs_config import STRATEGY_NAMES, Threshold
from pairwright.config.problems import CheckedSection
from pairwright.errors import ConfigError
from pairwright.paths import place
from pairwright.store.conditions import parse_where

__all__ = ["STRATEGY_NAMES", "PairOptions", "Threshold", "pair_options"]


class PairOptions(CheckedSection, PairsConfig):
    """Options of pair building: those of `PairsConfig`, and a seed. None means no limit.

    >>> PairOptions(strategy="best-worst", min_gap=-1)
    Traceback (most recent call last):
    pairwright.errors.ConfigError: min_gap: got -1, expected at least 0
    """

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of sample and split."""

    if not TYPE_CHECKING:  # type checkers see the fields as arguments

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            if self.where is not None:
                parse_where(self.where, option="where")
            if self.strategy == "teachers" and not self.teachers:
                raise ConfigError("teachers: name the tables of the teachers' answers with --teachers DIR")

    def as_json(self) -> dict[str, Any]:
        """Return the options for funnel.json; paths are reduced to names, so that results do not depend on them."""
        optional = ("preset", "within", "score")
        values = {name: value for name, value in dict(self).items() if name not in optional or value is not None}
        if self.score is None:
            del values["reliability"], values["min_probability"]
        values |= {name: str(values[name]) for name in ("high", "low")}
        values["teachers"] = [place(path).name for path in self.teachers]
        values["votes"] = None if self.votes is None else Path(self.votes).name
        values["memory_megabytes"] = values.pop("memory_megabytes")  # after the seed
        return values


def pair_options(config: Config) -> PairOptions:
    """Return the `pairs` section of a configuration, with its seed."""
    return PairOptions(**dict(config.pairs), seed=config.seed)

"""The `pairs` section of a configuration as the options of pair building."""

from pathlib import Path

from pairwright.config import Config
from pairwright.errors import ConfigError
from pairwright.pairs.options import PairOptions, Threshold
from pairwright.places import is_address, place


def pair_options(config: Config) -> PairOptions:
    """What the configuration asks for; the seed is the run's."""
    section = config.pairs
    found = {name: getattr(section, name) for name in type(section).model_fields}
    for name in ("high", "low"):
        found[name] = Threshold.parse(found[name], f"pairs.{name}")
    found["teachers"] = tuple(place(path) for path in section.teachers)
    if section.votes is not None and is_address(section.votes):
        raise ConfigError("pairs.votes: an address, but votes are read on this machine only: copy the file here")
    found["votes"] = None if section.votes is None else Path(section.votes)
    return PairOptions(**found, seed=config.seed)

"""Options given in Python, laid over a configuration and checked like those of a file."""

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pairwright.config.loading import load_config, validate_tree
from pairwright.config.tree import Config


def adjust_config(config: "Config | str | os.PathLike[str] | None" = None, **values: Any) -> Config:
    """A configuration (or the file of one, or the defaults) with values in the place of its own.

    Args:
        config: What to start from.
        **values: Top-level keys; a dict is laid over the section, key by key.

    >>> adjust_config(seed=3, train={"epochs": 2}).train.epochs
    2
    """
    base = config if isinstance(config, Config) else load_config(config)
    if all(value == {} for value in values.values()):
        return base  # exactly as it is, for those who compare configurations
    return validate_tree(_merge(base.model_dump(exclude_unset=True), values), "options")


def _merge(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(tree)
    for key, value in values.items():
        before = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merge(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[key] = _plain(value)
    return merged


def _plain(value: Any) -> Any:
    """Paths as text, also in lists, since a configuration is what a YAML file can say."""
    if isinstance(value, PurePath):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

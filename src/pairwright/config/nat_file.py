"""A configuration file of NAT as a tree of plain values, merged over the file that its `base` names."""

import warnings
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MantissaNoDotYAML1_1Warning
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from pairwright.config.plain_yaml import merge_trees, read_yaml
from pairwright.errors import ConfigError


def read_nat(path: Path) -> dict[str, Any]:
    """The tree of a file, merged over its base files."""
    return _read(path, ())


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    # files name their base; a cycle would recurse for ever
    if path.resolve() in above:
        raise ConfigError(f"{above[-1]}: base: {path} builds on this file itself")
    tree = _parse(path)
    base = tree.pop("base", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base: got {base!r}, expected the path of a file")
    return merge_trees(_read(path.parent / base, (*above, path.resolve())), tree)


class _Resolver(VersionedResolver):
    """YAML 1.1 as PyYAML reads it, which NAT uses: a lone `y` or `n` is text."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        is_letter = kind is ScalarNode and value in ("y", "Y", "n", "N") and implicit[0]
        return Tag(suffix="tag:yaml.org,2002:str") if is_letter else super().resolve(kind, value, implicit)


def _parse(path: Path) -> dict[str, Any]:
    yaml = YAML(typ="safe", pure=True)
    # NAT reads YAML 1.1, where `yes` and `on` are booleans
    yaml.version = (1, 1)
    yaml.Resolver = _Resolver
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)  # NAT reads 5e-6 as a number, and so do we
        value = read_yaml(path, yaml)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected keys and values at the top, got {type(value).__name__}")
    return value

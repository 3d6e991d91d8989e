"""User YAML files as plain values. The size of a file and the number of values after alias expansion are bounded.

A few hundred bytes of nested aliases can expand to billions of values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pairwright.errors import ConfigError

MAX_BYTES = 4 * 2**20
MAX_VALUES = 500_000


def read_yaml(path: Path, yaml: YAML | None = None) -> Any:
    """The value of a YAML file: dicts, lists, text, numbers, never Python objects; `yaml` replaces our loader."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES:,} bytes, the limit for YAML files")
        return parse_yaml(data.decode("utf-8"), str(path), yaml)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: a folder; expected a YAML file, such as {path}/config.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def parse_yaml(text: str, where: str, yaml: YAML | None = None) -> Any:
    """Return the value of YAML text; `where` names it in errors.

    >>> parse_yaml("[3, true, a]", "--set")
    [3, True, 'a']
    """
    try:
        value = (yaml or YAML(typ="safe", pure=True)).load(text)
        num_values = _num_values(value, {})
    except (YAMLError, ValueError, RecursionError) as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        line = "" if mark is None else f":{mark.line + 1}"
        problem = "nested too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        if isinstance(error, MarkedYAMLError) and error.problem:
            problem = str(error.problem)
        raise ConfigError(f"{where}{line}: not valid YAML: {problem}") from None
    if num_values > MAX_VALUES:
        raise ConfigError(f"{where}: its aliases expand to more than {MAX_VALUES:,} values")
    return value


def merge_trees(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a tree of keys and values over another, section by section.

    >>> merge_trees({"train": {"epochs": 2}, "seed": 1}, {"train": {"batch_size": 4}})
    {'train': {'epochs': 2, 'batch_size': 4}, 'seed': 1}
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge_trees(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _num_values(value: Any, known: dict[int, int]) -> int:
    """Count the values of a tree with its aliases expanded; each shared object is visited once."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = MAX_VALUES + 1  # found by a list that contains itself
        children = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_num_values(child, known) for child in children)
    return known[id(value)]

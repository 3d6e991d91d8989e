"""A configuration file of NeMo Agent Toolkit (NAT) as one tree of plain values, read as NAT reads it.

YAML 1.1 (`yes` is true, as in PyYAML), and `base: other.yml` puts this file's keys on top of another's. `${VAR}` stays
as it stands: the environment of whoever converts a file is not the one it will run in.
"""

import warnings
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, MarkedYAMLError, YAMLError

from pairwright.errors import ConfigError


def read_nat(path: Path) -> dict[str, Any]:
    """The tree of a file, with the files that it builds on below it."""
    return _read(path, ())


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in above:
        raise ConfigError(f"{above[-1]}: base: {path} builds on this file itself")
    tree = _parsed(path)
    base = tree.pop("base", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base: got {base!r}, expected the path of a file")
    return _merged(_read(path.parent / base, (*above, path.resolve())), tree)


def _parsed(path: Path) -> dict[str, Any]:
    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)  # 5e-6 is a number to NAT, and here
            value = yaml.load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
        line = "" if mark is None else f":{mark.line + 1}"
        raise ConfigError(f"{path}{line}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected keys and values at the top, got {type(value).__name__}")
    return value


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged

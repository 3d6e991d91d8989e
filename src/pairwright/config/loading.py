"""The configuration tree filled from a YAML file, the environment and the command line, in that order.

    seed: 0
    sources: {paths: ["${TRACES}/*.jsonl"], format: auto}

`${VAR}` in the file is replaced by the variable's value; `PAIRWRIGHT_SOURCES__FORMAT=nat` in the environment and
`sources.format=nat` on the command line override single keys. An unknown key is an error that suggests the nearest one.
What came from the environment is never shown: `show` prints the reference, and errors do not repeat the value.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pairwright.config.keys import explain_unknown, is_top_key
from pairwright.config.pair_names import own_names
from pairwright.config.problems import describe_problems
from pairwright.config.tree import Config
from pairwright.errors import ConfigError
from pairwright.places import is_address, place

ENVIRONMENT_PREFIX = "PAIRWRIGHT_"
_PLACES = (("sources", "paths"), ("pairs", "teachers"), ("tokens", "experience"))
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_config(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
) -> Config:
    """The configuration of a file (or the defaults), with the environment and then the overrides applied.

    Args:
        path: A YAML file; None for the defaults.
        overrides: Keys and their values as YAML text, e.g. [("train.epochs", "2")].
        environment: Variables to read instead of those of this process; PAIRWRIGHT_TRAIN__EPOCHS is train.epochs.
        flags: What options of the command line set, as key: (option, value). They count first; errors name the option.

    >>> import pairwright as pw
    >>> pw.load_config(overrides=[("train.epochs", "2")], environment={}).train.epochs
    2
    """
    environment = os.environ if environment is None else environment
    tree = _filled(merged_tree(path, overrides=overrides, environment=environment), environment, "config")
    if flags and isinstance(tree.get("pairs"), dict):  # an option replaces what a foreign name of the same thing says
        tree["pairs"] = own_names(tree["pairs"])
    for key, (flag, value) in (flags or {}).items():
        _set(tree, key, value, flag)
    config = validate_tree(tree, str(path or "config"), flags or {})
    return config if path is None else _with_hint_file(config, Path(path).resolve().parent)


def shown_config(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The resolved configuration for people to read: values from the environment stand as `${VAR}`, and addresses
    without the credentials that may be in them."""
    environment = os.environ if environment is None else environment
    resolved = load_config(path, overrides=overrides, environment=environment).model_dump(mode="json")
    shown: dict[str, Any] = _with_references(resolved, merged_tree(path, overrides=overrides, environment=environment))
    for section, key in _PLACES:
        shown[section][key] = [str(place(text)) if is_address(text) else text for text in shown[section][key]]
    return shown


def merged_tree(
    path: str | os.PathLike[str] | None, *, overrides: Sequence[tuple[str, str]], environment: Mapping[str, str]
) -> dict[str, Any]:
    """File, environment and overrides as one tree of plain values, `${VAR}` not filled yet."""
    tree = {} if path is None else _read_yaml(Path(path))
    for variable in sorted(environment):
        if variable.startswith(ENVIRONMENT_PREFIX):
            key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            _set(tree, key, f"${{{variable}}}", variable)
    for key, value in overrides:
        if not is_top_key(key):
            raise ConfigError(explain_unknown(key))
        _set(tree, key, _yaml_value(value, key), key)
    return tree


def config_schema() -> dict[str, Any]:
    """The JSON schema of the configuration, for editors."""
    return Config.model_json_schema()


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        value = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}{_mark(error)}: not valid YAML: {_problem(error)}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected keys and values at the top, got {type(value).__name__}")
    return value


def _yaml_value(text: str, where: str) -> Any:
    """A value from the command line, read as YAML: 3 is a number, true a bool, [a, b] a list."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: not valid YAML: {_problem(error)}") from None


def _set(tree: dict[str, Any], dotted: str, value: Any, where: str) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{where}: {parent!r} is a value, not a section")
    tree[last] = value


def _filled(value: Any, environment: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, environment, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, environment, f"{where}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigError(f"{where}: the environment has no {match[1]}: set it, or write the value in the file")
        return environment[match[1]]

    filled = _REFERENCE.sub(replaced, value)
    # a value that is one reference keeps its YAML type, so that ${PORT} can be a number
    return _yaml_value(filled, where) if _REFERENCE.fullmatch(value) else filled


def _with_references(resolved: Any, written: Any) -> Any:
    if isinstance(resolved, dict) and isinstance(written, dict):
        return {key: _with_references(item, written.get(key)) for key, item in resolved.items()}
    if isinstance(resolved, list) and isinstance(written, list) and len(resolved) == len(written):
        return [_with_references(item, source) for item, source in zip(resolved, written, strict=True)]
    return written if isinstance(written, str) and _REFERENCE.search(written) else resolved


def validate_tree(tree: dict[str, Any], where: str, flags: Mapping[str, tuple[str, Any]] = {}) -> Config:
    try:
        return Config.model_validate(tree)
    except pydantic.ValidationError as error:
        problems = describe_problems(error, Config, flags=flags)
        is_file_wrong = any(not problem.startswith("--") for problem in problems)
        raise ConfigError((f"{where}: " if is_file_wrong else "") + "; ".join(problems)) from None


def _with_hint_file(config: Config, folder: Path) -> Config:
    """`train.sdpo.hint` as path/file.py:function counts from here, then from the folder of the configuration."""
    place, _, function = (config.train.sdpo.hint or "").rpartition(":")
    if not place.endswith(".py") or Path(place).exists() or not (folder / place).exists():
        return config
    hinted = config.train.sdpo.model_copy(update={"hint": f"{folder / place}:{function}"})
    return config.model_copy(update={"train": config.train.model_copy(update={"sdpo": hinted})})


def _mark(error: Exception) -> str:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    return f":{mark.line + 1}" if mark is not None else ""


def _problem(error: Exception) -> str:
    return str(error.problem or error) if isinstance(error, MarkedYAMLError) else str(error).split("\n")[0]

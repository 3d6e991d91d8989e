"""Loads a configuration.

    seed: 0
    sources: {paths: ["${TRACES}/*.jsonl"], format: auto}

`load_config` reads a YAML file, then the environment, then the command line; each overrides the one before. `${VAR}` in
the file is replaced by the variable's value; `PAIRWRIGHT_SOURCES__FORMAT=nat` in the environment and
`sources.format=nat` on the command line set single keys. An unknown key is an error that suggests the nearest one.
Values from the environment are never printed: `config show` prints the reference, and errors do not repeat the value.
`adjust_config` overrides values of a configuration from Python.
"""

import os
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any

import pydantic

from pairwright.config.config_tree import Config, explain_unknown, is_top_key
from pairwright.config.nat_keys import COMPONENTS
from pairwright.config.pairs_names import own_names
from pairwright.config.plain_yaml import merge_trees, parse_yaml, read_yaml
from pairwright.config.problems import describe_problems
from pairwright.errors import ConfigError
from pairwright.paths import is_address, place

_PREFIX = "PAIRWRIGHT_"
# Variables with this prefix that are not keys: an option of `serve`, and the secret of a model server
_NOT_KEYS = ("PAIRWRIGHT_DATABASE", "PAIRWRIGHT_MODEL_SECRET")
# Keys that hold addresses, which may contain credentials
_PLACES = (("sources", "paths"), ("pairs", "teachers"), ("tokens", "experience"))
# Keys that hold the name of a function, beside those that are loaded with a base folder
_CODE_KEYS = ("train.sdpo.hint", "tokens.train_turns", "tokens.credit.function")
# ${NAME}: group 1 is the name of the variable
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
        flags: Values of command-line options, as key: (option, value). They override the rest; errors name the option.

    >>> import pairwright as pw
    >>> pw.load_config(overrides=[("train.epochs", "2")], environment={}).train.epochs
    2
    """
    environment = os.environ if environment is None else environment
    tree = _fill(merge_tree(path, overrides=overrides, environment=environment), environment, "config")
    if flags:
        _set_flags(tree, flags)
    config = validate_tree(tree, str(path or "config"), flags or {})
    return config if path is None else _with_code_files(config, base_folder(config, path))


def base_folder(config: Config, path: str | os.PathLike[str]) -> Path:
    """The folder against which relative paths of a configuration file are resolved, after the current folder."""
    folder = Path(path).resolve().parent
    return folder if config.base is None else folder / config.base


def printable_config(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The resolved configuration as it may be printed: `${VAR}` for variables, addresses without their credentials."""
    environment = os.environ if environment is None else environment
    # resolve for real, then put the references back where the written tree has them
    resolved = load_config(path, overrides=overrides, environment=environment).model_dump(mode="json")
    tree: dict[str, Any] = _with_references(resolved, merge_tree(path, overrides=overrides, environment=environment))
    if tree["base"] is None and path is not None:
        tree["base"] = str(Path(path).resolve().parent)
    for section, key in _PLACES:
        tree[section][key] = [str(place(text)) if is_address(text) else text for text in tree[section][key]]
    return tree


def merge_tree(
    path: str | os.PathLike[str] | None, *, overrides: Sequence[tuple[str, str]], environment: Mapping[str, str]
) -> dict[str, Any]:
    """File, environment and overrides as one tree of plain values, `${VAR}` not filled yet."""
    tree = {} if path is None else read_tree(Path(path))
    for variable in sorted(environment):
        if variable.startswith(_PREFIX) and variable not in _NOT_KEYS:
            key = variable.removeprefix(_PREFIX).lower().replace("__", ".")
            # a reference and not the value, so that printing the tree cannot reveal it
            _set(tree, key, f"${{{variable}}}", variable)
    for key, value in overrides:
        if not is_top_key(key):
            raise ConfigError(explain_unknown(key))
        _set(tree, key, parse_yaml(value, key), key)  # 3 is a number, true a bool, [a, b] a list
    return tree


def config_schema() -> dict[str, Any]:
    """The JSON schema of the configuration, for editors."""
    return Config.model_json_schema()


def read_tree(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; ConfigError if its top level is not a mapping."""
    value = read_yaml(path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected keys and values at the top, got {type(value).__name__}")
    return value


def _set(tree: dict[str, Any], dotted: str, value: Any, where: str) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{where}: {parent!r} is a value, not a section")
    tree[last] = value


def _set_flags(tree: dict[str, Any], flags: Mapping[str, tuple[str, Any]]) -> None:
    """Set the values of command-line options, also if the file uses an alias or a short form of the same key."""
    if isinstance(tree.get("pairs"), dict):
        tree["pairs"] = own_names(tree["pairs"])
    if isinstance(tree.get("engine"), str):
        tree["engine"] = {"name": tree["engine"]}
    engine = tree.get("engine")
    if "engine.name" in flags and isinstance(engine, dict) and engine.get("name") != flags["engine.name"][1]:
        engine.pop("address", None)  # the address of another engine
    for key, (flag, value) in flags.items():
        _set(tree, key, value, flag)


def _fill(value: Any, environment: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, environment, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, environment, f"{where}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigError(f"{where}: the environment has no {match[1]}: set it, or write the value in the file")
        return environment[match[1]]

    text = _REFERENCE.sub(look_up, value)
    # a value that is one reference keeps its YAML type, so that ${PORT} can be a number
    return parse_yaml(text, where) if _REFERENCE.fullmatch(value) else text


def _with_references(resolved: Any, written: Any) -> Any:
    if isinstance(resolved, dict) and isinstance(written, dict):
        return {key: _with_references(item, written.get(key)) for key, item in resolved.items()}
    if isinstance(resolved, list) and isinstance(written, list) and len(resolved) == len(written):
        return [_with_references(item, source) for item, source in zip(resolved, written, strict=True)]
    return written if isinstance(written, str) and _REFERENCE.search(written) else resolved


def validate_tree(tree: dict[str, Any], where: str, flags: Mapping[str, tuple[str, Any]] = {}) -> Config:
    if any(section in tree for section in ("finetuning", *COMPONENTS)):
        raise ConfigError(
            f"{where}: a configuration of NeMo Agent Toolkit: turn it into one of ours with pairwright config from-nat "
            f"{where} -o ours.yaml, or keep it and run nat finetune with our plugin (docs: From NAT)"
        )
    try:
        return Config.model_validate(tree)
    except pydantic.ValidationError as error:
        problems = describe_problems(error, Config, flags=flags)
        # name the file only if the error is in the file, not in an option
        is_file_wrong = any(not problem.startswith("--") for problem in problems)
        raise ConfigError((f"{where}: " if is_file_wrong else "") + "; ".join(problems)) from None


def _with_code_files(config: Config, folder: Path) -> Config:
    """Functions as path/file.py:function are resolved against the current folder, then against the folder of the
    configuration."""
    found: dict[str, Any] = {}
    for key in _CODE_KEYS:
        name: str | None = attrgetter(key)(config)
        place, _, function = (name or "").rpartition(":")
        if place.endswith(".py") and not Path(place).exists() and (folder / place).exists():
            _set(found, key, f"{folder / place}:{function}", key)
    return adjust_config(config, **found)


def adjust_config(config: "Config | str | os.PathLike[str] | None" = None, **values: Any) -> Config:
    """Return a configuration (or the file of one, or the defaults) with some values replaced.

    Args:
        config: What to start from.
        **values: Top-level keys; a dict replaces single keys of the section.

    >>> adjust_config(seed=3, train={"epochs": 2}).train.epochs
    2
    """
    base = config if isinstance(config, Config) else load_config(config)
    if all(value == {} for value in values.values()):
        return base  # the same object, so that callers can compare identities
    # exclude_unset: a value that was never set stays a default, and validators see only what was written
    return validate_tree(merge_trees(base.model_dump(exclude_unset=True), _plain(values)), "options")


def _plain(value: Any) -> Any:
    """Convert paths to text, also in lists and sections: a configuration has only values that YAML can write."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

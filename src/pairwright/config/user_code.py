"""Loads user code by name: `module:NAME`, `path/file.py:NAME`, or the name of an entry point.

Code is loaded only if the user names it, or has installed a package with an entry point. Data files never load any.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from pairwright.errors import ConfigError

WORKFLOWS = "pairwright.workflows"
SCORERS = "pairwright.scorers"
FORMATS = "pairwright.formats"
STRATEGIES = "pairwright.strategies"
LOSSES = "pairwright.losses"
TARGETS = "pairwright.targets"
BACKENDS = "pairwright.backends"


def load_function(name: str, *, group: str, base: Path | None = None) -> Callable[..., Any]:
    """Load a function. Paths are relative to the working directory, then to `base`, the configuration's folder."""
    target = load_object(name, group=group, base=base)
    if not callable(target):
        raise ConfigError(f"{name}: expected a function, got {type(target).__name__}")
    function: Callable[..., Any] = target
    return function


def load_object(name: str, *, group: str, base: Path | None = None) -> Any:
    """Load the object with this name; ConfigError if there is none."""
    place, colon, attribute = name.rpartition(":")
    if not colon:
        known = {point.name: point for point in entry_points(group=group)}
        if name not in known:
            raise ConfigError(
                f"{name}: expected module:function, path/file.py:function, or an entry point of {group}"
                f" ({', '.join(sorted(known)) or 'there is none'})"
            )
        return known[name].load()
    module = _load_file(place, base) if place.endswith(".py") else _load_module(place)
    target: Any = module  # a dotted attribute may name a method of a class
    for part in attribute.split("."):
        target = getattr(target, part, None)
    if target is None:
        have = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(f"{name}: {place} has no function {attribute!r}; it has {', '.join(sorted(have)) or 'none'}")
    return target


def load_own(name: str, kind: type, *, group: str) -> Any:
    """Load an object of a class, such as a Format; ConfigError for anything else."""
    target = load_object(name, group=group)
    if not isinstance(target, kind):
        raise ConfigError(f"{name}: expected a {kind.__name__}, got {type(target).__name__}")
    return target


@lru_cache
def installed(group: str) -> list[str]:
    """Return the names of the entry points of a group, without loading them."""
    return sorted({point.name for point in entry_points(group=group)})


def is_own(name: str, group: str) -> bool:
    """Whether a name refers to user code: `file.py:NAME`, `module:NAME`, or an installed entry point."""
    return ":" in name or name in installed(group)


def check_name(name: str, known: Collection[str], group: str) -> str:
    """Return a name of a registry or of user code; raise ValueError for any other."""
    if name in known or is_own(name, group):
        return name
    raise ValueError(f"expected one of {', '.join(known)}, or your own as path/file.py:NAME or module:NAME")


def _load_file(place: str, base: Path | None) -> ModuleType:
    path = Path(place)
    if not path.is_file() and base is not None:
        path = base / place
    if not path.is_file():
        raise ConfigError(f"{place}: no such file")
    path = path.resolve()
    # a unique module name per path, so that two files with one name do not replace each other
    name = f"pairwright_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:  # as for a script: modules in the same folder can be imported
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(place: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # the module itself is missing; a missing import inside it is an error of the user's code and is raised
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(f"{place}: no such module from here; a file is written path/file.py:function") from None
        raise

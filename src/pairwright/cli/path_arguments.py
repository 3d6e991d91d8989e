"""Paths on the command line: how help names those that may be addresses, and the refusal of addresses by all others."""

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from pairwright.errors import ConfigError

PLACE = "<path>"  # what help calls a local path or an address; the text becomes one by `pairwright.paths.paths`
_MANGLED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/].*", re.S)  # what pathlib makes of scheme://...


def refuse_addresses(command: Any, name: str = "pairwright") -> None:
    """Let every command refuse an address where it takes a local path."""
    if isinstance(command, TyperGroup):
        for word, child in command.commands.items():
            refuse_addresses(child, f"{name} {word}")
    elif command.callback is not None:
        command.callback = _with_path_check(command.callback, name)


def _with_path_check(callback: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(callback)
    def check_and_call(*args: Any, **params: Any) -> Any:
        for param, value in params.items():
            for path in value if isinstance(value, list | tuple) else [value]:
                if isinstance(path, Path) and _MANGLED.fullmatch(str(path)):
                    raise ConfigError(_refusal(str(path), name, param))
        return callback(*args, **params)

    return check_and_call


def _refusal(text: str, name: str, param: str) -> str:
    from pairwright.paths import place

    return (
        f"{place(text.replace(':/', '://', 1))}: an address, but `{name}` takes its {param.replace('_', ' ')} only on "
        "this machine: copy it to a folder here and name that (docs/scale.md says what takes addresses)"
    )

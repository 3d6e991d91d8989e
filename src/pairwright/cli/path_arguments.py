"""Places on the command line: arguments that take addresses, and the refusal of addresses by all others."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pairwright.errors import ConfigError

if TYPE_CHECKING:
    from pairwright.config import EngineConfig
    from pairwright.engines import Engine

PLACE = "<path>"  # what help calls a local path or an address; the text becomes one by `pairwright.paths.paths`
_MANGLED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/].*", re.S)  # what pathlib makes of scheme://...


def refuse_addresses(command: Any, name: str = "pairwright") -> None:
    """Let every command say so where one of its local paths is given an address."""
    if isinstance(command, TyperGroup):
        for word, child in command.commands.items():
            refuse_addresses(child, f"{name} {word}")
    elif command.callback is not None:
        command.callback = _checked(command.callback, name)


def _checked(callback: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(callback)
    def checked(*args: Any, **params: Any) -> Any:
        for param, value in params.items():
            for path in value if isinstance(value, list | tuple) else [value]:
                if isinstance(path, Path) and _MANGLED.fullmatch(str(path)):
                    raise ConfigError(_refusal(str(path), name, param))
        return callback(*args, **params)

    return checked


def _refusal(text: str, name: str, param: str) -> str:
    from pairwright.paths import place

    return (
        f"{place(text.replace(':/', '://', 1))}: an address, but `{name}` takes its {param.replace('_', ' ')} only on "
        "this machine: copy it to a folder here and name that (docs/scale.md says what takes addresses)"
    )


# `--engine` and `--address` of the commands whose pieces may run elsewhere.


class EngineName(StrEnum):
    embedded = "embedded"
    ray = "ray"


EngineOption = Annotated[
    EngineName | None, typer.Option("--engine", help="Processes of this machine (embedded), or a Ray cluster.")
]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="ray: auto, HOST:PORT or ray://HOST:PORT; else one is started here.")
]


def engine_settings(
    settings: "EngineConfig", name: EngineName | None, address: str | None, workers: int | None = None
) -> "EngineConfig":
    """The section `engine` with what the command line says."""
    from pairwright.config import EngineConfig

    told = settings.model_dump()
    if name is not None and name.value != settings.name:
        told |= {"name": name.value, "address": None}
    if address is not None:
        if told["name"] != "ray":
            raise ConfigError("--address: only with --engine ray")
        told["address"] = address
    return EngineConfig(**told | ({} if workers is None else {"workers": workers}))


def opened_engine(settings: "EngineConfig") -> AbstractContextManager["Engine | None"]:
    """The engine that the settings ask for; None stands for what a stage does by itself on this machine."""
    from pairwright.engines import open_engine

    return open_engine(settings)

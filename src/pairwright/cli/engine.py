"""`--engine` and `--address` of the commands whose pieces may run elsewhere."""

from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from pairwright.errors import ConfigError

if TYPE_CHECKING:
    from pairwright.config import EngineConfig
    from pairwright.engines import Engine


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
    from pairwright.engines import opened

    return opened(settings)

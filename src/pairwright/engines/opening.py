"""The engine that a configuration asks for."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from pairwright.engines.engine import Engine
from pairwright.engines.pool import open_pool
from pairwright.engines.ray import open_ray

if TYPE_CHECKING:  # the configuration loads pydantic, which a worker does not need
    from pairwright.config.engine import EngineConfig

ENGINES: dict[str, Callable[["EngineConfig"], AbstractContextManager[Engine]]] = {
    "embedded": open_pool,
    "ray": open_ray,
}


@contextmanager
def opened(settings: "EngineConfig") -> Iterator[Engine | None]:
    """An engine for a while; None where nothing was asked for, and a stage does what pays on this machine."""
    if settings.name == "embedded" and settings.workers is None:
        yield None
        return
    with ENGINES[settings.name](settings) as engine:
        yield engine

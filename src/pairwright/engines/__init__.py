"""Engines: where the pieces of a stage run. The pieces, and what comes of them, are the same on each.

`ENGINES` lists them by the name that `engine.name` takes. Each is a function that opens one for a while.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from pairwright.engines.engine import Engine, EngineError, Pool, open_pool
from pairwright.engines.ray_engine import RayEngine, open_ray

if TYPE_CHECKING:
    from pairwright.config.sections import EngineConfig

# The engine that a configuration asks for.

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


# Engines: where the pieces of a stage run. The pieces, and what comes of them, are the same on each.

__all__ = ["ENGINES", "Engine", "EngineError", "Pool", "RayEngine", "open_pool", "open_ray", "opened"]

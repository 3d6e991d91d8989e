"""Engines run the tasks of a stage. Tasks and results are the same on each engine."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from pairwright.engines.engine import Engine, EngineError
from pairwright.engines.process_pool import Pool, open_pool
from pairwright.engines.ray_engine import RayEngine, open_ray

if TYPE_CHECKING:
    from pairwright.config.sections import EngineConfig

ENGINES: dict[str, Callable[["EngineConfig"], AbstractContextManager[Engine]]] = {
    "embedded": open_pool,
    "ray": open_ray,
}


@contextmanager
def open_engine(settings: "EngineConfig") -> Iterator[Engine | None]:
    """Open the configured engine; None for the defaults: the stage then chooses what is fastest on this machine."""
    if settings.name == "embedded" and settings.workers is None:
        yield None
        return
    with ENGINES[settings.name](settings) as engine:
        yield engine


__all__ = ["ENGINES", "Engine", "EngineError", "Pool", "RayEngine", "open_engine", "open_pool", "open_ray"]

"""Engines: where the pieces of a stage run. The pieces, and what comes of them, are the same on each.

`ENGINES` lists them by the name that `engine.name` takes. Each is a function that opens one for a while.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pairwright.engines.engine import Engine, EngineError
from pairwright.engines.pool import Pool, open_pool
from pairwright.engines.ray import RayEngine, open_ray

if TYPE_CHECKING:  # the configuration loads pydantic, which a worker does not need
    from pairwright.config.engine import EngineConfig

ENGINES: "dict[str, Callable[[EngineConfig], AbstractContextManager[Engine]]]" = {
    "embedded": open_pool,
    "ray": open_ray,
}

__all__ = ["ENGINES", "Engine", "EngineError", "Pool", "RayEngine", "open_pool", "open_ray"]

"""Engines: where the pieces of a stage run. The pieces, and what comes of them, are the same on each.

`ENGINES` lists them by the name that `engine.name` takes. Each is a function that opens one for a while.
"""

from pairwright.engines.engine import Engine, EngineError
from pairwright.engines.opening import ENGINES, opened
from pairwright.engines.pool import Pool, open_pool
from pairwright.engines.ray import RayEngine, open_ray

__all__ = ["ENGINES", "Engine", "EngineError", "Pool", "RayEngine", "open_pool", "open_ray", "opened"]

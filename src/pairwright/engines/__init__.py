"""Engines run the tasks of a stage. Tasks and results are the same on each engine."""

from pairwright.engines.engine import Engine, EngineError
from pairwright.engines.open_engine import ENGINES, open_engine
from pairwright.engines.process_pool import Pool, open_pool
from pairwright.engines.ray_engine import RayEngine, open_ray

__all__ = ["ENGINES", "Engine", "EngineError", "Pool", "RayEngine", "open_engine", "open_pool", "open_ray"]

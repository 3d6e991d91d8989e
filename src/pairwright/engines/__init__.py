"""Engines: where the tasks of a stage run. Tasks and results are the same on each engine."""

from pairwright.engines.engine import ENGINES, Engine, EngineError, Pool, RayEngine, open_engine, open_pool, open_ray

__all__ = ["ENGINES", "Engine", "EngineError", "Pool", "RayEngine", "open_engine", "open_pool", "open_ray"]

"""The cluster of the tests of engines."""

from engines.ray_cluster import cluster, ray_engine

__all__ = ["cluster", "ray_engine"]

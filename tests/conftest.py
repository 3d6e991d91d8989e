"""Fixtures for all tests. Tests that use the shared real data are skipped if it is absent."""

import os
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from engines.ray_cluster import cluster, ray_engine, two_nodes
from paths.s3_server import bucket, s3, s3_server

__all__ = ["bucket", "cluster", "ray_engine", "s3", "s3_server", "two_nodes"]

# Some virtual machines announce AMX and do not allow it: bf16 products would end in an illegal instruction. Read by
# torch when it is first used, here and in the processes that tests start.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# The same examples in every run, and no limits of time: a test must not fail by chance or on a busy machine.
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def traces() -> Path:
    if not (SHARED / "traces").is_dir():
        pytest.skip(f"no real traces beside the project ({SHARED.parent.name}/data/traces)")
    return SHARED / "traces"


@pytest.fixture
def peak_memory():
    """A context that fails when more memory than `limit` bytes was taken at once inside it."""

    @contextmanager
    def measured(*, limit: int):
        tracemalloc.start()
        try:
            yield
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < limit, f"{peak} bytes were allocated, the limit is {limit}"

    return measured

"""One Ray cluster of two nodes for all tests of a session, and an engine on it. conftest.py has them for all tests."""

import os
from pathlib import Path

import pytest

from pairwright.config import EngineConfig


@pytest.fixture(scope="session")
def cluster():
    """The address of the cluster: two nodes of one core each."""
    pytest.importorskip("ray")
    tests = Path(__file__).resolve().parents[1]
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(tests)}  # workers find the functions of the tests
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    made.wait_for_nodes()
    os.environ.update({name: value for name, value in before.items() if value is not None})
    for name in [name for name, value in before.items() if value is None]:
        del os.environ[name]
    yield made.address
    made.shutdown()


@pytest.fixture(scope="session")
def ray_engine(cluster):
    from pairwright.engines import open_ray

    with open_ray(EngineConfig(name="ray", address=cluster)) as engine:
        yield engine

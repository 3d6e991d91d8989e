"""One Ray cluster of two nodes for all tests of a session, and an engine on it. conftest.py has them for all tests."""

import os
import socket
import warnings
from pathlib import Path

import pytest

from pairwright.config import EngineConfig


@pytest.fixture(scope="session")
def two_nodes():
    """A cluster of two nodes of one core each: its address, and that for clients from outside."""
    pytest.importorskip("ray")
    tests = Path(__file__).resolve().parents[1]
    # workers find the functions of the tests, and the very sources that are tested
    paths = os.pathsep.join([str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")])
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": paths.rstrip(os.pathsep)}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    from ray.cluster_utils import Cluster

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    head = node | {"include_dashboard": False, "ray_client_server_port": port}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves log files open
        made = Cluster(initialize_head=True, head_node_args=head)
        made.add_node(**node)
        made.wait_for_nodes()
    os.environ.update({name: value for name, value in before.items() if value is not None})
    for name in [name for name, value in before.items() if value is None]:
        del os.environ[name]
    yield made.address, f"ray://127.0.0.1:{port}"
    made.shutdown()


@pytest.fixture(scope="session")
def cluster(two_nodes):
    return two_nodes[0]


@pytest.fixture(scope="session")
def ray_engine(cluster):
    from pairwright.engines import open_ray

    with open_ray(EngineConfig(name="ray", address=cluster)) as engine:
        yield engine

"""The engine for more than one machine: plain tasks of a Ray cluster.

Tasks and results go through the object store of Ray; files are on storage that all nodes can access, at an address or
under the same path. Every worker must run the same package versions as the driver, because written bytes may depend on
the version; a mismatch is an error. When a worker or a node dies, only its task is repeated.
"""

import contextlib
import importlib.metadata
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pairwright.engines.engine import Engine, EngineError, R, T
from pairwright.engines.process_pool import DEFAULT_RETRIES
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.config.sections import EngineConfig

_CONNECT_SECONDS = 10.0
# packages whose versions affect the written bytes
_VERSIONS_OF = ("pairwright", "numpy", "polars", "pyarrow", "tokenizers")
# a task has one core: more threads would compete for it
_WORKER_ENVIRONMENT = {"POLARS_MAX_THREADS": "1", "RAYON_NUM_THREADS": "1", "ARROW_IO_THREADS": "2"}


@dataclass(frozen=True)
class RayEngine:
    """Tasks on the cluster that this process is connected to. `in_flight` is the number submitted at a time."""

    num_workers: int
    in_flight: int
    max_retries: int = DEFAULT_RETRIES

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        import ray

        call = ray.remote(_call).options(num_cpus=1, max_retries=self.max_retries)
        # stored once in the object store; each task has only a reference
        shared, place = ray.put(function), ray.put((os.getcwd(), _versions()))
        waiting: deque[Any] = deque()
        try:
            for task in tasks:
                waiting.append(call.remote(shared, place, task))
                if len(waiting) >= self.in_flight:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
        finally:
            for reference in waiting:  # after an error, or when the caller stops reading
                ray.cancel(reference, force=True)


@contextmanager
def open_ray(settings: "EngineConfig") -> Iterator[Engine]:
    """Connect to a cluster, or start a temporary one on this machine."""
    with connect(settings) as num_cpus:
        workers = settings.workers or num_cpus
        # if all cores of the cluster are used, a second task per worker can be queued
        in_flight = 2 * workers if workers >= num_cpus else workers
        yield RayEngine(min(workers, num_cpus), max(2, in_flight))


@contextmanager
def connect(settings: "EngineConfig") -> Iterator[int]:
    """Connect to a Ray cluster and yield the number of its cores. An existing connection is reused."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"engine: ray is not installed ({error}): pip install 'pairwright[ray]'") from error
    ours = not ray.is_initialized()
    if ours:
        _probe(settings.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        started = {} if settings.address else {"num_cpus": settings.workers, "include_dashboard": False}
        try:
            ray.init(
                address=settings.address or "local",
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": _WORKER_ENVIRONMENT},
                **started,
            )
        except Exception as error:  # any error of Ray, gRPC or the network
            raise _no_cluster(settings.address, error) from error
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        if ours:
            ray.shutdown()


def _probe(address: str | None) -> None:
    """Fail immediately if nothing listens at the address: Ray would retry for a quarter of an hour."""
    # host:port, IPv4 or [IPv6], with or without ray://; other addresses ("auto") cannot be probed
    match = re.fullmatch(r"(?:ray://)?([^:/]+|\[[^\]]+\]):(\d+)", address or "")
    if match:
        try:
            socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str | None, error: Exception) -> EngineError:
    where = repr(address) if address else "this machine"
    return EngineError(
        f"engine: no Ray cluster at {where}: {error}. Start one with `ray start --head`, or leave --address out"
    )


def _call(function: Callable[[T], R], place: tuple[str, dict[str, str | None]], task: T) -> tuple[R | None, str, int]:
    """Runs in the worker. Returns the function's result, or the message and exit code of its error, because not every
    exception survives pickling. Relative paths resolve as in the driver, if the node has its working directory."""
    folder, versions = place
    own = _versions()
    differing = [f"{name} {own[name]}, not {version}" for name, version in versions.items() if own[name] != version]
    if differing:
        message = f"a Ray worker has {', '.join(differing)}: install the same on every node"
        return None, message, PairwrightError.exit_code
    try:
        with contextlib.chdir(folder if os.path.isdir(folder) else "."):
            return function(task), "", 0
    except PairwrightError as error:
        return None, str(error), error.exit_code


def _result(reference: Any) -> Any:
    import ray

    try:
        value, message, exit_code = ray.get(reference)
    # an exception of the function keeps its traceback; other errors of Ray mean lost workers or nodes
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"a task was lost repeatedly because its workers died ({type(error).__name__}): "
            f"{str(error).splitlines()[0]}"
        ) from error
    if exit_code:
        failure = EngineError(message)
        failure.exit_code = exit_code
        raise failure
    return value


def _versions() -> dict[str, str | None]:
    return {name: _version(name) for name in _VERSIONS_OF}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

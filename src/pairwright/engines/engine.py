"""The engine interface (map a function over tasks, results in order), the local process pool, and the Ray cluster.

A mapped function is defined at module level, depends only on its argument, and may run again: when a worker dies, its
task is retried on another one. So the results do not depend on the workers or their number.
"""

import asyncio
import contextlib
import contextvars
import importlib.metadata
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import forkserver, get_all_start_methods, get_context, spawn
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pairwright.errors import ConfigError, PairwrightError
from pairwright.interrupts import asyncio_interrupts

if TYPE_CHECKING:
    from pairwright.config.sections import EngineConfig

T = TypeVar("T")
R = TypeVar("R")


class EngineError(PairwrightError):
    """No workers available, or workers that die repeatedly."""


class Engine(Protocol):
    """Runs tasks on workers. `num_workers` is the number of tasks that run at once."""

    @property
    def num_workers(self) -> int: ...

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield the function's results in the order of the tasks. Tasks are consumed lazily, only a few ahead of the
        results that are read. An exception of the function is raised here and ends the iteration."""
        ...


# BLAS threads: numpy's BLAS starts one per core when it is loaded, and each of them spins while it is idle

_VARIABLE = "OPENBLAS_NUM_THREADS"


@contextmanager
def without_blas_threads() -> Iterator[None]:
    """Limit BLAS to one thread in processes started here, and in numpy if it is first loaded here. A number that the
    environment sets is respected."""
    original = os.environ.get(_VARIABLE)
    os.environ.setdefault(_VARIABLE, "1")
    try:
        yield
    finally:
        if original is None:
            del os.environ[_VARIABLE]


# The embedded engine: local processes, or this process alone for one worker or one task

DEFAULT_RETRIES = 3


@dataclass(frozen=True)
class Pool:
    """So many processes, started when there is work for them and gone when it is done."""

    num_workers: int = 1
    max_retries: int = DEFAULT_RETRIES

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        rest = iter(tasks)
        # two tasks suffice to know whether there is anything to run in parallel; the rest stays lazy
        first = list(islice(rest, 2))
        if self.num_workers < 2 or len(first) < 2:
            for task in chain(first, rest):
                yield function(task)
            return
        work = _Work(function, self.num_workers, self.max_retries)
        try:
            for task in chain(first, rest):
                work.submit(task)
                if len(work.waiting) > 2 * self.num_workers:  # bounds the results that wait to be read
                    yield work.result()
            while work.waiting:
                yield work.result()
        finally:
            work.pool.shutdown(cancel_futures=True)


@contextmanager
def open_pool(settings: "EngineConfig") -> Iterator[Engine]:
    """Open a process pool as configured: by default one process per core."""
    yield Pool(settings.workers or os.cpu_count() or 1, settings.max_retries)


class _Work(Generic[T, R]):
    """Submitted tasks, oldest first. A process that dies breaks its pool: all tasks are resubmitted to a new one."""

    def __init__(self, function: Callable[[T], R], num_workers: int, max_retries: int) -> None:
        self._function = function
        self._num_workers = num_workers
        self._retries_left = max_retries
        self.waiting: deque[tuple[T, Future[R]]] = deque()
        self.pool = self._new_pool()

    def submit(self, task: T) -> None:
        try:
            self.waiting.append((task, self._start(task)))
        except BrokenProcessPool as error:
            self._restart(error)
            self.submit(task)

    def result(self) -> R:
        """Wait for the result of the oldest task."""
        try:
            value = self.waiting[0][1].result()
        except BrokenProcessPool as error:
            self._restart(error)
            return self.result()
        self.waiting.popleft()
        return value

    def _restart(self, error: BrokenProcessPool) -> None:
        self.pool.shutdown()
        if not self._retries_left:
            raise EngineError(
                "a worker process died again and again: it was killed, or ran out of memory. Try fewer --workers"
            ) from error
        self._retries_left -= 1
        self.pool = self._new_pool()
        # all waiting tasks start again in the same order, so that results still come in the order of the tasks
        tasks = [task for task, _ in self.waiting]
        self.waiting = deque((task, self._start(task)) for task in tasks)

    def _start(self, task: T) -> Future[R]:
        with _without_main():  # submitting is what starts processes
            return self.pool.submit(self._function, task)

    def _new_pool(self) -> ProcessPoolExecutor:
        context = _context(self._function.__module__)
        return ProcessPoolExecutor(
            self._num_workers, mp_context=context, initializer=_begin_worker, initargs=(dict(os.environ),)
        )


def _begin_worker(environment: dict[str, str]) -> None:
    """Set up a worker process: ignore Ctrl-C, and take over the parent's current environment (credentials, endpoints),
    because a worker forked by the fork server has the environment of the time when that server started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all its processes; the parent handles it
    os.environ.clear()
    os.environ.update(environment)


@contextmanager
def _without_main() -> Iterator[None]:
    """Start processes of this thread without importing the user's script.

    A spawned process runs the main script again, up to `if __name__ == "__main__":`, so that it can unpickle functions
    defined there. We never map such functions, and a script without that guard would start its work in every worker.
    """
    original, thread = spawn.get_preparation_data, threading.get_ident()

    def prepare(name: str) -> dict[str, Any]:
        data = original(name)
        # other threads of the program may start processes of their own, which keep their main module
        if threading.get_ident() == thread:
            data = {key: value for key, value in data.items() if not key.startswith("init_main_from")}
        return data

    spawn.get_preparation_data = prepare
    try:
        yield
    finally:
        spawn.get_preparation_data = original


def _context(module: str) -> BaseContext:
    """Spawned processes, or, where the system can fork, forks of a server process that has preloaded the module."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    with without_blas_threads():
        forkserver.ensure_running()
    return context


# Progress for Python callers: silent by default; True prints a line to stderr every few seconds

Progress = Callable[[int, int], None]
_SECONDS = 2.0


def progress_of(progress: bool | Progress, verb: str) -> Progress:
    """The function to call with (done, total): the caller's own, one that prints, or one that does nothing."""
    if callable(progress):
        return progress
    if not progress:
        return lambda done, total: None
    next_line = time.monotonic() + _SECONDS

    def show(done: int, total: int) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line or done >= total:
            print(f"{verb} {done:,} of {total:,}", file=sys.stderr)
            next_line = time.monotonic() + _SECONDS

    return show


# Runs a coroutine from synchronous code, also inside a Jupyter kernel, whose event loop is already running.


Result = TypeVar("Result")


def run_to_end(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine and return its result. If this thread already runs an event loop, a second thread gets its own.

    An interrupt (Ctrl-C, or a kernel's stop button) cancels the coroutine and waits until it has cleaned up.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with asyncio_interrupts():
            return asyncio.run(coroutine)
    result: Future[Result] = Future()
    runner = asyncio.Runner()
    context = contextvars.copy_context()  # context variables of the caller hold in the other thread, too

    def run() -> None:
        try:
            with runner:
                result.set_result(runner.run(coroutine, context=context))
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="pairwright-collect")
    thread.start()
    try:
        return result.result()
    except KeyboardInterrupt:
        loop = runner.get_loop()
        # tasks may only be cancelled from the thread of their loop
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        raise
    finally:
        thread.join()


# The engine for more than one machine: plain tasks of a Ray cluster.
#
# Tasks and results go through Ray's object store; files are on storage that all nodes can access, at an address or
# under the same path. Every worker has to run the same package versions as the driver, since others might write other
# bytes; a mismatch is an error. When a worker or a node dies, only its task is repeated.


_CONNECT_SECONDS = 10.0
# packages whose version decides what bytes are written
_VERSIONS_OF = ("pairwright", "numpy", "polars", "pyarrow", "tokenizers")
# a task has one core: more threads would only compete for it
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
        # put once into the object store; each task then carries only a reference
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
    """Connect to a cluster, or start one on this machine for as long as it is needed."""
    with connect(settings) as num_cpus:
        workers = settings.workers or num_cpus
        # if we may use all cores of the cluster, a second task per worker can wait in its queue
        in_flight = 2 * workers if workers >= num_cpus else workers
        yield RayEngine(min(workers, num_cpus), max(2, in_flight), settings.max_retries)


@contextmanager
def connect(settings: "EngineConfig") -> Iterator[int]:
    """Connect to a Ray cluster and yield the number of its cores. An existing connection is reused."""
    ray = _import_ray()
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
    """Fail at once if nothing listens at the address: Ray would retry for a quarter of an hour."""
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


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"engine: ray is not installed ({error}): pip install 'pairwright[ray]'") from error
    return ray


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
    # an exception of the function itself keeps its traceback; the other errors of Ray mean lost workers or nodes
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"a piece of the work was lost again and again with the workers that had it ({type(error).__name__}): "
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


# Values of `engine.name`, each with a context manager that opens the engine.
ENGINES: dict[str, Callable[["EngineConfig"], AbstractContextManager[Engine]]] = {
    "embedded": open_pool,
    "ray": open_ray,
}


@contextmanager
def open_engine(settings: "EngineConfig") -> Iterator[Engine | None]:
    """Open the configured engine; None for the defaults, where a stage chooses what is fastest on this machine."""
    if settings.name == "embedded" and settings.workers is None:
        yield None
        return
    with ENGINES[settings.name](settings) as engine:
        yield engine

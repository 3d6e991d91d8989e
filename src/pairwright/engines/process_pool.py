"""The embedded engine: local processes, or this process alone for one worker or one task."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import forkserver, get_all_start_methods, get_context, spawn
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic

from pairwright.engines.engine import Engine, EngineError, R, T

if TYPE_CHECKING:
    from pairwright.config.sections import EngineConfig

DEFAULT_RETRIES = 3
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@dataclass(frozen=True)
class Pool:
    """A pool of `num_workers` processes, started for each `map` and stopped at its end."""

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
                if len(work.waiting) > 2 * self.num_workers:  # bounds the unread results
                    yield work.result()
            while work.waiting:
                yield work.result()
        finally:
            work.pool.shutdown(cancel_futures=True)


@contextmanager
def open_pool(settings: "EngineConfig") -> Iterator[Engine]:
    """Open a process pool as configured: by default one process per core."""
    yield Pool(settings.workers or os.cpu_count() or 1)


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
                "worker processes died repeatedly: they were killed, or ran out of memory. Try fewer --workers"
            ) from error
        self._retries_left -= 1
        self.pool = self._new_pool()
        # all waiting tasks are resubmitted in order, so that results stay in task order
        tasks = [task for task, _ in self.waiting]
        self.waiting = deque((task, self._start(task)) for task in tasks)

    def _start(self, task: T) -> Future[R]:
        with _without_main():  # submitting starts processes
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
        # processes started by other threads of the program keep their main module
        if threading.get_ident() == thread:
            data = {key: value for key, value in data.items() if not key.startswith("init_main_from")}
        return data

    spawn.get_preparation_data = prepare
    try:
        yield
    finally:
        spawn.get_preparation_data = original


def _context(module: str) -> BaseContext:
    """Return the start method: forks of a server process that has preloaded the module, or else spawn."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    with without_blas_threads():
        forkserver.ensure_running()
    return context


@contextmanager
def without_blas_threads() -> Iterator[None]:
    """Limit BLAS to one thread in processes started here, and in numpy if it is first loaded here.

    By default BLAS starts one thread per core, and idle threads spin. A number set in the environment is kept.
    """
    original = os.environ.get(_BLAS_THREADS)
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        yield
    finally:
        if original is None:
            del os.environ[_BLAS_THREADS]

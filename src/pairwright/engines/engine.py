"""What an engine is: a function mapped over tasks, with the results in the order of the tasks.

A function that is mapped is a module's own, depends on its argument alone, and may be run again: a worker that dies
takes its piece with it, and another one does it. So the results do not depend on who worked, and on how many.
"""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import forkserver, get_all_start_methods, get_context, spawn
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pairwright.errors import PairwrightError

if TYPE_CHECKING:
    from pairwright.config.sections import EngineConfig

T = TypeVar("T")
R = TypeVar("R")


class EngineError(PairwrightError):
    """Workers that cannot be had, or that die again and again."""


class Engine(Protocol):
    """Workers. `num_workers` is how many pieces are done at once."""

    @property
    def num_workers(self) -> int: ...

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """The function's results in the order of the tasks, which are taken as they are needed: only a few are done
        or under way before their results are asked for. An error of the function is raised here, and ends it."""
        ...


# Threads that nobody needs: numpy's BLAS starts one a core when it is loaded, and each waits by spinning at first.

_VARIABLE = "OPENBLAS_NUM_THREADS"


@contextmanager
def without_blas_threads() -> Iterator[None]:
    """Processes that are started in here, and numpy if it is first loaded in here, start none of them. A number that
    the environment asks for stays."""
    asked = os.environ.get(_VARIABLE)
    os.environ.setdefault(_VARIABLE, "1")
    try:
        yield
    finally:
        if asked is None:
            del os.environ[_VARIABLE]


# The embedded engine: processes of this machine, or this process alone where there is one worker or one task.

DEFAULT_RETRIES = 3


@dataclass(frozen=True)
class Pool:
    """So many processes, started when there is work for them and gone when it is done."""

    num_workers: int = 1
    max_retries: int = DEFAULT_RETRIES

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        rest = iter(tasks)
        first = list(islice(rest, 2))
        if self.num_workers < 2 or len(first) < 2:
            for task in chain(first, rest):
                yield function(task)
            return
        work = _Work(function, self.num_workers, self.max_retries)
        try:
            for task in chain(first, rest):
                work.submit(task)
                if len(work.waiting) > 2 * self.num_workers:  # bounds what is done but not asked for yet
                    yield work.result()
            while work.waiting:
                yield work.result()
        finally:
            work.pool.shutdown(cancel_futures=True)


@contextmanager
def open_pool(settings: "EngineConfig") -> Iterator[Engine]:
    """Processes as the configuration has them: by default one a core."""
    yield Pool(settings.workers or os.cpu_count() or 1, settings.max_retries)


class _Work(Generic[T, R]):
    """Tasks under way, the oldest first. When a process dies, so does its pool: all of them start anew in another."""

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
        """The result of the oldest."""
        try:
            found = self.waiting[0][1].result()
        except BrokenProcessPool as error:
            self._restart(error)
            return self.result()
        self.waiting.popleft()
        return found

    def _restart(self, error: BrokenProcessPool) -> None:
        self.pool.shutdown()
        if not self._retries_left:
            raise EngineError(
                "a worker process died again and again: it was killed, or ran out of memory. Try fewer --workers"
            ) from error
        self._retries_left -= 1
        self.pool = self._new_pool()
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
    """What this process has now, credentials and endpoints of addresses among it: a forked worker has what was there
    when the first of all pools was opened. Ctrl-C reaches every process of a terminal: whoever started the work stops
    it, the workers say nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that this thread starts in here do not import the user's script.

    A fresh process runs the main script again, up to `if __name__ == "__main__":`, so that it can unpickle what is
    defined there. Nothing of ours is, and a script without that guard would start its work again in every worker.
    """
    original, thread = spawn.get_preparation_data, threading.get_ident()

    def prepare(name: str) -> dict[str, Any]:
        data = original(name)
        if threading.get_ident() == thread:
            data = {key: value for key, value in data.items() if not key.startswith("init_main_from")}
        return data

    spawn.get_preparation_data = prepare
    try:
        yield
    finally:
        spawn.get_preparation_data = original


def _context(module: str) -> BaseContext:
    """Fresh processes. Where the system can fork, one that has loaded the work is forked, again and again."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    with without_blas_threads():
        forkserver.ensure_running()
    return context


# Progress for Python callers: nothing unless asked for; True prints a line to stderr now and then.

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

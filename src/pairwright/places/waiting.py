"""Work that mostly waits for a network: several pieces of it at a time, with the results in order."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
_THREADS = 16
_AHEAD = 4 * _THREADS  # results that are held at most


def at_once(function: Callable[[T], R], tasks: Sequence[T], *, waits: bool) -> Iterator[R]:
    """The function's results in the order of the tasks: one after the other, or several at a time if each `waits`."""
    if not waits or len(tasks) < 2:
        yield from map(function, tasks)
        return
    with ThreadPoolExecutor(min(_THREADS, len(tasks))) as threads:
        for start in range(0, len(tasks), _AHEAD):
            yield from threads.map(function, tasks[start : start + _AHEAD])

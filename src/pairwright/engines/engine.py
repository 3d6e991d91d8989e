"""The engine interface: map a function over tasks, results in order.

A mapped function is defined at module level, depends only on its argument, and may run again: when a worker dies, its
task is retried on another one. So the results do not depend on the workers or their number.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from pairwright.errors import PairwrightError

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

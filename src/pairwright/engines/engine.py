"""What an engine is: a function mapped over tasks, with the results in the order of the tasks.

A function that is mapped is a module's own, depends on its argument alone, and may be run again: a worker that dies
takes its piece with it, and another one does it. So the results do not depend on who worked, and on how many.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from pairwright.errors import PairwrightError

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

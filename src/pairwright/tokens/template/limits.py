"""What a template may use: time, characters, list items. Beyond it, TemplateLimit.

Templates come from strangers. The sandbox keeps them from Python's internals; this keeps them from running or
allocating without end. `tick` is called in every loop iteration and every call, `charge` for every text or list that
is built. No signals and no threads: each single step is small, since no value can grow past `max_size`.
"""

import time
from typing import Any

from pairwright.tokens.refusals import TemplateLimit

SECONDS = 20.0  # of one render
MAX_SIZE = 16_000_000  # characters or items of one value
MAX_SPENT = 400_000_000  # characters and items of all values of a render
_CHECK_EVERY = 64  # ticks between two looks at the clock
_MAX_BITS = 4096  # of an integer


class Limits:
    """The use of one render. `begin` restarts the clock; a large conversation may use more, in proportion."""

    __slots__ = ("_deadline", "_input", "_ticks", "max_size", "seconds", "spent")

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.begin(None)

    def begin(self, conversation: Any) -> None:
        """A render starts. The size of the conversation is looked at only when a limit is reached."""
        self._input = conversation
        self.max_size = MAX_SIZE
        self.spent = 0
        self._ticks = 0
        self._deadline = time.monotonic() + self.seconds

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % _CHECK_EVERY == 0:
            self.check_time()

    def check_time(self) -> None:
        if time.monotonic() > self._deadline and not self._extend():
            raise TemplateLimit(f"the chat template ran for more than {self.seconds:g} seconds")

    def charge(self, size: int) -> None:
        """Something of `size` characters or items was built, or is about to be."""
        self.spent += size
        if size > self.max_size or self.spent > MAX_SPENT:
            while self._extend():
                if size <= self.max_size and self.spent <= MAX_SPENT:
                    return
            raise TemplateLimit(f"the chat template built {max(size, self.spent):,} characters or items")

    def _extend(self) -> bool:
        """Grant what a conversation of this size may need, once."""
        if self._input is None:
            return False
        size, self._input = size_of(self._input), None
        self.max_size += 16 * size
        self.spent -= 64 * size
        self._deadline += size / 1_000_000
        return size > 1_000_000

    def charge_nested(self, value: Any, depth: int = 0) -> None:
        """Text is about to be made of a container: count what it holds, shared parts each time they occur."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, dict | list | tuple | set | frozenset):
            if depth > 100:
                raise TemplateLimit("the chat template nests values more than 100 deep")
            self.tick()
            self.charge(32 + 4 * len(value))
            if isinstance(value, dict):
                for key, item in value.items():
                    self.charge_nested(key, depth + 1)
                    self.charge_nested(item, depth + 1)
            else:
                for item in value:
                    self.charge_nested(item, depth + 1)
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise TemplateLimit("the chat template computed a number of more than 4096 bits")

    def product(self, left: Any, right: Any) -> None:
        """`left * right` is about to be computed."""
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MAX_BITS:
                raise TemplateLimit("the chat template computed a number of more than 4096 bits")
            return
        for items, times in ((left, right), (right, left)):
            if isinstance(items, str | list | tuple | bytes) and isinstance(times, int):
                self.charge(len(items) * max(times, 0))

    def power(self, left: Any, right: Any) -> None:
        """`left ** right` is about to be computed."""
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _MAX_BITS:
            raise TemplateLimit("the chat template computed a number of more than 4096 bits")


def size_of(value: Any) -> int:
    """Characters of text in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, list) else 8

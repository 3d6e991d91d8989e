"""Progress for Python callers: silent by default; True prints a line to stderr every few seconds."""

import sys
import time
from collections.abc import Callable

Progress = Callable[[int, int], None]
_SECONDS = 2.0


def progress_of(progress: bool | Progress, verb: str) -> Progress:
    """Return the function to call with (done, total): the caller's own, one that prints, or a no-op."""
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

"""Progress of long work: a bar in a terminal, a plain line every ten seconds in a pipe."""

import sys
import time
from collections.abc import Callable

from pairwright.cli.output import say


class Progress:
    """`show(done, total)` while inside; `unit` is what is counted ("MB" counts bytes)."""

    def __init__(self, verb: str, unit: str) -> None:
        self._verb, self._unit = verb, unit
        self._update: Callable[[int, int], None] | None = None
        self._next_line = time.monotonic() + 10

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            counter = DownloadColumn() if self._unit == "MB" else MofNCompleteColumn()
            columns = (TextColumn(self._verb), BarColumn(), counter, TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            task = self._bar.add_task(self._verb, total=None)
            self._update = lambda done, total: self._bar.update(task, completed=done, total=total)
        return self

    def show(self, done: int, total: int) -> None:
        if self._update is not None:
            self._update(done, total)
        elif time.monotonic() >= self._next_line:
            scale = 1e6 if self._unit == "MB" else 1
            say(f"{self._verb} {done / scale:,.0f} of {total / scale:,.0f} {self._unit}")
            self._next_line = time.monotonic() + 10

    def __exit__(self, *_: object) -> None:
        if self._update is not None:
            self._bar.stop()

"""Progress of long work and of a collection: live in a terminal, a plain line every ten seconds in a pipe."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pairwright.collection import Status
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
            # transient: the bar disappears at the end, and only the result stays
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            # the total is known at the first `show` only
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


# Progress of a collection: a live table in a terminal, a plain line every ten seconds in a pipe.

_LINE_SECONDS = 10.0


class CollectView:
    """`show(status)` while inside."""

    def __init__(self) -> None:
        self._live: Any = None
        self._next_line = time.monotonic() + 1  # the first line soon: that it has begun
        self._has_warned = False

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            # refreshed by `show`, without a thread
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: "Status") -> None:
        warning = None if self._has_warned else status.why_no_signal()
        if warning is not None:
            self._has_warned = True
            if self._live is None:
                say(f"warning: {warning}")
            else:  # above the table, which goes on
                self._live.console.print(f"warning: {warning}", style="yellow", markup=False, highlight=False)
        if self._live is not None:
            self._live.update(_table(status), refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            say("collecting " + ", ".join(f"{name} {value}" for name, value in figures(status)))


def figures(status: "Status") -> list[tuple[str, str]]:
    """What people want to know, in words."""
    rows = [
        ("tasks", f"{status.num_tasks:,}"),
        ("runs", f"{status.num_done:,} of {status.num_runs:,} done, {status.num_running:,} running"),
        ("candidates", f"{status.num_candidates:,}"),
        ("pairs so far", f"{status.num_pairs:,}"),
        ("mean reward", "-" if status.mean_reward is None else f"{status.mean_reward:.4g}"),
        ("tokens", f"{status.num_tokens:,} done, {status.tokens_in_flight:,} in flight, {status.num_asked:,} requests"),
        ("tokens/s", f"{status.tokens_per_second:,.0f}"),
        ("failures", _by_kind(status.failures)),
    ]
    if status.retries:
        rows.append(("retries", _by_kind(status.retries)))
    seconds = status.seconds_left
    return [*rows, ("time left", "-" if seconds is None else duration(seconds))]


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(3725), duration(65), duration(9.4)
    ('1 h 02 min', '1 min 05 s', '9 s')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def _by_kind(counts: Any) -> str:
    return " ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())) or "none"


def _table(status: "Status") -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in figures(status):
        table.add_row(name, value)
    return table

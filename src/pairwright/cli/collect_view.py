"""A collection while it goes on: a live table in a terminal, a plain line every ten seconds in a pipe."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pairwright.cli.output import say

if TYPE_CHECKING:
    from pairwright.collect import Status

_LINE_SECONDS = 10.0


class CollectView:
    """`show(status)` while inside."""

    def __init__(self) -> None:
        self._live: Any = None
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: "Status") -> None:
        if self._live is not None:
            self._live.update(_table(status), refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            say("collecting " + ", ".join(f"{name} {value}" for name, value in figures(status)))


def figures(status: "Status") -> list[tuple[str, str]]:
    """What people want to know, in words."""
    shown = [
        ("tasks", f"{status.num_tasks:,}"),
        ("runs", f"{status.num_done:,} of {status.num_runs:,} done, {status.num_running:,} running"),
        ("candidates", f"{status.num_candidates:,}"),
        ("pairs so far", f"{status.num_pairs:,}"),
        ("mean reward", "-" if status.mean_reward is None else f"{status.mean_reward:.4g}"),
        ("tokens/s", f"{status.tokens_per_second:,.0f}"),
        ("failures", _by_kind(status.failures)),
    ]
    if status.retries:
        shown.append(("retries", _by_kind(status.retries)))
    left = status.seconds_left
    return [*shown, ("time left", "-" if left is None else duration(left))]


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

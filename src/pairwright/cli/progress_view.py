"""Progress on stderr: live in a terminal, a plain line every ten seconds in a pipe."""

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pairwright.cli.output import say

if TYPE_CHECKING:
    from pairwright.collection import Status

_LINE_SECONDS = 10.0
# Metrics of training, in this order
_METRICS = ("loss", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected", "grad_norm")


class Progress:
    """A progress bar as a context manager with `show(done, total)`. `unit` names what is counted; "MB" counts bytes."""

    def __init__(self, verb: str, unit: str) -> None:
        self._verb, self._unit = verb, unit
        self._bar: Any = None
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            counter = DownloadColumn() if self._unit == "MB" else MofNCompleteColumn()
            columns = (TextColumn(self._verb), BarColumn(), counter, TimeRemainingColumn())
            # transient: the bar disappears at the end, and only the result stays
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            # the total is not known before the first `show`
            self._task = self._bar.add_task(self._verb, total=None)
        return self

    def show(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif time.monotonic() >= self._next_line:
            scale = 1e6 if self._unit == "MB" else 1
            say(f"{self._verb} {done / scale:,.0f} of {total / scale:,.0f} {self._unit}")
            self._next_line = time.monotonic() + _LINE_SECONDS

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class LiveTable:
    """A live table of figures by name; in a pipe, lines `prefix name value, ...`, the first after `wait` seconds."""

    def __init__(self, prefix: str = "", *, wait: float = 0.0) -> None:
        self._prefix = prefix
        self._live: Any = None
        self._next_line = time.monotonic() + wait

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            # refreshed by `update`, without a thread
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, rows: Mapping[str, str]) -> None:
        if self._live is not None:
            from rich.table import Table

            table = Table(box=None, show_header=False, pad_edge=False)
            table.add_column(style="dim")
            table.add_column()
            for name, value in rows.items():
                table.add_row(name, value)
            self._live.update(table, refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            # the stage is a complete sentence
            say(self._prefix + ", ".join(v if name == "stage" else f"{name} {v}" for name, v in rows.items()))

    def say(self, line: str) -> None:
        """Print a line above the live table."""
        if self._live is None:
            say(line)
        else:
            self._live.console.print(line, style="yellow", markup=False, highlight=False)


class CollectView(LiveTable):
    """`show(status)` of a collection; `verb` says what its runs are for."""

    def __init__(self, verb: str = "collecting") -> None:
        super().__init__(f"{verb} ", wait=1)
        self._said = {""}  # phases and warnings that are shown already
        self._has_warned = False

    def show(self, status: "Status") -> None:
        if status.phase:
            if status.phase not in self._said:
                self.say(status.phase)
            self._said.add(status.phase)
            return
        if status.warning not in self._said:
            self.say(f"warning: {status.warning}")
        self._said.add(status.warning)
        warning = None if self._has_warned else status.why_no_signal()
        if warning is not None:
            self._has_warned = True
            self.say(f"warning: {warning}")
        self.update(figures(status))


def figures(status: "Status") -> dict[str, str]:
    load, seconds = status.load, status.seconds_left
    requests = f"{status.num_asked:,} waiting"
    if load is not None:
        requests = f"{load.queued:,} queued, {load.prefill:,} prefill, {load.decoding:,} decoding"
    rows = {
        "tasks": f"{status.num_tasks:,}",
        "runs": f"{status.num_done:,} of {status.num_runs:,} done, {status.num_running:,} running",
        "requests": requests,
        "tokens": f"{status.prompt_tokens_read:,} of prompts read, {status.tokens_written:,} written",
        "tokens/s": f"{status.tokens_per_second:,.0f}",
        "candidates": f"{status.num_candidates:,}",
        "pairs so far": f"{status.num_pairs:,}",
        "mean reward": "-" if status.mean_reward is None else f"{status.mean_reward:.4g}",
        "failures": _by_kind(status.failures),
    }
    if status.retries:
        rows["retries"] = _by_kind(status.retries)
    return {**rows, "time left": "-" if seconds is None else duration(seconds)}


class TrainingView(LiveTable):
    """`show(event)` of the training loop."""

    def __init__(self) -> None:
        super().__init__()
        self._first: tuple[float, int] | None = None  # time and number of the first step
        self._rows: dict[str, str] = {}

    def show(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "note":
            say(f"note: {event['note']}")
            return
        if kind in ("encode", "reference"):
            verb = "encoding" if kind == "encode" else "reference"
            rows = {"stage": f"{verb} {event['done']:,} of {event['total']:,}"}
        elif kind == "validation":
            rows = {
                key: f"{event[key]:.4g}"
                for key in ("eval_loss", "eval_rewards/accuracies")
                if event.get(key) is not None
            }
            if self._live is None:
                say(f"step {event['step']}: eval_loss {event.get('eval_loss', float('nan')):.4g}")
        else:
            rows = self._step(event)
        # figures that are missing in an event keep their last value
        self._rows |= rows
        self.update(self._rows)

    def _step(self, event: dict[str, Any]) -> dict[str, str]:
        step, num_steps = event["step"], event["num_steps"]
        # the first event need not be step 1: a resumed run starts later
        self._first = self._first or (time.monotonic(), step)
        done = step - self._first[1]
        left = (time.monotonic() - self._first[0]) / done * (num_steps - step) if done else None
        return {
            "stage": f"step {step:,} of {num_steps:,}, epoch {event['epoch']:.2f}",
            **{name: f"{event[name]:.4g}" for name in _METRICS if name in event},
            "tokens/s": f"{event['tokens_per_second']:,.0f}",
            "time left": "-" if left is None else duration(left),
        }


def duration(seconds: float) -> str:
    """Seconds as readable text.

    >>> duration(3725), duration(65), duration(9.4)
    ('1 h 02 min', '1 min 05 s', '9 s')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def _by_kind(counts: Mapping[Any, int]) -> str:
    return " ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items())) or "none"

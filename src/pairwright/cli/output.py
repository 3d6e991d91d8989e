"""What commands print: results on stdout (a table or JSON), everything else on stderr, progress while they
run, and one line with the way out for an error of the system or Ctrl-C.
"""

import errno
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from typer.core import TyperGroup

from pairwright.cli.arguments import refuse_addresses
from pairwright.errors import PairwrightError
from pairwright.interrupts import is_interrupt
from pairwright.records.json_text import encode, to_json

if TYPE_CHECKING:
    from pairwright.collection import Status

# Results and messages.


def print_json(value: Any) -> None:
    """A result as one JSON document. Non-finite numbers are written as `records.json_text` writes them."""
    sys.stdout.write(to_json(value) + "\n")


def print_json_line(value: Any) -> None:
    sys.stdout.write(encode(value).decode() + "\n")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    short: Mapping[str, str] | None = None,
    left: Sequence[str] = (),
    hidden: Collection[str] = (),
) -> None:
    """A result for people: a table in a terminal, with short headings if given, `left` are columns of text and `hidden`
    those that say nothing; tab-separated lines with all columns in a pipe."""
    # in a pipe: no colours and no wrapping, so that cut and awk can read it
    if not sys.stdout.isatty():
        print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(value) for value in row))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold underline", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        if name in hidden:
            continue
        is_first = number == 0
        label = (short or {}).get(name, name.replace("_", " "))
        table.add_column(label, justify="left" if is_first or name in left else "right", no_wrap=is_first)
    for row in rows:
        table.add_row(*(_cell(value) for name, value in zip(columns, row, strict=True) if name not in hidden))
    Console().print(table)


def say(line: str) -> None:
    """A line about what happened, on stderr."""
    print(line, file=sys.stderr)


def say_in_colour(line: str, colour: str) -> None:
    """A line on stderr, coloured in a terminal."""
    if not colour or not sys.stderr.isatty():
        say(line)
        return
    from rich.console import Console

    Console(stderr=True, highlight=False).print(line, style=colour, markup=False, soft_wrap=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# Progress of long work: a bar in a terminal, a plain line every ten seconds in a pipe.


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


# What the operating system refused, and Ctrl-C: one line each that says how to go on.
#
# Commands raise `PairwrightError` for what they expect. What reaches the door of the command line beside it is an
# `OSError` (a path that is a file, a full disk, a missing permission) or a `KeyboardInterrupt`.


# Error numbers, and what the user can do about them
_WAYS_OUT = {
    errno.ENOENT: "check the path, and create the folder that it is in",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another path",
    errno.EISDIR: "a folder is there, where a file was expected: choose another path",
    errno.EEXIST: "something is there already: choose another path, or remove it",
    errno.ENOTEMPTY: "something is there already: choose another path, or remove it",
    errno.EACCES: "choose a path that you may read and write, or change its permissions",
    errno.EPERM: "choose a path that you may read and write, or change its permissions",
    errno.EROFS: "choose a path on another file system",
    errno.ENOSPC: "free some space, or choose a path on another disk; then run the same command again",
    errno.EDQUOT: "free some space, or choose a path on another disk; then run the same command again",
    errno.EFBIG: "free some space, or choose a path on another disk; then run the same command again",
    errno.EIO: "the device failed: check it, or choose a path on another disk",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "a link in the path leads to itself: remove it, or choose another path",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer --workers",
    errno.ENFILE: "raise the limit of open files (ulimit -n), or use fewer --workers",
    errno.ENOMEM: "close other programs, or use fewer --workers",
    errno.EADDRINUSE: "another program listens there: choose another --port",
    errno.EADDRNOTAVAIL: "this machine does not have the address: choose another --host",
    errno.ECONNREFUSED: "nobody listens there: start the server, or check the address",
}
_OTHER_WAY_OUT = "check the path and the device; then run the same command again"

_SAME = "the same command goes on where it was"
_WITH_RESUME = "the same command with --resume goes on where it was"
_FROM_START = "nothing was finished, and the same command begins again"
# Commands, and how to go on after Ctrl-C; one that is not listed has written nothing
_AT_STOP = {
    "run": _SAME,
    "demo": _SAME,
    "compare": _SAME,
    "import": "the same command adds what is not in the table yet",
    "collect": _WITH_RESUME,
    "teach": _SAME,
    "score": _SAME,
    "experience filter": _FROM_START,
    "experience export": _FROM_START,
    "experience corrections": _SAME,
    "pairs build": _FROM_START,
    "export": _FROM_START,
    "push": _SAME,
    "pull": _SAME,
    "tokens build": _SAME,
    "tokens show": _FROM_START,
    "train": _WITH_RESUME,
    "evaluate run": _WITH_RESUME,
    "evaluate compare": _FROM_START,
    "report": _FROM_START,
    "explain": _FROM_START,
    "config from-nat": _FROM_START,
    "jobs submit": "pairwright jobs list shows whether the job was handed over",
    "jobs cancel": "pairwright jobs show says what became of the job",
    "jobs deploy": "pairwright jobs show says what became of the job",
    "record": "what was recorded is in the table",
    "serve jobs": "the same command serves again, and goes on with the jobs",
    "serve model": "the same command serves again",
    "serve targets add": _FROM_START,
    "serve targets remove": _FROM_START,
    "serve token create": "pairwright serve token list shows whether there is a token",
    "serve token revoke": "pairwright serve token list shows whether there is a token",
}
_NOTHING = "nothing was written"
_WRITTEN = re.compile(r"; \w+( \w+)? was written$")  # "; nothing was written", "; no report was written"


class Interrupted(PairwrightError):
    """Ctrl-C, with how to go on."""

    exit_code = 130


def describe_os_error(error: OSError) -> str:
    """What was refused, where, and the way out, in one line."""
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    # a rename has two paths
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, str | bytes)]
    where = f"{' -> '.join(paths)}: " if paths else ""
    if paths and error.errno == errno.ENOENT and os.path.islink(paths[0]):
        target = os.readlink(paths[0])
        return f"{where}a link to {target}, which does not exist: remove the link, or restore what it leads to"
    return f"{where}{reason}: {_WAYS_OUT.get(error.errno or 0, _OTHER_WAY_OUT)}"


def with_way_out(error: PairwrightError) -> str:
    """The message of an error; one that only repeats what the operating system refused gets the way out, too."""
    message, cause = str(error), error.__cause__
    # a message that ends with the reason of the operating system alone says nothing about how to go on
    if isinstance(cause, OSError) and cause.strerror and _WRITTEN.sub("", message).endswith(cause.strerror):
        return f"{message}: {_WAYS_OUT.get(cause.errno or 0, _OTHER_WAY_OUT)}"
    return message


def first_os_error(group: BaseExceptionGroup[BaseException]) -> OSError | None:
    """The first one of a group, as tasks that run together raise them; None if there is anything else among them."""
    # anything else in the group is a bug, whose traceback must not be hidden
    matching, rest = group.split(OSError)
    if matching is None or rest is not None:
        return None
    first: BaseException = matching
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, OSError) else None


def guard_commands(command: Any, name: str = "") -> None:
    """Let every command refuse addresses that it cannot take, and say at Ctrl-C how to go on."""
    if isinstance(command, TyperGroup):
        for word, child in command.commands.items():
            guard_commands(child, f"{name} {word}".strip())
    elif command.callback is not None:
        command.callback = _guarded(command.callback, name)


def describe_stop(name: str, *, is_resumed: bool = False) -> str:
    """How to go on with a command that was stopped; `is_resumed` where it had --resume already."""
    way = _AT_STOP.get(name, _NOTHING)
    return f"stopped; {_SAME if is_resumed and way == _WITH_RESUME else way}"


def _guarded(callback: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(callback)
    def guarded(*args: Any, **params: Any) -> Any:
        refuse_addresses(params, name)
        try:
            return callback(*args, **params)
        except BaseException as error:
            if not is_interrupt(error):
                raise
            raise Interrupted(describe_stop(name, is_resumed=bool(params.get("resume")))) from error

    return guarded


__all__ = ["Interrupted", "describe_os_error", "describe_stop", "first_os_error", "guard_commands", "with_way_out"]

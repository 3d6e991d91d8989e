"""Errors of the operating system, missing packages, and Ctrl-C: one line each that says how to continue."""

import errno
import os
import re
from collections.abc import Callable
from functools import wraps
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from pairwright.errors import ConfigError, PairwrightError
from pairwright.interrupts import is_interrupt

# Error numbers, and what the user can do about them
_WAYS_OUT = {
    errno.ENOENT: "check the path, and create the folder that it is in",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another path",
    errno.EISDIR: "the path is a folder, but a file was expected: choose another path",
    errno.EEXIST: "the path exists already: choose another path, or remove it",
    errno.ENOTEMPTY: "the folder is not empty: choose another path, or remove its content",
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
    errno.ECONNREFUSED: "no server listens there: start the server, or check the address",
}
_OTHER_WAY_OUT = "check the path and the device; then run the same command again"

_SAME = "repeat the same command to continue"
_WITH_RESUME = "repeat the same command with --resume to continue"
_FROM_START = "nothing was finished; repeat the same command to start again"
# How to continue after Ctrl-C, and the commands; commands that are not listed write nothing
_AT_STOP = {
    _SAME: ("run", "demo", "compare", "teach", "score", "experience corrections", "push", "pull", "tokens build"),
    _WITH_RESUME: ("collect", "train", "evaluate run"),
    _FROM_START: (
        "experience filter", "pairs build", "export", "tokens show", "evaluate compare", "report", "config from-nat",
        "serve targets add", "serve targets remove",
    ),
    "repeat the same command to add the missing records": ("import",),
    "check whether the job was submitted: pairwright jobs list": ("jobs submit",),
    "its state: pairwright jobs show JOB": ("jobs cancel", "jobs deploy"),
    "all recorded experiences are in the table": ("record",),
    "repeat the same command to serve again and continue the jobs": ("serve jobs",),
    "repeat the same command to serve again": ("serve model",),
    "whether there is a token: pairwright serve token list": ("serve token create", "serve token revoke"),
}  # fmt: skip
# A line of the metadata such as: httpx>=0.27; extra == "serve"; groups: package, extra
_REQUIREMENT = re.compile(r"""([\w.-]+).*extra == ['"]([\w-]+)['"]""")
_MANGLED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/].*", re.S)  # what pathlib makes of scheme://...
_WRITTEN = re.compile(r"; \w+( \w+)? was written$")  # "; nothing was written", "; no report was written"


class Interrupted(PairwrightError):
    """Ctrl-C, with a message that says how to continue."""

    exit_code = 130


def describe_os_error(error: OSError) -> str:
    """An error of the operating system in one line: reason, path, and what to do."""
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    # a rename has two paths
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, str | bytes)]
    where = f"{' -> '.join(paths)}: " if paths else ""
    if paths and error.errno == errno.ENOENT and os.path.islink(paths[0]):
        target = os.readlink(paths[0])
        return f"{where}a link to {target}, which does not exist: remove the link, or restore what it leads to"
    return f"{where}{reason}: {_WAYS_OUT.get(error.errno or 0, _OTHER_WAY_OUT)}"


def with_way_out(error: PairwrightError) -> str:
    """The message of an error; if it only repeats the reason of the operating system, what to do is appended."""
    message, cause = str(error), error.__cause__
    # a message that ends with the reason of the operating system does not say what to do
    if isinstance(cause, OSError) and cause.strerror and _WRITTEN.sub("", message).endswith(cause.strerror):
        return f"{message}: {_WAYS_OUT.get(cause.errno or 0, _OTHER_WAY_OUT)}"
    return message


def first_os_error(group: BaseExceptionGroup[BaseException]) -> OSError | None:
    """The first error of an exception group; None if the group has other exceptions."""
    # anything else in the group is a bug, whose traceback must not be hidden
    matching, rest = group.split(OSError)
    if matching is None or rest is not None:
        return None
    first: BaseException = matching
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first if isinstance(first, OSError) else None


def extras_with(package: str) -> list[str]:
    """The extras for users that list a package, by its import name and the metadata of pairwright.

    >>> extras_with("openpyxl")
    ['excel']
    """
    try:
        lines = requires("pairwright") or []
    except PackageNotFoundError:  # run from a folder, without being installed
        return []
    requirements = [match.groups() for match in map(_REQUIREMENT.match, lines) if match is not None]
    distribution = package.partition(".")[0].replace("-", "_").lower()
    return [
        extra
        for name, extra in requirements
        if name.replace("-", "_").lower() == distribution and extra not in ("all", "dev")
    ]


def guard_commands(command: Any, name: str = "") -> None:
    """Let every command refuse addresses that it cannot read, and say at Ctrl-C how to continue."""
    if isinstance(command, TyperGroup):
        for word, child in command.commands.items():
            guard_commands(child, f"{name} {word}".strip())
    elif command.callback is not None:
        command.callback = _guarded(command.callback, name)


def describe_stop(name: str, *, is_resumed: bool = False) -> str:
    """How to continue a stopped command; `is_resumed`: it already had --resume."""
    way = next((way for way, commands in _AT_STOP.items() if name in commands), "nothing was written")
    return f"stopped; {_SAME if is_resumed and way == _WITH_RESUME else way}"


def _guarded(callback: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(callback)
    def guarded(*args: Any, **params: Any) -> Any:
        _refuse_addresses(params, name)
        try:
            return callback(*args, **params)
        except BaseException as error:
            if not is_interrupt(error):
                raise
            raise Interrupted(describe_stop(name, is_resumed=bool(params.get("resume")))) from error

    return guarded


def _refuse_addresses(params: dict[str, Any], name: str) -> None:
    """Raise ConfigError if a command that takes a local path got an address."""
    for param, value in params.items():
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path) and _MANGLED.fullmatch(str(path)):
                from pairwright.paths import place

                raise ConfigError(
                    f"{place(str(path).replace(':/', '://', 1))}: an address, but `pairwright {name}` takes its "
                    f"{param.replace('_', ' ')} only on this machine: copy it to a folder here and name that "
                    "(docs: Scale)"
                )

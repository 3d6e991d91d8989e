"""Child processes that outlive us: a worker or a model server is alive exactly while its lock file is locked.

The child inherits the locked descriptor, so the kernel gives the lock back when the last of its processes ends,
however it ended. A service that was killed and started again finds its children by their locks: no process id is
trusted while its lock is free, so a reused id is never signalled.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pairwright.errors import PairwrightError

# the shell writes its own id, then becomes the command: the id is on disk before the command begins
_LAUNCH = 'echo $$ > "$0" && exec "$@"'


def start(
    command: Sequence[str], *, lock: Path, log: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own, its output appended to a log, holding a lock."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PairwrightError(f"{lock}: the process before is still there") from None
        with open(log, "ab") as output:
            return subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, str(lock), *command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=(fd,), env=dict(environment),
            )  # fmt: skip
    finally:
        os.close(fd)


def is_alive(lock: Path) -> bool:
    """Whether the process of a lock, or one that it started, is there."""
    try:
        fd = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def process_id(lock: Path) -> int | None:
    """The id that the last process of a lock had."""
    try:
        return int(lock.read_text())
    except (OSError, ValueError):
        return None


def send(lock: Path, number: signal.Signals) -> None:
    """Signal the process of a lock and all that it started, if it is there."""
    pid = process_id(lock)
    if pid is not None and pid > 1 and is_alive(lock):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def last_lines(log: Path, count: int = 20, max_bytes: int = 16_384) -> list[str]:
    """The end of a log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - max_bytes))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.replace("\r", "\n").splitlines() if line.strip()][-count:]

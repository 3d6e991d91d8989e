"""Processes that outlive the command that started them, and how to know later what became of them.

A job's folder has `lock`, held by the process for as long as it lives (so a pid that another process got is never
mistaken for it), `exit.json` with the exit code once it ended, and `log`. A process that is gone without an exit code
was killed, or the machine went down.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pairwright.backends.failures import BackendError

LOCK, EXIT, LOG = "lock", "exit.json", "log"
RUNNER = Path(__file__).with_name("runner.py")  # run as a file: it needs nothing of ours
KILLED = -1  # the exit code of a process that left none


def start(
    folder: Path,
    command: Sequence[str],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Start a command in a session of its own; returns its process id. Its output goes to `folder/log`."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackendError(f"{folder}: its process is still running; see: pairwright jobs list") from None
        (folder / EXIT).unlink(missing_ok=True)
        exit_file = (folder / EXIT).absolute()
        with open(folder / LOG, "ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(RUNNER), str(exit_file), *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=(fd,),
                cwd=directory, env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
    finally:
        os.close(fd)  # the process has its own copy: the lock lives as long as that
    process.returncode = 0  # nobody here waits for it, and that is no mistake to be warned of
    return process.pid


def refuse_running(folder: Path) -> None:
    """Raise while a folder's process lives, before its reference is replaced by another."""
    if is_alive(folder):
        raise BackendError(
            f"{folder}: its process is still running; end it with: pairwright jobs cancel {folder.parent}"
        )


def is_alive(folder: Path) -> bool:
    try:
        fd = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def exit_code(folder: Path) -> int | None:
    """None while the process lives, its exit code when it ended, KILLED when it is gone without one."""
    if is_alive(folder):
        return None
    try:
        code = json.loads((folder / EXIT).read_text(encoding="utf-8"))["code"]
    except (FileNotFoundError, ValueError, KeyError):
        return KILLED
    return int(code)


def stop(folder: Path, pid: int, *, grace_seconds: float) -> None:
    """Ask a process and what it started to end, and after a while end it. What is not alive is left alone."""
    if not is_alive(folder):
        return
    _signal(pid, signal.SIGTERM)
    until = time.monotonic() + grace_seconds
    while time.monotonic() < until:
        if not is_alive(folder):
            return
        time.sleep(0.05)
    _signal(pid, signal.SIGKILL)


def last_lines(path: Path, num: int) -> list[str]:
    """The end of a log. Of a huge one only the last megabyte is read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2**20))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return list(deque(text.splitlines(), maxlen=num))


def follow(path: Path, folder: Path, *, interval_seconds: float = 0.5) -> Iterator[str]:
    """The lines of a log as they come, until its process has ended."""
    position = 0
    while True:
        alive = is_alive(folder)
        try:
            with open(path, "rb") as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n") and alive:
                        break  # not whole yet
                    position += len(line)
                    yield line.decode("utf-8", "replace").rstrip("\n")
        except FileNotFoundError:
            pass
        if not alive:
            return
        time.sleep(interval_seconds)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise BackendError(f"process {pid}: {error.strerror}; it belongs to somebody else") from error

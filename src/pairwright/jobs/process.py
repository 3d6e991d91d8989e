"""Processes that outlive whoever started them, and how to know later what became of them: trainers, workers, servers.

A process has a folder with `lock`, locked for as long as the process or its command lives (so a pid that another
process got is never mistaken for it) and holding its pid, `exit.json` with the exit code once it ended, and `log`.
A process that is gone without an exit code was killed, or the machine went down.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pairwright.jobs.job import BackendError
from pairwright.ledger.run_status import last_lines

LOCK, EXIT, LOG = "lock", "exit.json", "log"
RUNNER = Path(__file__).with_name("job_runner.py")
KILLED = -1  # the exit code of a process that left none


def start(
    folder: Path,
    command: Sequence[str],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Start a command in a session of its own; returns the process id. Its output goes to `folder/log`.

    `environment` is added to that of this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackendError(f"{folder}: its process is still running; see: pairwright jobs list") from None
        os.ftruncate(fd, 0)  # the pid of the process before
        (folder / EXIT).unlink(missing_ok=True)
        with open(folder / LOG, "ab") as log:
            process = subprocess.Popen(
                # -I -S: isolated, without site-packages: starts fast and imports nothing of the user's.
                [sys.executable, "-I", "-S", str(RUNNER), str(folder.absolute()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(fd,),
                cwd=directory,
                env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
            )
        os.pwrite(fd, str(process.pid).encode(), 0)
    finally:
        os.close(fd)  # the process has its own copy: the lock lives as long as that
    threading.Thread(target=process.wait, daemon=True).start()  # or it would stay a zombie of a long-lived parent
    return process.pid


def refuse_running(folder: Path) -> None:
    """Raise while a folder's process lives, before its reference is replaced by another."""
    if is_alive(folder):
        raise BackendError(
            f"{folder}: its process is still running; end it with: pairwright jobs cancel {folder.parent}"
        )


def is_alive(folder: Path) -> bool:
    """Whether the process of a folder, or its command, is there."""
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


def process_id(folder: Path) -> int | None:
    """The id of the last process of a folder; None in the moment before it wrote it down."""
    try:
        return int((folder / LOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def exit_code(folder: Path) -> int | None:
    """None while the process lives, its exit code when it ended, KILLED when it is gone without one."""
    if is_alive(folder):
        return None
    try:
        code = json.loads((folder / EXIT).read_text(encoding="utf-8"))["code"]
    except (FileNotFoundError, ValueError, KeyError):
        return KILLED
    return int(code)


def describe_exit(folder: Path, code: int) -> str:
    """How a process ended, with the last line of its log."""
    if code == KILLED:
        how = "was killed, or the machine went down"
    elif code == 128 + signal.SIGKILL:
        how = f"was killed by signal {signal.SIGKILL:d}"
    else:
        how = f"ended with exit code {code}"
    lines = log_end(folder, 1)
    return f"its process {how}" + (f": {lines[-1]}" if lines else "")


def send(folder: Path, number: signal.Signals) -> bool:
    """Signal a process and what it started; False if it is not there, or its id not known yet."""
    pid = process_id(folder)
    if pid is None or not is_alive(folder):
        return False
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise BackendError(f"process {pid}: {error.strerror}; it belongs to somebody else") from error
    return True


def stop(folder: Path, *, grace_seconds: float) -> None:
    """Ask a process and what it started to end, and after a while end it. What is not alive is left alone."""
    until, is_asked = time.monotonic() + grace_seconds, False
    while is_alive(folder) and time.monotonic() < until:
        # Asked once; `send` is False as long as the pid is not written yet.
        is_asked = is_asked or send(folder, signal.SIGTERM)
        time.sleep(0.05)
    send(folder, signal.SIGKILL)


def log_end(folder: Path, count: int) -> list[str]:
    """The last lines of a process's log that are not blank."""
    return [line for line in last_lines(folder / LOG, 10_000) if line.strip()][-count:]


def follow(folder: Path, *, interval_seconds: float = 0.5) -> Iterator[str]:
    """The lines of a process's log as they come, until it has ended."""
    position = 0
    while True:
        # Checked before reading, so that the last lines of an ended process are not missed.
        alive = is_alive(folder)
        try:
            with open(folder / LOG, "rb") as file:
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

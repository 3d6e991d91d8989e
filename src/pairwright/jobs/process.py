"""Detached processes (trainers, workers, servers) that outlive their parent, and their state on disk.

A process has a folder with three files. `lock` contains its pid and is locked while the process or its command is
alive, so a reused pid is not mistaken for it. `exit.json` has the exit code after it ended. `log` has its output. A
dead process without an exit code was killed, or the machine went down.
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
KILLED = -1  # used for a process without an exit code


def start(
    folder: Path,
    command: Sequence[str],
    *,
    directory: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Start a command in a new session and return its process id. `environment` is added to that of this process."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackendError(f"{folder}: its process is still running; see: pairwright jobs list") from None
        os.ftruncate(fd, 0)  # the pid of the previous process
        (folder / EXIT).unlink(missing_ok=True)
        with open(folder / LOG, "ab") as log:
            process = subprocess.Popen(
                # -I -S: isolated, without site-packages: starts fast and imports no user code.
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
        os.close(fd)  # the process has its own copy, which holds the lock
    threading.Thread(target=process.wait, daemon=True).start()  # reaps it: no zombie in a long-lived parent
    return process.pid


def refuse_running(folder: Path) -> None:
    """Raise if the process of a folder is alive, so that its reference is not overwritten."""
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


def process_id(folder: Path) -> int | None:
    """Return the id of the latest process of a folder; None if it is not written yet."""
    try:
        return int((folder / LOCK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def exit_code(folder: Path) -> int | None:
    """Return None while the process is alive, else its exit code, or KILLED if it left none."""
    if is_alive(folder):
        return None
    try:
        code = json.loads((folder / EXIT).read_text(encoding="utf-8"))["code"]
    except (FileNotFoundError, ValueError, KeyError):
        return KILLED
    return int(code)


def describe_exit(folder: Path, code: int) -> str:
    """Describe how a process ended, with the last line of its log."""
    if code == KILLED:
        how = "was killed, or the machine went down"
    elif code == 128 + signal.SIGKILL:
        how = f"was killed by signal {signal.SIGKILL:d}"
    else:
        how = f"ended with exit code {code}"
    lines = log_end(folder, 1)
    return f"its process {how}" + (f": {lines[-1]}" if lines else "")


def send(folder: Path, number: signal.Signals) -> bool:
    """Send a signal to the process group. Returns False if it is not alive or its id is not written yet."""
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
    """Send SIGTERM to the process group, and SIGKILL after the grace period. Does nothing if it is not alive."""
    until, is_asked = time.monotonic() + grace_seconds, False
    while is_alive(folder) and time.monotonic() < until:
        # Sent once; `send` returns False until the pid is written.
        is_asked = is_asked or send(folder, signal.SIGTERM)
        time.sleep(0.05)
    send(folder, signal.SIGKILL)


def log_end(folder: Path, count: int) -> list[str]:
    """Return the last `count` non-blank lines of the log."""
    return [line for line in last_lines(folder / LOG, 10_000) if line.strip()][-count:]


def follow(folder: Path) -> Iterator[str]:
    """Yield the lines of the log as they are written, until the process ends."""
    position = 0
    while True:
        # Checked before reading, so that the last lines of an ended process are not missed.
        alive = is_alive(folder)
        try:
            with open(folder / LOG, "rb") as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n") and alive:
                        break  # an incomplete line
                    position += len(line)
                    yield line.decode("utf-8", "replace").rstrip("\n")
        except FileNotFoundError:
            pass
        if not alive:
            return
        time.sleep(0.5)

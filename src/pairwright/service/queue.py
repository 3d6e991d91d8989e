"""The queue of jobs: at most N workers at a time, and every job ends.

One pass (`tick`) looks at each job that should have a worker, by its lock, then starts what waits. The rows say what
should be; the locks say what is. After a restart of the service a worker that lives is watched on; a job whose worker
is gone goes on from its last checkpoint. While the service runs, a worker that is gone without a result is a failed
job with the last lines of its log, and one that gives no sign for too long is ended.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from pairwright.errors import PairwrightError
from pairwright.service import jobs, processes
from pairwright.service.assignments import WORK_FILE, write_work
from pairwright.service.context import Context
from pairwright.service.names import age_seconds, now
from pairwright.service.progress import Run, read_run, summary
from pairwright.service.schema import jobs as rows
from pairwright.service.states import WAITING, WITH_WORKER, JobState

LOCK, LOG, RUN = "worker.lock", "log.txt", "run"
MAX_IDLE_STARTS = 3
HEARTBEAT_SECONDS = 5.0
CANCEL_SECONDS = 10.0


class JobQueue:
    """Runs in the one thread that supervises; holds no state that a restart would need."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._asked_to_stop: dict[str, float] = {}
        self._exit_codes: dict[str, int] = {}

    def recover(self) -> None:
        """After a start: jobs whose workers are gone wait for their turn again."""
        for row in self._rows(WITH_WORKER):
            if not processes.is_alive(self._folder(row) / LOCK):
                self._close(row, is_recovery=True)

    def tick(self) -> None:
        self._reap()
        running = self._rows(WITH_WORKER)
        alive = 0
        for row in running:
            if processes.is_alive(self._folder(row) / LOCK):
                alive += 1
                self._watch(row)
            else:
                self._close(row, is_recovery=False)
        waiting = self._rows(WAITING, limit=1000)
        free = max(0, self._settings.max_running - alive)
        for row in waiting[:free]:
            self._start(row)
        for row in waiting[free:]:
            if row["state"] == JobState.CREATED:
                self._move(row, JobState.PENDING, f"waiting: {self._settings.max_running} jobs run at a time")

    def stop(self) -> None:
        """Let workers save a checkpoint and end; their jobs go on at the next start."""
        running = self._rows(WITH_WORKER)
        for row in running:
            processes.send(self._folder(row) / LOCK, signal.SIGTERM)
        deadline = time.monotonic() + self._settings.stop_seconds
        for row in running:
            lock = self._folder(row) / LOCK
            while processes.is_alive(lock) and time.monotonic() < deadline:
                time.sleep(0.05)
            processes.send(lock, signal.SIGKILL)
            while processes.is_alive(lock) and time.monotonic() < deadline + 5:
                time.sleep(0.02)
            self._close(row, is_recovery=True)
        self._reap()

    def _rows(self, states: tuple[JobState, ...], limit: int | None = None) -> list[RowMapping]:
        with self._context.database.reading() as connection:
            return jobs.in_states(connection, states, limit)

    def _folder(self, row: RowMapping) -> Path:
        return self._settings.job_folder(row["id"])

    def _start(self, row: RowMapping) -> None:
        identity = row["id"]
        moved = self._move(
            row, JobState.RUNNING, "started" if not row["starts"] else "resumed from the last checkpoint",
            starts=row["starts"] + 1, started_at=now(), heartbeat_at=now(),
        )  # fmt: skip
        if not moved:
            return  # cancelled a moment ago
        folder = self._folder(row)
        try:
            work = jobs.work_of(row)
            files = [{**file, "blob": str(self._context.blobs.path(file["sha256"]))} for file in work["files"]]
            write_work(folder, {**work, "files": files, "command": self._settings.train_command})
            command = [sys.executable, "-m", "pairwright.service.worker", str(folder)]
            self._children[identity] = processes.start(
                command, lock=folder / LOCK, log=folder / LOG, environment=child_environment()
            )
        except (OSError, PairwrightError) as error:
            self._move(row, JobState.FAILED, "the worker could not be started", detail=str(error))

    def _watch(self, row: RowMapping) -> None:
        """A job whose worker lives: note its progress, end it if that was asked for or it hangs."""
        folder, lock = self._folder(row), self._folder(row) / LOCK
        if row["state"] == JobState.CANCELLING:
            self._end(row["id"], lock)
            return
        signs = [folder / LOG, folder / RUN / "train.json", folder / RUN / "metrics.jsonl", folder / WORK_FILE]
        newest = max((_modified(path) for path in signs), default=0.0)
        quiet = time.time() - newest if newest else age_seconds(row["started_at"])
        if quiet > self._settings.stall_seconds:
            processes.send(lock, signal.SIGKILL)
            message = f"stalled: no sign for {quiet:.0f} seconds, so its worker was ended"
            self._move(row, JobState.FAILED, message, detail="\n".join(processes.last_lines(folder / LOG)))
            return
        if age_seconds(row["heartbeat_at"]) >= min(HEARTBEAT_SECONDS, 10 * self._settings.tick_seconds):
            self._note(row)

    def _end(self, identity: str, lock: Path) -> None:
        asked = self._asked_to_stop.get(identity)
        if asked is None:
            self._asked_to_stop[identity] = time.monotonic()
            processes.send(lock, signal.SIGTERM)
        elif time.monotonic() - asked > min(CANCEL_SECONDS, self._settings.stop_seconds):
            processes.send(lock, signal.SIGKILL)

    def _note(self, row: RowMapping) -> None:
        found = self._progress(row, is_completed=False)
        with self._context.database.writing() as connection:
            values: dict[str, Any] = {"heartbeat_at": now(), "progress": msgspec.json.encode(found).decode()}
            if found["steps_completed"] > row["step"]:
                values |= {"step": found["steps_completed"], "idle_starts": 0}
            connection.execute(sa.update(rows).where(rows.c.id == row["id"]).values(values))

    def _close(self, row: RowMapping, *, is_recovery: bool) -> None:
        """A job whose worker is gone: what became of it?"""
        folder = self._folder(row)
        run = read_run(folder / RUN)
        is_fresh = run is not None and run.pid in (None, processes.process_id(folder / LOCK))
        new, message, detail = self._outcome(row, run, is_fresh=is_fresh, is_recovery=is_recovery)
        progress = self._progress(row, is_completed=new is JobState.COMPLETED)
        values: dict[str, Any] = {
            "progress": msgspec.json.encode(progress).decode(),
            "heartbeat_at": now(),
            "step": max(row["step"], progress["steps_completed"]),
            "seconds": row["seconds"] + (max(0.0, age_seconds(row["started_at"])) if row["started_at"] else 0.0),
        }
        if new is JobState.PENDING:
            values["idle_starts"] = 0 if progress["steps_completed"] > row["step"] else row["idle_starts"] + 1
        self._move(row, new, message, detail=detail, **values)
        self._asked_to_stop.pop(row["id"], None)

    def _outcome(
        self, row: RowMapping, run: Run | None, *, is_fresh: bool, is_recovery: bool
    ) -> tuple[JobState, str, str | None]:
        folder = self._folder(row)
        if run is not None and run.state == "completed" and (folder / RUN / run.model).is_dir():
            return JobState.COMPLETED, "completed", None
        if row["state"] == JobState.CANCELLING:
            return JobState.CANCELLED, "cancelled", None
        lines = "\n".join(processes.last_lines(folder / LOG))
        if run is not None and is_fresh and run.state == "failed":
            return JobState.FAILED, run.error or "the trainer failed", lines
        is_stopped = run is not None and is_fresh and run.state == "stopped"
        if is_recovery or is_stopped:
            if row["idle_starts"] >= MAX_IDLE_STARTS:
                message = (
                    f"given up: started {row['starts']} times, the last {MAX_IDLE_STARTS + 1} without a step forward"
                )
                return JobState.FAILED, message, lines
            return JobState.PENDING, "interrupted; goes on from the last checkpoint", None
        code = self._exit_codes.pop(row["id"], None)
        how = "" if code is None else f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
        last = lines.rpartition("\n")[2]
        return JobState.FAILED, f"the worker ended without a result{how}: {last or 'it wrote no log'}"[:1000], lines

    def _progress(self, row: RowMapping, *, is_completed: bool) -> dict[str, Any]:
        before = msgspec.json.decode(row["progress"])
        return summary(self._folder(row) / RUN, is_completed=is_completed, before=before)

    def _move(self, row: RowMapping, new: JobState, message: str, *, detail: str | None = None, **values: Any) -> bool:
        with self._context.database.writing() as connection:
            return jobs.move(connection, row["id"], new, message, detail=detail, **values)

    def _reap(self) -> None:
        for identity, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                self._exit_codes[identity] = code
                del self._children[identity]


def child_environment() -> dict[str, str]:
    """The environment of workers and model servers: they look nothing up on the network."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1"}  # fmt: skip


def _modified(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0

"""Job queue: runs at most N workers at a time, and brings every job to a final state.

A pass (`tick`) checks the worker of each running job by its process lock, then starts waiting jobs. The database holds
the desired state, the locks show the actual one. Workers that survive a restart of the service are monitored again;
jobs whose worker did not survive resume from the last checkpoint. While the service runs, a worker that exits without a
result fails its job, with the end of its log, and a worker without activity for too long is killed.
"""

import contextlib
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from pairwright.config import Config
from pairwright.errors import PairwrightError
from pairwright.jobs import local, process
from pairwright.jobs.backend import follow_status, silent
from pairwright.jobs.job import FINAL, BackendError, JobState, Status, new_job, read_job
from pairwright.ledger.run_status import FILE_NAME as TRAIN_FILE
from pairwright.ledger.run_status import read_status
from pairwright.paths import write_json
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.entities import age_seconds, now
from pairwright.service.rows.job_rows import WAITING, WITH_WORKER, summary
from pairwright.service.rows.schema import jobs as rows
from pairwright.service.settings import WORK_FILE, Context

OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}  # for child processes
LOG_LINES = 20
# Starts in a row without a training step.
MAX_IDLE_STARTS = 3
HEARTBEAT_SECONDS = 5.0
CANCEL_SECONDS = 10.0


class JobQueue:
    """Starts and monitors workers. Used only from the supervisor thread; keeps no state that a restart would need."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        # Monotonic time of the first SIGTERM, by job id. Lost in a restart, which only sends it again.
        self._asked_to_stop: dict[str, float] = {}

    def recover(self) -> None:
        """Put jobs whose worker is gone back into the queue, after a start of the service."""
        for row in self._rows(WITH_WORKER):
            if not process.is_alive(self._process(row)):
                self._close(row, is_recovery=True)

    def tick(self) -> None:
        """Run one pass: check running jobs, then start waiting ones."""
        running = self._rows(WITH_WORKER)
        alive = 0
        for row in running:
            if process.is_alive(self._process(row)):
                alive += 1
                self._watch(row)
            else:
                self._close(row, is_recovery=False)
        # Bounded: a long queue is not read whole in each pass.
        waiting = self._rows(WAITING, limit=1000)
        free = max(0, self._settings.max_running - alive)
        for row in waiting[:free]:
            self._start(row)
        for row in waiting[free:]:
            if row["state"] == JobState.CREATED:
                self._move(row, JobState.PENDING, f"waiting: {self._settings.max_running} jobs run at a time")

    def stop(self) -> None:
        """Let workers save a checkpoint and exit. Their jobs resume at the next start."""
        running = self._rows(WITH_WORKER)
        for row in running:
            process.send(self._process(row), signal.SIGTERM)
        deadline = time.monotonic() + self._settings.stop_seconds
        for row in running:
            process.stop(self._process(row), grace_seconds=deadline - time.monotonic())
            # After SIGKILL the lock is freed when the kernel has torn the process down.
            while process.is_alive(self._process(row)) and time.monotonic() < deadline + 5:
                time.sleep(0.02)
            self._close(row, is_recovery=True)

    def _rows(self, states: tuple[JobState, ...], limit: int | None = None) -> list[RowMapping]:
        with self._context.database.reading() as connection:
            return jobs.in_states(connection, states, limit)

    def _folder(self, row: RowMapping) -> Path:
        return self._settings.job_folder(row["id"])

    def _run(self, row: RowMapping) -> Path:
        return self._settings.run_folder(row["id"])

    def _process(self, row: RowMapping) -> Path:
        return self._run(row) / local.PROCESS

    def _start(self, row: RowMapping) -> None:
        """Write the inputs of a job and launch its worker."""
        moved = self._move(
            row,
            JobState.RUNNING,
            "started" if not row["starts"] else "resumed from the last checkpoint",
            starts=row["starts"] + 1,
            started_at=now(),
            heartbeat_at=now(),
        )
        if not moved:
            return  # cancelled a moment ago
        folder = self._folder(row)
        try:
            work = jobs.work_of(row)
            # The worker gets paths: it knows nothing of the blob store.
            files = [{**file, "blob": str(self._context.blobs.path(file["sha256"]))} for file in work["files"]]
            write_json(folder / "config.yaml", {"name": folder.name, "seed": work["seed"], "train": work["train"]})
            write_json(folder / WORK_FILE, {**work, "files": files})
            command = [*self._settings.worker_command, str(folder)]
            job = new_job("local", model=work["model"], pairs=None)
            local.launch(self._run(row), job, command, say=silent, environment=OFFLINE)
        except (OSError, PairwrightError) as error:
            self._move(row, JobState.FAILED, "the worker could not be started", detail=str(error))

    def _watch(self, row: RowMapping) -> None:
        """Record the progress of a job with a live worker. Ends the worker if it is cancelled or stalled."""
        run, worker = self._run(row), self._process(row)
        if row["state"] == JobState.CANCELLING:
            self._end(row["id"], worker)
            return
        # Files whose modification time is a sign of life.
        signs = [worker / process.LOG, run / TRAIN_FILE, run / "metrics.jsonl", self._folder(row) / WORK_FILE]
        newest = max((_modification_time(path) for path in signs), default=0.0)
        quiet = time.time() - newest if newest else age_seconds(row["started_at"])
        if quiet > self._settings.stall_seconds:
            process.send(worker, signal.SIGKILL)
            message = f"stalled: no sign for {quiet:.0f} seconds, so its worker was ended"
            self._move(row, JobState.FAILED, message, detail=self._log(row))
            return
        if age_seconds(row["heartbeat_at"]) >= min(HEARTBEAT_SECONDS, 10 * self._settings.tick_seconds):
            self._note(row)

    def _end(self, identity: str, worker: Path) -> None:
        asked = self._asked_to_stop.get(identity)
        if asked is None:
            self._asked_to_stop[identity] = time.monotonic()
            process.send(worker, signal.SIGTERM)
        elif time.monotonic() - asked > min(CANCEL_SECONDS, self._settings.stop_seconds):
            process.send(worker, signal.SIGKILL)

    def _note(self, row: RowMapping) -> None:
        progress = self._progress(row, is_completed=False)
        with self._context.database.writing() as connection:
            values: dict[str, Any] = {"heartbeat_at": now(), "progress": msgspec.json.encode(progress).decode()}
            # A step forward: the starts before were not in vain.
            if progress["steps_completed"] > row["step"]:
                values |= {"step": progress["steps_completed"], "idle_starts": 0}
            connection.execute(sa.update(rows).where(rows.c.id == row["id"]).values(values))

    def _close(self, row: RowMapping, *, is_recovery: bool) -> None:
        """Move a job whose worker is gone to its next state."""
        new, message, detail = self._outcome(row, is_recovery=is_recovery)
        progress = self._progress(row, is_completed=new is JobState.COMPLETED)
        values: dict[str, Any] = {
            "progress": msgspec.json.encode(progress).decode(),
            "heartbeat_at": now(),
            # After a crash, files may tell an older step than the row.
            "step": max(row["step"], progress["steps_completed"]),
            "seconds": row["seconds"] + (max(0.0, age_seconds(row["started_at"])) if row["started_at"] else 0.0),
        }
        if new is JobState.PENDING:
            values["idle_starts"] = 0 if progress["steps_completed"] > row["step"] else row["idle_starts"] + 1
        self._move(row, new, message, detail=detail, **values)
        if new in FINAL:
            with contextlib.suppress(BackendError):  # killed before it was written
                follow_status(self._run(row), read_job(self._run(row)), Status(state=new, message=message))
        self._asked_to_stop.pop(row["id"], None)

    def _outcome(self, row: RowMapping, *, is_recovery: bool) -> tuple[JobState, str, str | None]:
        """Return state, message and detail of a job whose worker is gone."""
        folder = self._run(row)
        run = read_status(folder, strict=False)
        if run is not None and run.state == "completed" and (folder / (run.model or "model")).is_dir():
            return JobState.COMPLETED, "completed", None
        if row["state"] == JobState.CANCELLING:
            return JobState.CANCELLED, "cancelled", None
        is_stopped = run is not None and run.state == "stopped" and local.is_current(folder)
        has_failed = run is not None and run.state == "failed" and local.is_current(folder)
        # Interrupted, not failed: by a restart of the service, or by a worker that saved and stopped.
        if (is_recovery and not has_failed) or is_stopped:
            if row["idle_starts"] >= MAX_IDLE_STARTS:
                message = (
                    f"given up: started {row['starts']} times, the last {MAX_IDLE_STARTS + 1} without a step forward"
                )
                return JobState.FAILED, message, self._log(row)
            return JobState.PENDING, "interrupted; goes on from the last checkpoint", None
        message = local.status(folder, read_job(folder), Config()).message
        return JobState.FAILED, (message or "the worker ended without a result")[:1000], self._log(row)

    def _log(self, row: RowMapping) -> str:
        return "\n".join(process.log_end(self._process(row), LOG_LINES))

    def _progress(self, row: RowMapping, *, is_completed: bool) -> dict[str, Any]:
        before = msgspec.json.decode(row["progress"])
        return summary(self._run(row), is_completed=is_completed, before=before)

    def _move(self, row: RowMapping, new: JobState, message: str, *, detail: str | None = None, **values: Any) -> bool:
        with self._context.database.writing() as connection:
            return jobs.move(connection, row["id"], new, message, detail=detail, **values)


def _modification_time(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0

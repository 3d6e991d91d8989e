"""Job queue: runs at most N workers at a time, and brings every job to a final state.

A pass (`tick`) checks the worker of each running job by its process lock, then starts waiting jobs. The database holds
the desired state, the locks show the actual one. Workers that survive a restart of the service are monitored again;
jobs whose worker did not survive resume from the last checkpoint. While the service runs, a worker that exits without a
result fails its job, with the end of its log, and a worker without activity for too long is killed. Activity is a
change of its files. Idle time is counted pass by pass in monotonic time: time in which the machine or the service was
suspended does not count.
"""

import contextlib
import math
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from pairwright.config import Config
from pairwright.errors import PairwrightError
from pairwright.jobs import local, process
from pairwright.jobs.job import FINAL, BackendError, JobState, Status, follow_status, new_job, read_job, silent
from pairwright.ledger.run_status import FILE_NAME as TRAIN_FILE
from pairwright.ledger.run_status import read_status
from pairwright.paths import write_json
from pairwright.service.context import Context
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.job_progress import summary
from pairwright.service.rows.job_rows import WAITING, WITH_WORKER
from pairwright.service.rows.names import age_seconds, now
from pairwright.service.rows.schema import jobs as rows
from pairwright.service.run.job_results import add_result_file, write_card
from pairwright.service.settings import WORK_FILE

OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}  # for child processes
LOG_LINES = 20
# Maximum number of consecutive starts without a training step.
MAX_IDLE_STARTS = 3
HEARTBEAT_SECONDS = 5.0
CANCEL_SECONDS = 10.0
WORKER_ERROR = "pairwright: "  # prefix of the line with the error of a worker
# Maximum idle time that a pass may add to a worker: passes are far apart if the service was suspended.
MAX_PASS_SECONDS = 10.0


class JobQueue:
    """Starts and monitors workers. Used only from the supervisor thread; keeps no state that a restart would need."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        # Monotonic time of the first SIGTERM, by job id. After a restart the signal is sent again.
        self._asked_to_stop: dict[str, float] = {}
        self._quiet: dict[str, Quiet] = {}
        # Monotonic time at which progress was last written to the database, by job id.
        self._noted: dict[str, float] = {}

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
        free = max(0, self._settings.max_running - alive)
        for row in self._rows(WAITING, limit=free) if free else []:
            self._start(row)
        # Bounded, so that a pass does not read a long queue completely.
        for row in self._rows((JobState.CREATED,), limit=100):
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
        message = "resumed from the last checkpoint" if row["starts"] else "started"
        values: dict[str, Any] = {"starts": row["starts"] + 1, "started_at": now(), "heartbeat_at": now()}
        if not self._move(row, JobState.RUNNING, message, **values):
            return  # cancelled a moment ago
        folder = self._folder(row)
        try:
            work = row["document"]["work"]
            # Truncated as in the base model's config; the trainer counts truncated sequences.
            tokens = {"max_length": work.get("max_length")}
            # The worker gets paths and does not access the blob store.
            files = [{**file, "blob": str(self._context.blobs.path(file["sha256"]))} for file in work["files"]]
            config = {"name": folder.name, "seed": work["seed"], "train": work["train"], "tokens": tokens}
            write_json(folder / "config.yaml", config)
            write_json(folder / WORK_FILE, {**work, "files": files})
            command = [*self._settings.worker_command, str(folder)]
            job = new_job("local", model=work["model"], pairs=None)
            local.launch(self._run(row), job, command, say=silent, environment=OFFLINE)
        except (OSError, PairwrightError) as error:
            detail = self._settings.hide_paths(str(error))
            self._move(row, JobState.FAILED, f"{detail}; the worker could not be started", detail=detail)

    def _watch(self, row: RowMapping) -> None:
        """Record the progress of a job with a live worker. Ends the worker if it is cancelled or stalled."""
        run, worker = self._run(row), self._process(row)
        if row["state"] == JobState.CANCELLING:
            asked = self._asked_to_stop.get(row["id"])
            if asked is None:
                self._asked_to_stop[row["id"]] = time.monotonic()
                process.send(worker, signal.SIGTERM)
            elif time.monotonic() - asked > min(CANCEL_SECONDS, self._settings.stop_seconds):
                process.send(worker, signal.SIGKILL)
            return
        # Files whose changes count as activity.
        signs = [worker / process.LOG, run / TRAIN_FILE, run / "metrics.jsonl", self._folder(row) / WORK_FILE]
        quiet = self._quiet.setdefault(row["id"], Quiet()).observe(tuple(map(_signature, signs)))
        if quiet > self._settings.stall_seconds:
            process.send(worker, signal.SIGKILL)
            message = f"stalled: no sign for {quiet:.0f} seconds, so its worker was ended"
            self._move(row, JobState.FAILED, message, detail=self._log(row))
            return
        unnoted = time.monotonic() - self._noted.get(row["id"], -math.inf)
        if unnoted < min(HEARTBEAT_SECONDS, 10 * self._settings.tick_seconds):
            return
        self._noted[row["id"]] = time.monotonic()
        progress = self._progress(row, is_completed=False)
        values: dict[str, Any] = {"heartbeat_at": now(), "progress": progress}
        if progress["steps_completed"] > row["step"]:
            values |= {"step": progress["steps_completed"], "idle_starts": 0}
        with self._context.database.writing() as connection:
            connection.execute(sa.update(rows).where(rows.c.id == row["id"]).values(values))

    def _close(self, row: RowMapping, *, is_recovery: bool) -> None:
        new, message, detail = self._outcome(row, is_recovery=is_recovery)
        progress = self._progress(row, is_completed=new is JobState.COMPLETED)
        values: dict[str, Any] = {
            "progress": progress,
            "heartbeat_at": now(),
            # After a crash, files may have an older step than the row.
            "step": max(row["step"], progress["steps_completed"]),
            "seconds": row["seconds"] + (max(0.0, age_seconds(row["started_at"])) if row["started_at"] else 0.0),
        }
        if new is JobState.PENDING:
            values["idle_starts"] = 0 if progress["steps_completed"] > row["step"] else row["idle_starts"] + 1
        if new is JobState.COMPLETED:
            with contextlib.suppress(OSError):  # failing to write the curves must not fail the job
                add_result_file(self._context, row, self._run(row))
        self._move(row, new, message, detail=detail, **values)
        if new in FINAL:
            with contextlib.suppress(BackendError):  # killed before it was written
                follow_status(self._run(row), read_job(self._run(row)), Status(state=new, message=message))
            if new is JobState.COMPLETED:
                with contextlib.suppress(OSError):  # failing to write the card must not fail the job
                    write_card(row, local.result_folder(self._run(row)))
            # A paused job is a cancelled one that keeps its checkpoints.
            is_paused = new is JobState.CANCELLED and row["document"].get("is_paused")
            if new is not JobState.FAILED and not is_paused and not self._settings.keep_checkpoints:
                shutil.rmtree(self._run(row) / "checkpoints", ignore_errors=True)
        for memory in (self._asked_to_stop, self._quiet, self._noted):
            memory.pop(row["id"], None)

    def _outcome(self, row: RowMapping, *, is_recovery: bool) -> tuple[JobState, str, str | None]:
        folder = self._run(row)
        run = read_status(folder, strict=False)
        if run is not None and run.state == "completed" and local.result_folder(folder).is_dir():
            return JobState.COMPLETED, "completed", None
        if row["state"] == JobState.CANCELLING:
            return JobState.CANCELLED, "cancelled", None
        is_stopped = run is not None and run.state == "stopped" and local.is_current(folder)
        has_failed = run is not None and run.state == "failed" and local.is_current(folder)
        # Interrupted, not failed: by a restart of the service, or by a worker that saved and stopped.
        if (is_recovery and not has_failed) or is_stopped:
            if row["idle_starts"] >= MAX_IDLE_STARTS:
                message = f"gave up after {row['starts']} attempts: the last {MAX_IDLE_STARTS + 1} made no progress"
                return JobState.FAILED, message, self._log(row)
            return JobState.PENDING, "interrupted; continues from the last checkpoint", None
        return JobState.FAILED, self._reason(row), self._log(row)

    def _reason(self, row: RowMapping) -> str:
        """Return why the worker ended without a result: the reason, then how the process ended."""
        try:
            message = local.status(self._run(row), read_job(self._run(row)), Config()).message
        except BackendError:  # killed before its reference was written
            message = local.train_progress(self._run(row), new_job("local", model="", pairs=None)).message
        how, colon, line = message.partition(f": {WORKER_ERROR}")
        if colon:
            message = f"{line} ({how})"
        return self._settings.hide_paths(message or "the worker ended without a result")[:1000]

    def _log(self, row: RowMapping) -> str:
        return self._settings.hide_paths("\n".join(process.log_end(self._process(row), LOG_LINES)))

    def _progress(self, row: RowMapping, *, is_completed: bool) -> dict[str, Any]:
        return summary(self._run(row), is_completed=is_completed, before=row["progress"])

    def _move(self, row: RowMapping, new: JobState, message: str, *, detail: str | None = None, **values: Any) -> bool:
        with self._context.database.writing() as connection:
            return jobs.move(connection, row["id"], new, message, detail=detail, **values)


class Quiet:
    """Measures how long a process has shown no activity, excluding time in which the service was suspended."""

    def __init__(self) -> None:
        self._signature: Any = None
        self._seconds = 0.0
        self._last = time.monotonic()

    def observe(self, signature: Any) -> float:
        """Record the state of the process; returns the seconds since it last changed."""
        now, last = time.monotonic(), self._last
        self._last = now
        if signature != self._signature:
            self._signature, self._seconds = signature, 0.0
        else:
            self._seconds += min(now - last, MAX_PASS_SECONDS)
        return self._seconds


def _signature(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        stat = path.stat()
        return stat.st_mtime_ns, stat.st_size
    return None

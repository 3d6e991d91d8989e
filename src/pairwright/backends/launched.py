"""Jobs of other people's trainers: a command that runs here, in a process of its own, like a local job."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pairwright.backends import process
from pairwright.backends.backend import Say, WaitLimits
from pairwright.backends.job import FINAL, Job, JobState, Status, changed, write_job
from pairwright.backends.local import PROCESS, process_logs
from pairwright.config import Config

Progress = Callable[[Path, Job], Status]  # what the trainer's own files tell, as a running job


def launch(folder: Path, job: Job, command: Sequence[str], *, directory: Path | None, say: Say) -> Job:
    pid = process.start(folder / PROCESS, command, directory=directory)
    say(f"process {pid} runs {' '.join(command)}; its log is {folder / PROCESS / process.LOG}")
    return write_job(folder, changed(job, state=JobState.RUNNING, details={**job.details, "pid": pid}))


def launched_status(folder: Path, job: Job, progress: Progress, result: Path) -> Status:
    """Where a command is. One that ended well without its result is a failure."""
    if job.state in FINAL or job.state is JobState.PREPARED:
        return Status(state=job.state, message=job.error or "")
    code = process.exit_code(folder / PROCESS)
    seen = progress(folder, job)
    if code is None:
        return seen
    if job.state is JobState.CANCELLING:
        return _with(seen, JobState.CANCELLED, "cancelled")
    if code == 0 and result.exists():
        return _with(seen, JobState.COMPLETED, "")
    if code == 0:
        return _with(seen, JobState.FAILED, f"it ended well, but {result} is not there")
    how = "was killed, or the machine went down" if code == process.KILLED else f"ended with exit code {code}"
    lines = [line for line in process.last_lines(folder / PROCESS / process.LOG, 20) if line.strip()]
    return _with(seen, JobState.FAILED, f"its process {how}" + (f": {lines[-1]}" if lines else ""))


def launched_cancel(folder: Path, job: Job, config: Config) -> Job:
    if job.state in FINAL or not process.is_alive(folder / PROCESS):
        return job
    job = write_job(folder, changed(job, state=JobState.CANCELLING))
    process.stop(folder / PROCESS, job.details["pid"], grace_seconds=config.backend.local.cancel_grace_seconds)
    return job


def launched_logs(folder: Path, job: Job, config: Config, follow: bool) -> Iterator[str]:
    return process_logs(folder, follow)


def launched_limits(config: Config) -> WaitLimits:
    settings = config.backend.local
    return WaitLimits(
        poll_interval_seconds=settings.poll_interval_seconds, timeout_seconds=settings.training_timeout_seconds,
        max_failures=5,
    )  # fmt: skip


def _with(seen: Status, state: JobState, message: str) -> Status:
    return Status(
        state=state, message=message, percentage=100.0 if state is JobState.COMPLETED else seen.percentage,
        step=seen.step, num_steps=seen.num_steps, epoch=seen.epoch, train_loss=seen.train_loss,
        validation_loss=seen.validation_loss,
    )  # fmt: skip

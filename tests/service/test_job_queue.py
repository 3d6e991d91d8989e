"""The job queue with real workers that do nothing: how many run at a time, and when it gives a job up."""

import signal
import sys
import time

import pytest
import sqlalchemy as sa

from pairwright.jobs import process
from pairwright.service.context import Context
from pairwright.service.rows.blob_store import Blobs
from pairwright.service.rows.database import Database
from pairwright.service.rows.job_rows import JobState
from pairwright.service.rows.schema import jobs as rows
from pairwright.service.run.queue import MAX_IDLE_STARTS, JobQueue
from pairwright.service.settings import Settings

pytestmark = pytest.mark.stress

SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


@pytest.fixture
def opened(tmp_path):
    """Make a queue with jobs; its workers are ended with the test."""
    contexts = []

    def open_queue(command, *, num_jobs, max_running):
        settings = Settings(data=tmp_path / "data", max_running=max_running, worker_command=command, stop_seconds=1)
        context = Context(settings, Database(f"sqlite:///{tmp_path / 'state.sqlite3'}"), Blobs(settings.data))
        contexts.append(context)
        work = {"files": [], "seed": 0, "train": {}, "model": "m"}
        with context.database.writing() as connection:
            for number in range(num_jobs):
                moment = f"2026-01-01T00:00:0{number}.000000Z"
                document = {"id": f"job-{number}", "work": work}
                connection.execute(
                    sa.insert(rows).values(
                        id=f"job-{number}", namespace="default", name=f"job-{number}", output_model=f"model-{number}",
                        state=JobState.CREATED.value, created_at=moment, updated_at=moment, starts=0, idle_starts=0, step=0,
                        seconds=0.0, request_hash=str(number), attempt=0, document=document, progress={}, log=[],
                    )
                )  # fmt: skip
        return JobQueue(context)

    yield open_queue
    for context in contexts:
        JobQueue(context).stop()
        context.database.close()


def states(queue):
    with queue._context.database.reading() as connection:
        found = connection.execute(sa.select(rows).order_by(rows.c.number)).mappings().all()
    return [row["state"] for row in found], found


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_so_many_jobs_run_at_a_time_and_the_next_starts_when_one_has_ended(opened):
    queue = opened(SLEEP, num_jobs=4, max_running=2)
    for _ in range(3):
        queue.tick()
        assert states(queue)[0] == ["running", "running", "pending", "pending"]
    first = states(queue)[1][0]
    worker = queue._process(first)
    process.send(worker, signal.SIGKILL)
    until(lambda: not process.is_alive(worker))
    queue.tick()
    assert states(queue)[0] == ["failed", "running", "running", "pending"]


def test_no_job_runs_where_none_may(opened):
    queue = opened(SLEEP, num_jobs=2, max_running=0)
    queue.tick()
    assert states(queue)[0] == ["pending", "pending"]


def test_a_job_that_is_interrupted_without_a_step_forward_is_given_up(opened):
    queue = opened(SLEEP, num_jobs=1, max_running=1)
    for start in range(1, MAX_IDLE_STARTS + 2):
        queue.tick()
        (state,), (row,) = states(queue)
        assert (state, row["starts"]) == ("running", start)
        worker = queue._process(row)
        process.send(worker, signal.SIGKILL)
        until(lambda worker=worker: not process.is_alive(worker))
        queue.recover()  # as after a start of the service: the job was interrupted
        (state,), (row,) = states(queue)
        assert state == ("pending" if start <= MAX_IDLE_STARTS else "failed")
    assert f"after {MAX_IDLE_STARTS + 1} attempts" in row["log"][-1]["message"]
    queue.tick()
    assert states(queue)[0] == ["failed"]

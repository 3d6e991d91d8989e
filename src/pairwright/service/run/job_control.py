"""Find, cancel, pause, resume and delete jobs on request, with checks of the caller's rights."""

import shutil
from typing import Annotated

import sqlalchemy as sa
from fastapi import Depends
from sqlalchemy.engine import Connection, RowMapping

from pairwright.jobs.job import FINAL, JobState
from pairwright.service.access import CallerIs
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context, ContextIs
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_name
from pairwright.service.rows.schema import jobs as rows
from pairwright.service.run.job_results import delete_result_file
from pairwright.service.run.model_names import refuse_deployed
from pairwright.service.run.usage import free_blobs


def find_job(connection: Connection, job_id: str, caller: Caller, *, write: bool = False) -> RowMapping:
    """Return the row of a job. Raises a refusal if there is none (404), or the caller has no access (403)."""
    row = jobs.get(connection, check_name(job_id, "job_id"))
    caller.check(row["namespace"], write=write)
    return row


def _readable_job(job_id: str, caller: CallerIs, context: ContextIs) -> RowMapping:
    with context.database.reading() as connection:
        return find_job(connection, job_id, caller)


# Path parameter `job_id`: the row of a job that the caller may read.
JobIs = Annotated[RowMapping, Depends(_readable_job)]


def end_job(context: Context, job_id: str, caller: Caller, *, is_paused: bool) -> RowMapping:
    verb = "paused" if is_paused else "cancelled"
    with context.database.writing() as connection:
        row = find_job(connection, job_id, caller, write=True)
        if row["state"] in (JobState.FAILED, JobState.COMPLETED):
            raise Refusal(409, "job_ended", f"job {job_id} is {row['state']}: there is nothing to cancel")
        # Pausing a job that is being cancelled changes nothing.
        if not is_paused or row["state"] in (*jobs.WAITING, JobState.RUNNING):
            jobs.set_document(connection, job_id, is_paused=is_paused)
        if row["state"] in jobs.WAITING:
            jobs.move(connection, job_id, JobState.CANCELLED, f"{verb} by {caller.name}")
        elif row["state"] == JobState.RUNNING:
            jobs.move(connection, job_id, JobState.CANCELLING, f"to be {verb}, asked for by {caller.name}")
        row = jobs.get(connection, job_id)
    context.wake.set()
    return row


def reopen_job(context: Context, job_id: str, caller: Caller) -> RowMapping:
    """Put a job back into the queue, and return its row. Raises a 409 refusal unless it failed or was cancelled."""
    with context.database.writing_one_at_a_time("jobs") as connection:
        row = find_job(connection, job_id, caller, write=True)
        if row["state"] not in jobs.REOPENED:
            raise Refusal(
                409,
                "job_not_resumable",
                f"job {job_id} is {row['state']}: only a job that failed, or was paused or cancelled, can be resumed",
            )
        files = row["document"]["work"]["files"]
        missing = [file["path"] for file in files if not context.blobs.path(file["sha256"]).is_file()]
        has_data = (context.settings.job_folder(job_id) / "data").is_dir()
        if missing and not has_data:
            raise Refusal(409, "dataset_gone", f"job {job_id}: {missing[0]} was deleted: submit it again")
        jobs.refuse_taken_model(connection, row["output_model"])
        jobs.set_document(connection, job_id, is_paused=False)
        # The only transition out of a final state; the job resumes from its checkpoints.
        message = f"resumed by {caller.name}"
        jobs.move(connection, job_id, JobState.PENDING, message, before=jobs.REOPENED, idle_starts=0)
        row = jobs.get(connection, job_id)
    context.wake.set()
    return row


def remove_job(context: Context, job_id: str, caller: Caller) -> None:
    """Delete a job that has ended, with its files and its model. Raises a 409 refusal if it is active or deployed."""
    with context.database.writing_one_at_a_time("deployments") as connection:
        row = find_job(connection, job_id, caller, write=True)
        if row["state"] not in FINAL:
            raise Refusal(409, "job_active", f"job {job_id} is {row['state']}: cancel it first")
        refuse_deployed(connection, row["output_model"])
        blobs = delete_result_file(connection, row)
        connection.execute(sa.delete(rows).where(rows.c.id == job_id))
    # Removed after the row: leftovers of a crash are removed at the next start.
    shutil.rmtree(context.settings.job_folder(job_id), ignore_errors=True)
    free_blobs(context, blobs | {file["sha256"] for file in row["document"]["work"]["files"]})

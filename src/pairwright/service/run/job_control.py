"""What becomes of a job by request (cancelled, paused, resumed, deleted), and its result file."""

import csv
import io
import shutil
from pathlib import Path

import msgspec
from sqlalchemy.engine import Connection, RowMapping

from pairwright.jobs.job import FINAL, JobState
from pairwright.service.api_errors import Refusal
from pairwright.service.rows import entities
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.run.model_names import refuse_deployed
from pairwright.service.run.usage import free_blobs
from pairwright.service.settings import Context

# The result file of a job that came through OpenAI's API: `step_metrics.csv`, a row for each step.


PURPOSE = "fine-tune-results"
FILE_NAME = "step_metrics.csv"
# OpenAI's columns first, whether or not there are values; then our other curves.
_COLUMNS = ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")


def add_result_file(context: Context, row: RowMapping, run_folder: Path) -> None:
    """Store the curves of a job as a file, once; its id is made of the job's."""
    document = msgspec.json.decode(row["document"])
    if "openai" not in document:
        return
    content = format_metrics(run_folder)
    name = file_id(row["id"])
    with context.blobs.hold() as held:
        blob = context.blobs.add([content], len(content), held)
        file = {"filename": FILE_NAME, "bytes": blob.size, "purpose": PURPOSE, "sha256": blob.sha256}
        with context.database.writing() as connection:
            # It is there if the service was killed between this and the end of the job.
            if entities.find(connection, entities.FILE, row["namespace"], name) is None:
                file |= {"namespace": row["namespace"], "name": name}
                entities.insert(connection, entities.FILE, row["namespace"], name, file)
            jobs.set_document(connection, row["id"], openai={**document["openai"], "result_files": [name]})


def delete_result_file(connection: Connection, row: RowMapping) -> set[str]:
    """Delete the row of a job's result file; returns its blob, if there is one."""
    document = entities.find(connection, entities.FILE, row["namespace"], file_id(row["id"]))
    if document is None:
        return set()
    entities.delete(connection, entities.FILE, row["namespace"], document["name"])
    return {document["sha256"]}


def file_id(job_id: str) -> str:
    return f"file-{job_id.partition('-')[2]}"


def format_metrics(run_folder: Path) -> bytes:
    """The curves of a run as CSV."""
    steps: dict[int, dict[str, float]] = {}
    for name, points in jobs.read_metrics(run_folder, max_points=2**31).items():
        column = f"valid_{name.removeprefix('val_')}" if name.startswith("val_") else name
        for point in points:
            steps.setdefault(point["step"], {"step": point["step"]})[column] = point["value"]
    others = sorted({name for values in steps.values() for name in values} - set(_COLUMNS))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_COLUMNS, *others], lineterminator="\n")
    writer.writeheader()
    writer.writerows(steps[step] for step in sorted(steps))
    return text.getvalue().encode()


def end_job(context: Context, job_id: str, caller: Caller, *, is_paused: bool) -> RowMapping:
    """Cancel or pause a job, and return its row."""
    verb = "paused" if is_paused else "cancelled"
    with context.database.writing() as connection:
        # Read again inside the transaction: the job may have moved on since the check.
        row = jobs.get(connection, job_id)
        is_active = row["state"] in (*jobs.WAITING, JobState.RUNNING)
        if is_active:
            jobs.set_document(connection, job_id, is_paused=is_paused)
        if row["state"] in jobs.WAITING:
            jobs.move(connection, job_id, JobState.CANCELLED, f"{verb} by {caller.name}")
        elif row["state"] == JobState.RUNNING:
            jobs.move(connection, job_id, JobState.CANCELLING, f"to be {verb}, asked for by {caller.name}")
        elif row["state"] not in (JobState.CANCELLING, JobState.CANCELLED):
            raise Refusal(409, "job_ended", f"job {job_id} is {row['state']}: there is nothing to cancel")
        elif not is_paused:
            jobs.set_document(connection, job_id, is_paused=False)
        row = jobs.get(connection, job_id)
    context.wake.set()
    return row


def reopen_job(context: Context, job_id: str, caller: Caller) -> RowMapping:
    """Put a job back into the queue, and return its row. Raises a 409 refusal unless it failed or was cancelled."""
    with context.database.writing_one_at_a_time("jobs") as connection:
        row = jobs.get(connection, job_id)
        if row["state"] not in jobs.REOPENED:
            raise Refusal(
                409,
                "job_not_resumable",
                f"job {job_id} is {row['state']}: only a job that failed, or was paused or cancelled, can be resumed",
            )
        missing = [
            file["path"] for file in jobs.work_of(row)["files"] if not context.blobs.path(file["sha256"]).is_file()
        ]
        has_data = (context.settings.job_folder(job_id) / "data").is_dir()
        if missing and not has_data:
            raise Refusal(409, "dataset_gone", f"job {job_id}: {missing[0]} was deleted: submit it again")
        jobs.refuse_taken_model(connection, row["output_model"])
        jobs.set_document(connection, job_id, is_paused=False)
        jobs.reopen(connection, job_id, f"resumed by {caller.name}")
        row = jobs.get(connection, job_id)
    context.wake.set()
    return row


def remove_job(context: Context, job_id: str) -> None:
    """Delete a job that has ended, with its files and its model. Raises a 409 refusal if it is active or deployed."""
    with context.database.writing_one_at_a_time("deployments") as connection:
        row = jobs.get(connection, job_id)
        if row["state"] not in FINAL:
            raise Refusal(409, "job_active", f"job {job_id} is {row['state']}: cancel it first")
        refuse_deployed(connection, row["output_model"])
        blobs = delete_result_file(connection, row)
        jobs.delete(connection, job_id)
    # After the row: what a crash leaves here is removed at the next start.
    shutil.rmtree(context.settings.job_folder(job_id), ignore_errors=True)
    free_blobs(context, blobs | {file["sha256"] for file in jobs.work_of(row)["files"]})

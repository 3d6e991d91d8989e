"""Routes of OpenAI's fine-tuning API: `/v1/fine_tuning/jobs`.

Jobs created here are ordinary jobs: `method` is the training type, the file the dataset, and the routes of NeMo
Customizer show them too. The base model is trained with LoRA. `auto` means the defaults below.
"""

import contextlib
from pathlib import Path
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from pydantic import Field
from sqlalchemy.engine import RowMapping

from pairwright.jobs.job import FINAL, JobState
from pairwright.ledger.run_status import read_status
from pairwright.service.access import CallerIs
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context, ContextIs, Document
from pairwright.service.openai_api.file_routes import find_file, home_namespace, list_page, unix_time
from pairwright.service.request_models import Body, Count, DatasetReference, Dpo, Hyperparameters, JobBody, Json, Number
from pairwright.service.rows import job_progress
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import CHECKPOINT, check_name, new_id
from pairwright.service.rows.schema import jobs as rows
from pairwright.service.run.base_models import find_target
from pairwright.service.run.job_control import JobIs, end_job, reopen_job
from pairwright.service.run.submitting import IdentityOf, Source, check_source, find_repeat, insert_once

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["OpenAI fine-tuning"])
# Values of `auto`. Multiplier 1 is the LoRA learning rate of the method.
EPOCHS, BATCH_SIZE, BETA = 3, 8, 0.1
LEARNING_RATES = {"supervised": 1e-4, "dpo": 5e-5}
TRAINING_TYPES: dict[str, Literal["sft", "dpo"]] = {"supervised": "sft", "dpo": "dpo"}
_STATUS = {
    JobState.CREATED: "queued",
    JobState.PENDING: "queued",
    JobState.RUNNING: "running",
    JobState.CANCELLING: "running",
    JobState.CANCELLED: "cancelled",
    JobState.FAILED: "failed",
    JobState.COMPLETED: "succeeded",
}
Auto = Literal["auto"]
Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=100)]


class MethodHyperparameters(Body):
    batch_size: Auto | Annotated[Count, Field(ge=1, le=100_000)] | None = None
    learning_rate_multiplier: Auto | Annotated[Number, Field(gt=0)] | None = None
    n_epochs: Auto | Annotated[Count, Field(ge=1, le=100_000)] | None = None
    beta: Auto | Annotated[Number, Field(gt=0)] | None = None


class MethodOptions(Body):
    hyperparameters: MethodHyperparameters | None = None


class Method(Body):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: MethodOptions | None = None
    dpo: MethodOptions | None = None
    # Parsed, so that the refusal can name the method.
    reinforcement: Json | None = None


class FineTuningBody(Body):
    model: Annotated[str, Field(max_length=300)]
    training_file: Annotated[str, Field(max_length=200)]
    validation_file: Annotated[str, Field(max_length=200)] | None = None
    method: Method | None = None
    # From the first version of the API, for supervised jobs.
    hyperparameters: MethodHyperparameters | None = None
    suffix: Annotated[str, Field(max_length=64)] | None = None
    seed: Annotated[Count, Field(ge=0, lt=2**53)] | None = None
    integrations: list[Json] | None = Field(default=None, max_length=100)
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=16
    )


@router.post("")
def create_job(
    body: FineTuningBody, request: Request, caller: CallerIs, context: ContextIs, identity_of: IdentityOf
) -> Document:
    """Fine-tune a base model on an uploaded file."""
    identity = identity_of(body)
    # A client that retries gets the job that its first request created.
    repeated = find_repeat(context, caller, identity)
    if repeated is not None:
        return job_document(repeated, context)
    method, knobs = _method(body)
    namespace = home_namespace(caller, request)
    job_id = new_id("ftjob")
    with context.database.reading() as connection:
        target = find_target(connection, body.model)
        source = _source(connection, body, caller)
    # The job id is the version, so jobs with the same suffix are versions of one model.
    suffix = check_name(body.suffix, "suffix") if body.suffix else "ft"
    job_body = JobBody(
        config=body.model,
        dataset=DatasetReference(name=body.training_file, namespace=namespace),
        namespace=namespace,
        output_model=f"{namespace}/{target['base_model'].rpartition('/')[2]}-{suffix}@{job_id}",
        hyperparameters=Hyperparameters(
            training_type=TRAINING_TYPES[method],
            finetuning_type="lora",
            epochs=knobs["n_epochs"],
            batch_size=knobs["batch_size"],
            learning_rate=LEARNING_RATES[method] * knobs["learning_rate_multiplier"],
            seed=body.seed or 0,
            dpo=Dpo(ref_policy_kl_penalty=knobs["beta"]) if method == "dpo" else None,
        ),
        integrations=body.integrations or [],
    )
    # Checked now, so that an invalid line is refused instead of failing the job.
    check_source(source, TRAINING_TYPES[method], context)
    openai = {
        "method": {"type": method, method: {"hyperparameters": knobs}},
        "hyperparameters": knobs,
        "validation_file": body.validation_file,
        "metadata": body.metadata,
    }
    row = insert_once(context, job_body, caller, identity, source=source, identity=job_id, more={"openai": openai})
    return job_document(row, context)


@router.get("")
def list_jobs(
    request: Request, caller: CallerIs, context: ContextIs, after: After = None, limit: Limit = 20
) -> Document:
    """Jobs that the caller may read, newest first; `metadata[KEY]=VALUE` selects."""
    wanted = {
        key[len("metadata[") : -1]: value
        for key, value in request.query_params.multi_items()
        if key.startswith("metadata[") and key.endswith("]")
    }
    where = [] if caller.namespaces is None else [rows.c.namespace.in_(caller.namespaces)]
    chosen = sa.select(rows).where(*where).order_by(rows.c.number.desc())
    documents: list[Document] = []
    with context.database.reading() as connection:
        if after is not None:
            number = connection.scalar(sa.select(rows.c.number).where(rows.c.id == check_name(after, "after")))
            chosen = chosen.where(rows.c.number < (number or 0))
        # One extra row shows whether there is a next page. Metadata is in the documents: a filter may read all rows.
        for row in connection.execute(chosen.limit(None if wanted else limit + 1)).mappings():
            document = job_document(row, context)
            if wanted.items() <= (document["metadata"] or {}).items():
                documents.append(document)
            if len(documents) > limit:
                break
    return list_page(documents, after=None, limit=limit)


@router.get("/{job_id}")
def read_job(row: JobIs, context: ContextIs) -> Document:
    """One job."""
    return job_document(row, context)


@router.post("/{job_id}/cancel")
def cancel_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Cancel a job."""
    return job_document(end_job(context, job_id, caller, is_paused=False), context)


@router.post("/{job_id}/pause")
def pause_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Stop a job at its last checkpoint."""
    return job_document(end_job(context, job_id, caller, is_paused=True), context)


@router.post("/{job_id}/resume")
def resume_job(job_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Resume a job that was paused or failed."""
    return job_document(reopen_job(context, job_id, caller), context)


@router.get("/{job_id}/events")
def list_events(row: JobIs, context: ContextIs, after: After = None, limit: Limit = 20) -> Document:
    """Events and metrics of a job, newest first."""
    return list_page(_events(row, context), after=after, limit=limit)


@router.get("/{job_id}/checkpoints")
def list_checkpoints(row: JobIs, context: ContextIs, after: After = None, limit: Limit = 10) -> Document:
    """The existing checkpoints of a job, newest first; only the final model can be used."""
    return list_page(_checkpoints(row, context), after=after, limit=limit)


def job_document(row: RowMapping, context: Context) -> Document:
    document = row["document"]
    knobs = document["hyperparameters"]
    method = "dpo" if knobs["training_type"] == "dpo" else "supervised"
    # A job created through NeMo Customizer's routes has no `openai`.
    plain = {"n_epochs": knobs["epochs"], "batch_size": knobs["batch_size"]}
    openai = document.get("openai") or {
        "method": {"type": method, method: {"hyperparameters": plain}},
        "hyperparameters": plain,
        "validation_file": None,
        "metadata": None,
    }
    state = JobState(row["state"])
    is_paused = state is JobState.CANCELLED and document.get("is_paused")
    is_done = state is JobState.COMPLETED
    tokens = read_status(context.settings.run_folder(row["id"]), strict=False) if is_done else None
    last = jobs.status_details(row)["status_logs"][-1]
    return {
        "id": row["id"],
        "object": "fine_tuning.job",
        "model": document["config"]
        if isinstance(document["config"], str)
        else document["config_snapshot"]["base_model"],
        "created_at": unix_time(row["created_at"]),
        "finished_at": unix_time(row["updated_at"]) if state in FINAL and not is_paused else None,
        "fine_tuned_model": row["output_model"] or None if is_done else None,
        "organization_id": row["namespace"],
        "status": "paused" if is_paused else _STATUS[state],
        "hyperparameters": openai["hyperparameters"],
        "method": openai["method"],
        "training_file": document["dataset"]["name"],
        "validation_file": openai["validation_file"],
        "result_files": openai.get("result_files", []),
        "trained_tokens": sum(tokens.trained_tokens.values()) if tokens is not None else None,
        "error": {"code": "job_failed", "message": last["message"], "param": None}
        if state is JobState.FAILED
        else None,
        "seed": knobs["seed"],
        "integrations": [],
        "estimated_finish": None,
        "metadata": openai["metadata"],
    }


def _method(body: FineTuningBody) -> tuple[str, Document]:
    """Return the method of a request, and its hyperparameters with every `auto` replaced."""
    method = body.method.type if body.method is not None else "supervised"
    if method not in TRAINING_TYPES:
        message = f"method.type: got {method!r}, this service trains {' and '.join(TRAINING_TYPES)}"
        raise Refusal(422, "unsupported_method", message, details=[{"field": "method.type", "message": message}])
    options = getattr(body.method, method) if body.method is not None else None
    asked = (options.hyperparameters if options is not None else None) or body.hyperparameters
    values = {} if asked is None else asked.model_dump(exclude_none=True)
    if method != "dpo" and "beta" in values:
        raise Refusal(422, "unknown_hyperparameter", "method.supervised.hyperparameters.beta: it belongs to dpo")
    defaults = {"n_epochs": EPOCHS, "batch_size": BATCH_SIZE, "learning_rate_multiplier": 1.0}
    defaults |= {"beta": BETA} if method == "dpo" else {}
    return method, defaults | {key: value for key, value in values.items() if value != "auto"}


def _source(connection: sa.Connection, body: FineTuningBody, caller: Caller) -> Source:
    asked = {"train": body.training_file, "validation": body.validation_file}
    found = {split: find_file(connection, name, caller) for split, name in asked.items() if name is not None}
    for document in found.values():
        if document["purpose"] != "fine-tune":
            message = f"{document['name']}: its purpose is {document['purpose']!r}, expected 'fine-tune'"
            raise Refusal(422, "bad_purpose", message)
    files = [
        {"path": document["filename"], "split": split, "sha256": document["sha256"], "size": document["bytes"]}
        for split, document in found.items()
    ]
    name = body.training_file
    return Source({"name": name, "namespace": found["train"]["namespace"], "files_url": f"/v1/files/{name}"}, files)


def _checkpoints(row: RowMapping, context: Context) -> list[Document]:
    """Return the final model and the saved checkpoints that still exist, newest first."""
    folder = context.settings.run_folder(row["id"])
    metrics = _metrics_by_step(folder)

    def document(step: int, model: str, created_at: int) -> Document:
        return {
            "id": f"{row['id'].replace('ftjob-', 'ftckpt-', 1)}-{step}",
            "object": "fine_tuning.job.checkpoint",
            "created_at": created_at,
            "fine_tuned_model_checkpoint": model,
            "fine_tuning_job_id": row["id"],
            "step_number": step,
            "metrics": metrics.get(step, (None, {"step": step}))[1],
        }

    saved = {}
    for path in (folder / "checkpoints").glob("step-*"):
        number = path.name.partition("-")[2]
        if number.isdigit():
            with contextlib.suppress(OSError):  # deleted meanwhile
                model = f"{row['output_model']}{CHECKPOINT}{int(number)}"
                saved[int(number)] = document(int(number), model, int(path.stat().st_mtime))
    if row["state"] == JobState.COMPLETED and row["output_model"]:
        step = row["progress"].get("steps_completed", 0)
        saved[step] = document(step, row["output_model"], unix_time(row["updated_at"]))
    return [saved[step] for step in sorted(saved, reverse=True)]


def _metrics_by_step(folder: Path) -> dict[int, tuple[str | None, Document]]:
    steps: dict[int, tuple[str | None, Document]] = {}
    for name, points in job_progress.read_metrics(folder).items():
        for point in points:
            _, values = steps.setdefault(point["step"], (point["timestamp"], {"step": point["step"]}))
            values[{"val_loss": "valid_loss"}.get(name, name)] = point["value"]
    return steps


def _events(row: RowMapping, context: Context) -> list[Document]:
    events = []
    for number, entry in enumerate(jobs.status_details(row)["status_logs"]):
        is_error = row["state"] == JobState.FAILED and number == len(row["log"]) - 1
        events.append(_event(f"s{number}", unix_time(entry["updated_at"]), entry["message"], is_error=is_error))
    for step, (time, data) in _metrics_by_step(context.settings.run_folder(row["id"])).items():
        moment = unix_time(row["updated_at"]) if time is None else int(float(time))
        losses = [f"{name.replace('_', ' ')}={data[name]:.4g}" for name in ("train_loss", "valid_loss") if name in data]
        events.append(_event(f"m{step}", moment, f"Step {step}: {', '.join(losses)}", data=data))
    return sorted(events, key=lambda event: int(event["created_at"]), reverse=True)


def _event(
    name: str, created_at: int, message: str, *, data: Document | None = None, is_error: bool = False
) -> Document:
    return {
        "id": f"ftevent-{name}",
        "object": "fine_tuning.job.event",
        "created_at": created_at,
        "level": "error" if is_error else "info",
        "message": message,
        "type": "message" if data is None else "metrics",
        "data": data or {},
    }

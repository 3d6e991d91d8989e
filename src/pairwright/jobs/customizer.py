"""Backend for services with the NeMo Customizer API.

Submitting exports the pairs, creates namespace and dataset, uploads the files and creates the job. The job reference
is written before the job is created, and the job name is unique to the run. After a lost response or a crash the job is
found by name, so it is neither created twice nor lost.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pairwright.config import Config
from pairwright.config.backend_config import NemoCustomizerConfig
from pairwright.errors import ConfigError, PairwrightError
from pairwright.jobs import customizer_files as customizer_upload
from pairwright.jobs.customizer_api import CustomizerApi
from pairwright.jobs.customizer_files import deploy
from pairwright.jobs.job import (
    Backend,
    BackendError,
    Job,
    JobRequest,
    JobState,
    Say,
    ServiceError,
    Status,
    Unreachable,
    WaitLimits,
    change_job,
    find_interrupted,
    new_job,
    write_job,
)
from pairwright.jobs.translation import has_curriculum_order
from pairwright.paths import write_bytes
from pairwright.records.messages import Json

# The states of the service, as ours.
_STATES = {
    "created": JobState.PENDING,
    "pending": JobState.PENDING,
    "running": JobState.RUNNING,
    "cancelling": JobState.CANCELLING,
    "cancelled": JobState.CANCELLED,
    "failed": JobState.FAILED,
    "completed": JobState.COMPLETED,
    "ready": JobState.COMPLETED,
}
# the metrics of our trainer by the names of the service
_NAMES = {
    "train_loss": "loss",
    "val_loss": "eval_loss",
    "train_accuracy": "rewards/accuracies",
    "val_accuracy": "eval_rewards/accuracies",
}


def submit(folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    """Export and upload the pairs, then create the job. An interrupted submission is continued under the same name."""
    if request.pairs is None:
        raise ConfigError("the nemo-customizer backend trains on pairs: give --pairs DIR")
    if config.train.where is not None:
        raise ConfigError("train.where: nemo-customizer takes the pairs as they are: filter them with pairs.where")
    settings = config.backend.nemo_customizer
    has_curriculum_order(request.pairs, trainer="NeMo Customizer")
    with CustomizerApi(settings) as api:  # a missing address is said before anything is written
        job = find_interrupted(folder, "nemo-customizer") or new_job(
            "nemo-customizer", model=request.model, pairs=request.pairs
        )
        # The name is unique to this run, so a job that has it was created by an earlier attempt.
        if job.details and (existing := api.find_job(job.details["namespace"], job.id)) is not None:
            say(f"job {existing['id']} was created before, when submitting it was interrupted")
            return _write_details(folder, job, existing)
        # Written before anything is sent: after a crash, the name to look for is known.
        job = write_job(folder, change_job(job, details=_reference(api, settings, job.id, request)))
        files = Path(settings.dataset_output_dir) if settings.dataset_output_dir else folder / "exports" / "customizer"
        dataset = customizer_upload.export(request.pairs, files, settings, seed=config.seed)
        say(f"exported {dataset} to {files}")
        job = write_job(folder, change_job(job, details={**job.details, "files": dataset.as_json()}))
        if settings.create_namespace_if_missing:
            api.create_namespace(settings.namespace)
        revision = customizer_upload.upload(api, dataset, settings, message=f"{job.id}: {dataset.num_training} pairs")
        api.create_dataset(settings.namespace, settings.dataset_name)
        say(f"uploaded to {settings.namespace}/{settings.dataset_name} as revision {revision}")
        job = write_job(folder, change_job(job, details={**job.details, "revision": revision}))
        job = _create_job(api, folder, job, _body(job, settings, dataset_revision=revision, model=request.model))
        say(f"job {job.details['job_id']} makes {job.details['output_model'] or 'a model'}")
    return job


def status(folder: Path, job: Job, config: Config) -> Status:
    with CustomizerApi(_settings(job, config)) as api:
        job = _with_id(api, folder, job)
        answer = api.job_status(job.details["job_id"])
        state = _state(job.details["job_id"], answer)
        if not job.details.get("output_model") and state is JobState.COMPLETED:
            output = api.job(job.details["job_id"]).get("output_model")
            write_job(folder, change_job(job, details={**job.details, "output_model": output}))
    write_metrics(folder, answer)
    return _status(state, answer)


def service_status(job_id: str, settings: NemoCustomizerConfig) -> Status:
    """Return the status of a job that has no job file here, by its id on the service."""
    with CustomizerApi(settings) as api:
        answer = api.job_status(job_id)
    return _status(_state(job_id, answer), answer)


def _state(job_id: str, answer: Json) -> JobState:
    name = str(answer.get("status", "")).lower()
    if name not in _STATES:
        raise Unreachable(f"{job_id}: the service says its status is {answer.get('status')!r}")
    return _STATES[name]


def cancel(folder: Path, job: Job, config: Config) -> Job:
    with CustomizerApi(_settings(job, config)) as api:
        job = _with_id(api, folder, job)
        try:
            answer = api.cancel_job(job.details["job_id"])
        except ServiceError as error:
            if error.status != 409:  # 409: it had ended already
                raise
            answer = api.job(job.details["job_id"])
    state = _STATES.get(str(answer.get("status", "")).lower(), JobState.CANCELLING)
    # A late answer such as `running` does not take back that the job is being cancelled.
    return write_job(folder, change_job(job, state=state if state in _ENDING else JobState.CANCELLING))


def logs(folder: Path, job: Job, config: Config, follow: bool) -> Iterator[str]:
    """Yield the log lines of the service; with `follow`, until the job ends."""
    settings = _settings(job, config)
    num_seen = 0
    with CustomizerApi(settings) as api:
        job = _with_id(api, folder, job)
        while True:
            # The state is read before the log, so that the last lines of an ended job are not missed.
            state = _STATES.get(str(api.job_status(job.details["job_id"]).get("status", "")).lower())
            entries = api.job_logs(job.details["job_id"])
            lines = list(_lines(entries))
            yield from lines[num_seen:]
            num_seen = max(num_seen, len(lines))
            if not follow or state in (JobState.CANCELLED, JobState.FAILED, JobState.COMPLETED):
                return
            time.sleep(settings.poll_interval_seconds)


def wait_limits(config: Config) -> WaitLimits:
    settings = config.backend.nemo_customizer
    return WaitLimits(
        poll_interval_seconds=settings.poll_interval_seconds,
        timeout_seconds=settings.training_timeout_seconds,
        max_failures=settings.max_status_failures,
    )


_ENDING = (JobState.CANCELLING, JobState.CANCELLED, JobState.FAILED, JobState.COMPLETED)


def _reference(api: CustomizerApi, settings: NemoCustomizerConfig, name: str, request: JobRequest) -> Json:
    return {
        "entity_host": api.entity_host,
        "datastore_host": api.datastore_host,
        "namespace": settings.namespace,
        "dataset_name": settings.dataset_name,
        "job_name": name,
        "job_id": None,
        "output_model": None,
        "config": settings.customization_config or request.model,
    }


def _body(job: Job, settings: NemoCustomizerConfig, *, dataset_revision: str, model: str) -> Json:
    """Build the request body for creating a job."""
    repo = f"{settings.namespace}/{settings.dataset_name}"
    dataset: Json = {"name": settings.dataset_name, "namespace": settings.namespace}
    # The revision is a commit: later uploads to the same dataset do not change what this job reads.
    if settings.pin_revision:
        dataset["files_url"] = f"hf://datasets/{repo}@{dataset_revision}"
    return {
        "name": job.id,
        "namespace": settings.namespace,
        "description": f"{job.details['files']['num_training']} preference pairs by pairwright",
        "config": settings.customization_config or model,
        "dataset": dataset,
        "hyperparameters": settings.hyperparameters.options(),
        "custom_fields": {"pairwright_revision": dataset_revision},
    }


def _create_job(api: CustomizerApi, folder: Path, job: Job, body: Json) -> Job:
    """Create the job. If the response is lost, look the job up by name instead of sending the request again."""
    try:
        answer: Json | None = api.create_job(body)
    except Unreachable as error:
        answer = api.find_job(body["namespace"], job.id)
        if answer is None:
            raise Unreachable(
                f"{error}; no job named {job.id} was created. Try again with: pairwright jobs submit"
            ) from error
    assert answer is not None
    return _write_details(folder, job, answer)


def _with_id(api: CustomizerApi, folder: Path, job: Job) -> Job:
    """Return the job with its id, looked up by name if a crash came before the id was written."""
    if job.details.get("job_id"):
        return job
    answer = api.find_job(job.details["namespace"], job.details["job_name"])
    if answer is None:
        raise BackendError(
            f"{job.id}: was never created at {job.details['entity_host']}: submitting it was interrupted. "
            f"Submit it again with the same command"
        )
    return _write_details(folder, job, answer)


def _write_details(folder: Path, job: Job, answer: Json) -> Job:
    details = {**job.details, "job_id": answer["id"], "output_model": answer.get("output_model")}
    return write_job(folder, change_job(job, state=JobState.PENDING, details=details))


def _settings(job: Job, config: Config) -> NemoCustomizerConfig:
    """Settings for an existing job: hosts and names as of its submission, tokens from the current configuration."""
    names = ("entity_host", "datastore_host", "namespace", "dataset_name")
    return config.backend.nemo_customizer.model_copy(update={name: job.details[name] for name in names})


def _status(state: JobState, response: Json) -> Status:
    """Convert a status response of the service to a `Status`."""
    step, per_epoch = _integer(response, "steps_completed"), _integer(response, "steps_per_epoch")
    percentage = _number(response, "percentage_done")
    done = None
    if step and percentage:
        # The service does not say how many steps there are: estimated from the share that is done.
        done = round(step * 100 / percentage)
    messages = [log.get("message") for log in response.get("status_logs") or [] if isinstance(log, dict)]
    details = [
        log.get("detail") for log in response.get("status_logs") or [] if isinstance(log, dict) and log.get("detail")
    ]
    words = str(messages[-1]) if messages and messages[-1] else ""
    if state is JobState.FAILED and details:
        words = f"{words}: {details[-1]}" if words else str(details[-1])
    return Status(
        state=state,
        percentage=percentage,
        step=step,
        num_steps=done,
        message=words,
        epoch=step / per_epoch if step is not None and per_epoch else _number(response, "epochs_completed"),
        train_loss=_number(response, "train_loss"),
        validation_loss=_number(response, "val_loss"),
    )


def _lines(value: Any) -> Iterator[str]:
    """Yield the lines of container logs, which may be strings, lists, or dicts nested by pod and container."""
    if isinstance(value, str):
        yield from value.splitlines()
    elif isinstance(value, list):
        for item in value:
            yield from _lines(item)
    elif isinstance(value, dict):
        # Known envelopes around log lines; without one, every nested list and map is searched.
        entries = next((value[key] for key in ("entries", "logs", "data", "message") if value.get(key)), None)
        for item in (
            [entries] if entries is not None else [item for item in value.values() if isinstance(item, dict | list)]
        ):
            yield from _lines(list(item.values()) if isinstance(item, dict) else item)


def _number(response: Json, key: str) -> float | None:
    value: Any = response.get(key)
    # bool is a subclass of int.
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(response: Json, key: str) -> int | None:
    value = _number(response, key)
    return None if value is None else int(value)


def metric_rows(details: Json) -> list[Json]:
    """Convert the metrics of a status response to one row per step, training before validation.

    >>> metric_rows({"metrics": {"metrics": {"train_loss": [{"step": 1, "value": 0.7}]}}})
    [{'step': 1, 'loss': 0.7}]
    """
    outer = details.get("metrics")
    series = outer.get("metrics") if isinstance(outer, dict) else None
    # By (step, is validation), which is also the order of the rows.
    rows: dict[tuple[int, bool], Json] = {}
    for name, points in (series or {}).items() if isinstance(series, dict) else ():
        own = _NAMES.get(str(name), str(name))
        for point in points if isinstance(points, list) else ():
            if isinstance(point, dict) and isinstance(point.get("step"), int) and point.get("value") is not None:
                key = (point["step"], own.startswith("eval_") or str(name).startswith("val_"))
                rows.setdefault(key, {"step": point["step"]})[own] = point["value"]
    return [rows[key] for key in sorted(rows)]


def write_metrics(folder: Path, details: Json) -> None:
    """Replace metrics.jsonl of the run by the metrics of a status response; does nothing if it has none."""
    rows = metric_rows(details)
    if rows:
        content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        write_bytes(folder / "metrics.jsonl", content, error=PairwrightError)


NEMO_CUSTOMIZER = Backend(
    name="nemo-customizer",
    submit=submit,
    status=status,
    cancel=cancel,
    deploy=deploy,
    logs=logs,
    wait_limits=wait_limits,
)

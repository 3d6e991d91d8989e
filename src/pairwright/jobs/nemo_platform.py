"""Backend for NeMo Platform, the open successor of NeMo Customizer: DPO jobs of its `rl` backend.

Submitting writes training.jsonl and validation.jsonl, makes a fileset of this run alone, uploads both and creates the
job. Filesets have no revisions: a run's own name is what keeps its data as it was. The platform names its jobs itself;
ours is found again by the name of the model that it makes, which is unique to the run.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pairwright.config import Config
from pairwright.config.backend_config import NemoPlatformConfig
from pairwright.errors import ConfigError
from pairwright.jobs.customizer_api import ServiceClient, require_field
from pairwright.jobs.dataset import Dataset, write_dataset
from pairwright.jobs.job import (
    FINAL,
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
from pairwright.records.messages import Json

# The states of the platform, as ours. A paused job may go on.
_STATES = {
    "created": JobState.PENDING,
    "pending": JobState.PENDING,
    "active": JobState.RUNNING,
    "resuming": JobState.RUNNING,
    "pausing": JobState.RUNNING,
    "paused": JobState.RUNNING,
    "cancelling": JobState.CANCELLING,
    "cancelled": JobState.CANCELLED,
    "error": JobState.FAILED,
    "completed": JobState.COMPLETED,
}
_TRAINING_STEP = "dpo-training"
_FILES = ("training.jsonl", "validation.jsonl")
# An upload may take this many times as long as another request.
_UPLOAD_FACTOR = 10
_LOG_LINES = 1000


class PlatformApi(ServiceClient):
    """Client for the files, customization and jobs services of a platform."""

    def __init__(self, config: NemoPlatformConfig) -> None:
        if config.base_url is None:
            raise ConfigError("backend.nemo_platform.base_url: not set; give the address of the platform")
        token = config.api_token.get_secret_value() if config.api_token else None
        super().__init__(
            config.base_url,
            {config.base_url: token},
            token_keys="backend.nemo_platform.api_token, and that it may use the workspace",
            timeout_seconds=config.request_timeout_seconds,
        )
        space = quote(config.workspace, safe="")
        self._upload_seconds = _UPLOAD_FACTOR * config.request_timeout_seconds
        self._files = f"/apis/files/v2/workspaces/{space}/filesets"
        self._rl_jobs = f"/apis/customization/v2/workspaces/{space}/rl/jobs"
        self._jobs = f"/apis/jobs/v2/workspaces/{space}/jobs"

    def __enter__(self) -> "PlatformApi":
        return self

    def training_backends(self) -> list[str]:
        """Names of what trains on the platform; DPO jobs are those of `rl`."""
        answer = self._got("/apis/customization/v2/healthz").get("contributors")
        return [str(name) for name in answer] if isinstance(answer, list) else []

    def create_fileset(self, name: str, description: str) -> bool:
        """Create a fileset. Returns False if it existed."""
        body = {"name": name, "description": description, "purpose": "dataset"}
        return self._created("POST", self.host, self._files, json=body, there=(409,))

    def upload(self, fileset: str, path: Path) -> None:
        """Put a file into a fileset under its own name; repeating it replaces the same bytes."""
        place, size = f"{self._files}/{quote(fileset, safe='')}/-/{quote(path.name, safe='')}", path.stat().st_size
        headers = {"content-type": "application/octet-stream", "content-length": str(size)}
        # Sent again from its start if a try fails: the same bytes under the same name.
        with path.open("rb") as file:
            try:
                answer = self._sent("PUT", place, content=file, headers=headers, timeout=self._upload_seconds)
            except Unreachable:
                file.seek(0)
                answer = self._sent("PUT", place, content=file, headers=headers, timeout=self._upload_seconds)
        if answer.get("size") != size:
            raise BackendError(f"PUT {self.host}{place}: the platform has {answer.get('size')!r} of {size} bytes")

    def create_job(self, body: Json) -> Json:
        return require_field(self._sent("POST", self._rl_jobs, json=body), "name", "a job")

    def find_job(self, output: str) -> Json | None:
        """Find a job by the model that it makes; None if there is none."""
        for row in self._rows(self._rl_jobs):
            spec = row.get("spec")
            output_spec = spec.get("output") if isinstance(spec, dict) else None
            if isinstance(output_spec, dict) and output_spec.get("name") == output:
                return row
        return None

    def job_status(self, name: str) -> Json:
        return self._got(f"{self._jobs}/{quote(name, safe='')}/status")

    def cancel_job(self, name: str) -> Json:
        return self._sent("POST", f"{self._jobs}/{quote(name, safe='')}/cancel")

    def job_logs(self, name: str, cursor: str | None) -> Json:
        """A page of the log, from a cursor of the page before."""
        params = {"limit": _LOG_LINES} | ({"page_cursor": cursor} if cursor else {})
        return self._got(f"{self._jobs}/{quote(name, safe='')}/logs", params=params)


def submit(folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    """Write and upload the data, then create the job. An interrupted submission is continued under the same names."""
    if request.pairs is None:
        raise ConfigError("the nemo-platform backend trains on pairs: give --pairs DIR")
    if config.train.where is not None:
        raise ConfigError("train.where: nemo-platform takes the pairs as they are: filter them with pairs.where")
    settings = config.backend.nemo_platform
    has_curriculum_order(request.pairs, trainer="NeMo Platform")
    with PlatformApi(settings) as api:  # a missing address is said before anything is written
        job = find_interrupted(folder, "nemo-platform") or new_job(
            "nemo-platform", model=request.model, pairs=request.pairs
        )
        if job.details and (existing := api.find_job(job.details["output_model"])) is not None:
            say(f"job {existing['name']} was created before, when submitting it was interrupted")
            return _write_name(folder, job, existing)
        # Written before anything is sent: after a crash, the names to look for are known.
        job = write_job(folder, change_job(job, details=_reference(settings, job.id, request.model)))
        dataset = _write_data(request.pairs, folder / "exports" / "nemo-platform", settings, seed=config.seed)
        say(f"exported {dataset} to {dataset.training.parent}")
        job = write_job(folder, change_job(job, details={**job.details, "files": dataset.as_json()}))
        api.create_fileset(job.details["fileset"], f"{dataset.num_training} preference pairs by pairwright, {job.id}")
        for name in _FILES:
            api.upload(job.details["fileset"], dataset.training.with_name(name))
        say(f"uploaded to the fileset {settings.workspace}/{job.details['fileset']}")
        job = _create_job(api, folder, job, _body(job, settings, seed=config.seed))
        say(f"job {job.details['job_name']} makes {settings.workspace}/{job.details['output_model']}")
    return job


def status(folder: Path, job: Job, config: Config) -> Status:
    with PlatformApi(_settings(job, config)) as api:
        job = _with_name(api, folder, job)
        return _status(job.details["job_name"], api.job_status(job.details["job_name"]))


def cancel(folder: Path, job: Job, config: Config) -> Job:
    with PlatformApi(_settings(job, config)) as api:
        job = _with_name(api, folder, job)
        try:
            answer = api.cancel_job(job.details["job_name"])
        except ServiceError as error:
            if error.status != 409:  # 409: it had ended already
                raise
            answer = api.job_status(job.details["job_name"])
    state = _STATES.get(str(answer.get("status", "")).lower(), JobState.CANCELLING)
    # A late answer such as `active` does not take back that the job is being cancelled.
    return write_job(folder, change_job(job, state=state if state in FINAL else JobState.CANCELLING))


def deploy(folder: Path, job: Job, config: Config, say: Say) -> Json:
    place = f"{job.details['workspace']}/{job.details['output_model']}"
    raise BackendError(
        f"{place}: the platform keeps the model; deploy it there (nemo inference deployments create), since its "
        f"engines and GPUs are the platform's to choose"
    )


def logs(folder: Path, job: Job, config: Config, follow: bool) -> Iterator[str]:
    """Yield the log lines of the platform; with `follow`, until the job ends."""
    settings = _settings(job, config)
    with PlatformApi(settings) as api:
        job = _with_name(api, folder, job)
        cursor: str | None = None
        num_seen = 0  # lines of the page at `cursor`, which grows until there is a next one
        while True:
            # The state is read before the log, so that the last lines of an ended job are not missed.
            state = _status(job.details["job_name"], api.job_status(job.details["job_name"])).state
            while True:
                page = api.job_logs(job.details["job_name"], cursor)
                rows = [row for row in page.get("data") or [] if isinstance(row, dict)]
                yield from (f"{row.get('job_step')}: {row.get('message')}" for row in rows[num_seen:])
                if not page.get("next_page") or page["next_page"] == cursor:
                    num_seen = len(rows)
                    break
                cursor, num_seen = str(page["next_page"]), 0
            if not follow or state in FINAL:
                return
            time.sleep(settings.poll_interval_seconds)


def wait_limits(config: Config) -> WaitLimits:
    settings = config.backend.nemo_platform
    return WaitLimits(
        poll_interval_seconds=settings.poll_interval_seconds,
        timeout_seconds=settings.training_timeout_seconds,
        max_failures=settings.max_status_failures,
    )


def training_spec(settings: NemoPlatformConfig, *, seed: int) -> Json:
    """The field `training` of a job, in the platform's names."""
    training = settings.training.model_dump(mode="json", exclude_none=True)
    return {"type": "dpo", "seed": seed} | training


def _write_data(pairs: Path, folder: Path, settings: NemoPlatformConfig, *, seed: int) -> Dataset:
    dataset = write_dataset(
        pairs,
        folder,
        target="nemo-platform" if settings.tool_calls == "refuse" else "nemo-platform-text",
        names=_FILES,
        validation=settings.validation,
        seed=seed,
    )
    has_tools = {reason for reason in dataset.refused if reason.startswith("tool")}
    if has_tools:
        counts = ", ".join(f"{reason} {dataset.refused[reason]}" for reason in sorted(has_tools))
        raise BackendError(
            f"{pairs}: NeMo Platform's rows hold no tool calls ({counts}): train with the local backend, filter the "
            f"pairs, or write calls as text with backend.nemo_platform.tool_calls: text"
        )
    if dataset.validation is None:
        raise BackendError(f"{pairs}: no pair for validation, and NeMo Platform needs a validation.jsonl")
    if settings.training.batch_size > dataset.num_training:
        raise ConfigError(
            f"backend.nemo_platform.training.batch_size: {settings.training.batch_size} is more than the "
            f"{dataset.num_training} pairs for training, and a step that is not full is left out: choose a smaller one"
        )
    return dataset


def _reference(settings: NemoPlatformConfig, name: str, model: str) -> Json:
    return {
        "base_url": settings.base_url,
        "workspace": settings.workspace,
        "model": settings.model or model,
        "fileset": f"{settings.dataset_name}-{name.removeprefix('pw-')}",
        "output_model": f"{settings.output_name or settings.dataset_name}-{name.removeprefix('pw-')}",
        "job_name": None,
    }


def _body(job: Job, settings: NemoPlatformConfig, *, seed: int) -> Json:
    details = job.details
    return {
        "spec": {
            "model": details["model"],
            "dataset": f"{settings.workspace}/{details['fileset']}",
            "training": training_spec(settings, seed=seed),
            "output": {"name": details["output_model"]},
        },
        "description": f"{details['files']['num_training']} preference pairs by pairwright",
        "custom_fields": {"pairwright_job": job.id},
        **({"project": settings.project} if settings.project else {}),
    }


def _create_job(api: PlatformApi, folder: Path, job: Job, body: Json) -> Job:
    """Create the job. If the response is lost, look the job up by its model instead of sending the request again."""
    try:
        answer: Json | None = api.create_job(body)
    except Unreachable as error:
        answer = api.find_job(job.details["output_model"])
        if answer is None:
            raise Unreachable(f"{error}; no job was created. Try again with: pairwright jobs submit") from error
    assert answer is not None
    return _write_name(folder, job, answer)


def _with_name(api: PlatformApi, folder: Path, job: Job) -> Job:
    """Return the job with the platform's name, looked up if a crash came before it was written."""
    if job.details.get("job_name"):
        return job
    answer = api.find_job(job.details["output_model"])
    if answer is None:
        raise BackendError(
            f"{job.id}: was never created at {job.details['base_url']}: submitting it was interrupted. Submit it again "
            f"with the same command"
        )
    return _write_name(folder, job, answer)


def _write_name(folder: Path, job: Job, answer: Json) -> Job:
    return write_job(
        folder, change_job(job, state=JobState.PENDING, details={**job.details, "job_name": answer["name"]})
    )


def _settings(job: Job, config: Config) -> NemoPlatformConfig:
    """Settings for an existing job: address and workspace as of its submission, the token from the configuration."""
    names = ("base_url", "workspace")
    return config.backend.nemo_platform.model_copy(update={name: job.details[name] for name in names})


def _status(name: str, answer: Json) -> Status:
    """Convert a status response to a `Status`; the progress stands in the task of the training step."""
    word = str(answer.get("status", "")).lower()
    if word not in _STATES:
        raise Unreachable(f"{name}: the platform says its status is {answer.get('status')!r}")
    steps = [step for step in answer.get("steps") or [] if isinstance(step, dict)]
    details: Json = {}
    for step in steps:
        if step.get("name") == _TRAINING_STEP:
            tasks = [task for task in step.get("tasks") or [] if isinstance(task, dict)]
            details = next((task["status_details"] for task in tasks if task.get("status_details")), {})
    step_number, num_steps = _number(details.get("step")), _number(details.get("max_steps"))
    metrics = details.get("metrics") if isinstance(details.get("metrics"), dict) else {}
    return Status(
        state=_STATES[word],
        percentage=100.0 * step_number / num_steps if step_number is not None and num_steps else None,
        step=None if step_number is None else int(step_number),
        num_steps=None if num_steps is None else int(num_steps),
        message=_message(word, answer, steps, details),
        epoch=_number(details.get("epoch")),
        train_loss=_number((metrics or {}).get("loss")),
        validation_loss=_number((metrics or {}).get("val_loss")),
    )


def _message(word: str, answer: Json, steps: list[Json], details: Json) -> str:
    """What the job is at; for an error what the platform says of it, from the inside out."""
    if word == "error":
        tasks = [task for step in steps for task in step.get("tasks") or [] if isinstance(task, dict)]
        for part in (*tasks, *steps, answer):
            reason = part.get("error_details") or part.get("error_stack")
            if reason:
                return _words(reason)
    if word in ("paused", "pausing"):
        return "paused on the platform"
    return str(details.get("phase") or next((step["name"] for step in steps if step.get("status") == "active"), ""))


def _words(reason: Any) -> str:
    if isinstance(reason, dict):
        inner = next((reason[key] for key in ("message", "error", "detail", "reason") if reason.get(key)), None)
        return _words(inner) if inner is not None else str(reason)[:500]
    return str(reason).strip().rpartition("\n")[2][:500]


def _number(value: Any) -> float | None:
    # bool is a subclass of int.
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


NEMO_PLATFORM = Backend(
    name="nemo-platform",
    submit=submit,
    status=status,
    cancel=cancel,
    deploy=deploy,
    logs=logs,
    wait_limits=wait_limits,
)

"""The NeMo Platform dialect, the open successor of NeMo Customizer: DPO jobs of its `rl` backend.

Submitting writes training.jsonl and validation.jsonl, creates a fileset for this run, uploads both and creates the job.
Filesets have no revisions, so each run has its own. The platform chooses the names of jobs; a job is found by the name
of its output model, which is unique to the run.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from pairwright.config import Config
from pairwright.config.backend_config import NemoPlatformConfig
from pairwright.errors import ConfigError
from pairwright.jobs.dataset import Dataset, write_dataset
from pairwright.jobs.job import BackendError, Job, JobState, Say, Status, Unreachable
from pairwright.jobs.service_backend import Dialect, as_number, innermost, require_field
from pairwright.records.messages import Json

_TRAINING_STEP = "dpo-training"
_FILES = ("training.jsonl", "validation.jsonl")
_BATCH_SIZE = 32
_UPLOAD_SECONDS = 600
_LOG_LINES = 1000


class PlatformApi(Dialect):
    """Client for the files, customization and jobs services of a platform."""

    backend = "nemo-platform"
    title = "NeMo Platform"
    kept = ("base_url", "workspace")
    states = {  # noqa: RUF012
        # A paused job may continue.
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
    id_field = "name"
    id_key = "job_name"
    token_keys = "backend.nemo_platform.api_token, and that it may use the workspace"

    settings: NemoPlatformConfig

    def __init__(self, settings: NemoPlatformConfig, timeout_seconds: float = 60) -> None:
        super().__init__(settings, timeout_seconds)
        space = quote(settings.workspace, safe="")
        self._files = f"/apis/files/v2/workspaces/{space}/filesets"
        self._rl_jobs = f"/apis/customization/v2/workspaces/{space}/rl/jobs"
        self.jobs_path = f"/apis/jobs/v2/workspaces/{space}/jobs"

    def tokens_by_host(self) -> dict[str, str | None]:
        if self.settings.base_url is None:
            raise ConfigError("backend.nemo_platform.base_url: not set; give the address of the platform")
        return {self.settings.base_url: self.settings.api_token.get_secret_value() if self.settings.api_token else None}

    def training_backends(self) -> list[str]:
        """Return the names of the platform's training backends; `rl` runs DPO jobs."""
        answer = self._got("/apis/customization/v2/healthz").get("contributors")
        return [str(name) for name in answer] if isinstance(answer, list) else []

    def upload_file(self, fileset: str, path: Path) -> None:
        """Upload a file to a fileset under its own name; idempotent."""
        place, size = f"{self._files}/{quote(fileset, safe='')}/-/{quote(path.name, safe='')}", path.stat().st_size
        headers = {"content-type": "application/octet-stream", "content-length": str(size)}
        # Retried once from the start: the upload is idempotent.
        with path.open("rb") as file:
            try:
                answer = self._sent("PUT", place, content=file, headers=headers, timeout=_UPLOAD_SECONDS)
            except Unreachable:
                file.seek(0)
                answer = self._sent("PUT", place, content=file, headers=headers, timeout=_UPLOAD_SECONDS)
        if answer.get("size") != size:
            raise BackendError(f"PUT {self.host}{place}: the platform has {answer.get('size')!r} of {size} bytes")

    def reference(self, job_id: str, model: str) -> Json:
        settings, suffix = self.settings, job_id.removeprefix("pw-")
        return {
            "base_url": settings.base_url,
            "workspace": settings.workspace,
            "model": settings.model or model,
            "fileset": f"{settings.dataset_name}-{suffix}",
            "output_model": f"{settings.dataset_name}-{suffix}",
            "job_name": None,
        }

    def export(self, pairs: Path, folder: Path, *, seed: int) -> Dataset:
        settings = self.settings
        dataset = write_dataset(
            pairs,
            folder / "exports" / "nemo-platform",
            target="nemo-platform" if settings.tool_calls == "refuse" else "nemo-platform-text",
            names=_FILES,
            validation=settings.validation,
            seed=seed,
        )
        has_tools = {reason for reason in dataset.refused if reason.startswith("tool")}
        if has_tools:
            counts = ", ".join(f"{reason} {dataset.refused[reason]}" for reason in sorted(has_tools))
            raise BackendError(
                f"{pairs}: NeMo Platform's rows hold no tool calls ({counts}): train with the local backend, "
                f"filter the pairs, or write calls as text with backend.nemo_platform.tool_calls: text"
            )
        if dataset.validation is None:
            raise BackendError(f"{pairs}: no pair for validation, and NeMo Platform needs a validation.jsonl")
        batch_size = settings.training.get("batch_size", _BATCH_SIZE)
        if batch_size > dataset.num_training:
            raise ConfigError(
                f"backend.nemo_platform.training.batch_size: {batch_size} is more than the {dataset.num_training} "
                "pairs for training, and a step that is not full is left out: "
                "choose a smaller one"
            )
        return dataset

    def upload(self, job: Job, dataset: Dataset, say: Say) -> Json:
        fileset = job.details["fileset"]
        description = f"{dataset.num_training} preference pairs by pairwright, {job.id}"
        body = {"name": fileset, "description": description, "purpose": "dataset"}
        self._created(self.host, self._files, json=body)
        for name in _FILES:
            self.upload_file(fileset, dataset.training.with_name(name))
        say(f"uploaded to the fileset {self.settings.workspace}/{fileset}")
        return {}

    def create_job(self, job: Job, *, seed: int) -> Json:
        settings, details = self.settings, job.details
        body = {
            "spec": {
                "model": details["model"],
                "dataset": f"{settings.workspace}/{details['fileset']}",
                "training": {"type": "dpo", "seed": seed, **settings.training},
                "output": {"name": details["output_model"]},
            },
            "description": f"{details['files']['num_training']} preference pairs by pairwright",
            "custom_fields": {"pairwright_job": job.id},
            **({"project": settings.project} if settings.project else {}),
        }
        return require_field(self._sent("POST", self._rl_jobs, json=body), "name", "a job")

    def find_job(self, details: Json) -> Json | None:
        for row in self._rows(self._rl_jobs):
            spec = row.get("spec")
            output_spec = spec.get("output") if isinstance(spec, dict) else None
            if isinstance(output_spec, dict) and output_spec.get("name") == details["output_model"]:
                return row
        return None

    def new_log_lines(self, job_id: str, position: Any) -> tuple[list[str], Any]:
        # The position is the cursor of a page and the number of its lines read so far: the last page may still grow.
        cursor, num_seen = position or (None, 0)
        lines: list[str] = []
        while True:
            params = {"limit": _LOG_LINES} | ({"page_cursor": cursor} if cursor else {})
            page = self._got(self.job_path(job_id, "logs"), params=params)
            rows = [row for row in page.get("data") or [] if isinstance(row, dict)]
            lines += [f"{row.get('job_step')}: {row.get('message')}" for row in rows[num_seen:]]
            if not page.get("next_page") or page["next_page"] == cursor:
                return lines, (cursor, len(rows))
            cursor, num_seen = str(page["next_page"]), 0

    def to_status(self, state: JobState, answer: Json) -> Status:
        """Convert a status document; the progress is in the task of the training step."""
        steps = [step for step in answer.get("steps") or [] if isinstance(step, dict)]
        details: Json = {}
        for step in steps:
            if step.get("name") == _TRAINING_STEP:
                tasks = [task for task in step.get("tasks") or [] if isinstance(task, dict)]
                details = next((task["status_details"] for task in tasks if task.get("status_details")), {})
        step_number, num_steps = as_number(details.get("step")), as_number(details.get("max_steps"))
        metrics = details.get("metrics") if isinstance(details.get("metrics"), dict) else {}
        return Status(
            state=state,
            percentage=100.0 * step_number / num_steps if step_number is not None and num_steps else None,
            step=None if step_number is None else int(step_number),
            num_steps=None if num_steps is None else int(num_steps),
            message=_message(answer, steps, details),
            epoch=as_number(details.get("epoch")),
            train_loss=as_number((metrics or {}).get("loss")),
            validation_loss=as_number((metrics or {}).get("val_loss")),
        )

    @classmethod
    def deploy(cls, folder: Path, job: Job, config: Config, say: Say) -> Json:
        place = f"{job.details['workspace']}/{job.details['output_model']}"
        raise BackendError(
            f"{place}: the platform keeps the model; deploy it there (nemo inference deployments create), since its "
            f"engines and GPUs are the platform's to choose"
        )


def _message(answer: Json, steps: list[Json], details: Json) -> str:
    """Return the current phase of the job; for an error its message, innermost first."""
    word = str(answer.get("status", "")).lower()
    if word == "error":
        tasks = [task for step in steps for task in step.get("tasks") or [] if isinstance(task, dict)]
        for part in (*tasks, *steps, answer):
            reason = part.get("error_details") or part.get("error_stack")
            if reason:
                return str(innermost(reason)).strip().rpartition("\n")[2][:500]
    if word in ("paused", "pausing"):
        return "paused on the platform"
    return str(details.get("phase") or next((step["name"] for step in steps if step.get("status") == "active"), ""))


NEMO_PLATFORM = PlatformApi.as_backend()

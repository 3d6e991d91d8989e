"""The NeMo Customizer dialect: namespaces, dataset repositories, jobs and deployments of NVIDIA's service or of ours.

Submitting exports the pairs, creates namespace and dataset, uploads the files as one revision and creates a job that is
pinned to this revision. The job has the same name on the service as here, which is unique to the run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from pairwright.config import Config
from pairwright.config.customizer_config import NemoCustomizerConfig
from pairwright.errors import ConfigError, PairwrightError
from pairwright.jobs.dataset import Dataset, write_dataset
from pairwright.jobs.job import (
    BackendError,
    Job,
    JobFailed,
    JobState,
    JobTimeout,
    Say,
    ServiceError,
    Status,
    Unreachable,
    WaitLimits,
    change_job,
    poll,
    read_job,
    write_job,
)
from pairwright.jobs.service_backend import Dialect, as_number, require_field
from pairwright.paths import write_bytes
from pairwright.records.messages import Json

TRAINING, VALIDATION = "training/training_file.jsonl", "validation/validation_file.jsonl"
# The service's metric names -> those of our trainer.
_NAMES = {
    "train_loss": "loss",
    "val_loss": "eval_loss",
    "train_accuracy": "rewards/accuracies",
    "val_accuracy": "eval_rewards/accuracies",
}


class CustomizerApi(Dialect):
    """Client for the entity host and the data store of one service."""

    backend = "nemo-customizer"
    title = "NeMo Customizer"
    kept = ("entity_host", "datastore_host", "namespace", "dataset_name")
    states = {  # noqa: RUF012
        "created": JobState.PENDING,
        "pending": JobState.PENDING,
        "running": JobState.RUNNING,
        "cancelling": JobState.CANCELLING,
        "cancelled": JobState.CANCELLED,
        "failed": JobState.FAILED,
        "completed": JobState.COMPLETED,
        "ready": JobState.COMPLETED,
    }
    id_field = "id"
    id_key = "job_id"
    token_keys = "backend.nemo_customizer.hf_token and api_token, and that they may use the namespace"

    jobs_path = "/v1/customization/jobs"

    settings: NemoCustomizerConfig

    def tokens_by_host(self) -> dict[str, str | None]:
        if self.settings.entity_host is None:
            raise ConfigError("backend.nemo_customizer.entity_host: not set; give the address of the service")
        import httpx

        entity_host, store = self.settings.entity_host, self.settings.datastore_host or self.settings.entity_host
        token = self.settings.api_token.get_secret_value() if self.settings.api_token else None
        # If both have one address, one token suffices.
        if token is None and httpx.URL(entity_host).netloc == httpx.URL(store).netloc:
            token = self.hf_token
        return {entity_host: token, store: self.hf_token or token}

    @property
    def datastore_host(self) -> str:
        return self.settings.datastore_host or self.host

    @property
    def hf_token(self) -> str | None:
        return self.settings.hf_token.get_secret_value() if self.settings.hf_token else None

    def reference(self, job_id: str, model: str) -> Json:
        return {
            "entity_host": self.host,
            "datastore_host": self.datastore_host,
            "namespace": self.settings.namespace,
            "dataset_name": self.settings.dataset_name,
            "job_name": job_id,
            "job_id": None,
            "output_model": None,
            "config": self.settings.customization_config or model,
        }

    def export(self, pairs: Path, folder: Path, *, seed: int) -> Dataset:
        """Write the training and validation files: pairs, or only chosen sides for sft."""
        settings = self.settings
        chosen = settings.dataset_output_dir
        return write_dataset(
            pairs,
            Path(chosen) if chosen else folder / "exports" / "customizer",
            target="customizer-sft" if settings.hyperparameters.training_type == "sft" else "customizer",
            names=(TRAINING, VALIDATION),
            validation=settings.validation,
            seed=seed,
            history=settings.use_full_message_history,
        )

    def upload(self, job: Job, dataset: Dataset, say: Say) -> Json:
        namespace, name = self.settings.namespace, self.settings.dataset_name
        if self.settings.create_namespace_if_missing:
            self.create_namespace(namespace)
        revision = self.upload_files(dataset, message=f"{job.id}: {dataset.num_training} pairs")
        self.create_dataset(namespace, name)
        say(f"uploaded to {namespace}/{name} as revision {revision}")
        return {"revision": revision}

    def upload_files(self, dataset: Dataset, *, message: str) -> str:
        """Upload the files to the dataset's repository of the data store in one commit. Returns its revision."""
        try:
            import huggingface_hub as hub
        except ImportError:
            raise BackendError("huggingface_hub is not installed: pip install 'pairwright[customizer]'") from None
        host, repo = self.datastore_host, f"{self.settings.namespace}/{self.settings.dataset_name}"
        # False, not None: with None the client would send the locally stored token.
        client = hub.HfApi(endpoint=f"{host}/v1/hf", token=self.hf_token or False)
        files = {TRAINING: dataset.training} | ({VALIDATION: dataset.validation} if dataset.validation else {})
        operations: list[hub.CommitOperationAdd | hub.CommitOperationDelete] = [
            hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path)) for name, path in files.items()
        ]
        try:
            client.create_repo(repo, repo_type="dataset", exist_ok=True)
            if dataset.validation is None and client.file_exists(repo, VALIDATION, repo_type="dataset"):
                operations.append(hub.CommitOperationDelete(path_in_repo=VALIDATION))  # of an earlier run
            # if nothing changed, the client creates no commit and returns the last one
            commit = client.create_commit(repo, operations=operations, repo_type="dataset", commit_message=message)
        except Exception as error:  # the client raises errors of its HTTP library, which differ between versions
            status = getattr(getattr(error, "response", None), "status_code", None)
            words = f"{host}/v1/hf: upload to {repo}: {type(error).__name__}: {str(error)[:500]}"
            # Status codes for which a retry does not help.
            if isinstance(status, int) and status < 500 and status not in (408, 429):
                hint = ": check backend.nemo_customizer.hf_token and the namespace" if status in (401, 403) else ""
                raise ServiceError(words + hint, status=status) from error
            raise Unreachable(words) from error
        if not commit.oid:
            raise BackendError(f"{repo}: the data store did not say which revision the upload made")
        return str(commit.oid)

    def create_namespace(self, namespace: str) -> bool:
        """Create a namespace in the entity store and the data store. Returns False if it existed in both."""
        body = {"id": namespace, "description": "Made by pairwright"}
        entity = self._created(self.host, "/v1/namespaces", json=body)
        # If the namespace exists, data stores respond with 409 or 422.
        store = self._created(
            self.datastore_host, "/v1/datastore/namespaces", data={"namespace": namespace}, there=(409, 422)
        )
        return entity or store

    def create_dataset(self, namespace: str, name: str) -> bool:
        """Register a dataset. Returns False if it existed."""
        body = {
            "name": name,
            "namespace": namespace,
            "files_url": f"hf://datasets/{namespace}/{name}",
            "description": "Preference pairs, written by pairwright",
        }
        return self._created(self.host, "/v1/datasets", json=body)

    def create_job(self, job: Job, *, seed: int) -> Json:
        settings, details = self.settings, job.details
        dataset: Json = {"name": settings.dataset_name, "namespace": settings.namespace}
        # The revision is a commit: later uploads to the same dataset do not change what this job reads.
        if settings.pin_revision:
            dataset["files_url"] = f"hf://datasets/{settings.namespace}/{settings.dataset_name}@{details['revision']}"
        body = {
            "name": details["job_name"],
            "namespace": settings.namespace,
            "description": f"{details['files']['num_training']} preference pairs by pairwright",
            "config": details["config"],
            "dataset": dataset,
            "hyperparameters": settings.hyperparameters.options(),
            "custom_fields": {"pairwright_revision": details["revision"]},
        }
        return self.send_job(body)

    def send_job(self, body: Json) -> Json:
        return require_field(self._sent("POST", self.jobs_path, json=body), "id", "a job")

    def find_job(self, details: Json) -> Json | None:
        matches = (row for row in self._rows(self.jobs_path) if row.get("name") == details["job_name"])
        return next((row for row in matches if row.get("namespace") in (None, details["namespace"])), None)

    def new_details(self, answer: Json) -> Json:
        return {"job_id": answer["id"], "output_model": answer.get("output_model")}

    def new_log_lines(self, job_id: str, position: Any) -> tuple[list[str], Any]:
        # The service returns the whole log; the position is the number of lines already returned.
        lines = list(_lines(self._got(self.job_path(job_id, "container-logs"))))
        num_seen = position or 0
        return lines[num_seen:], max(num_seen, len(lines))

    def record_status(self, folder: Path, job: Job, state: JobState, answer: Json) -> None:
        """Write the metrics of the job, and its model if it was not known when the job was created."""
        if not job.details.get("output_model") and state is JobState.COMPLETED:
            output = self._got(f"{self.jobs_path}/{quote(job.details['job_id'], safe='')}").get("output_model")
            write_job(folder, change_job(job, details={**job.details, "output_model": output}))
        rows = metric_rows(answer)
        if rows:
            content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
            write_bytes(folder / "metrics.jsonl", content, error=PairwrightError)

    def to_status(self, state: JobState, answer: Json) -> Status:
        step, per_epoch = as_number(answer.get("steps_completed")), as_number(answer.get("steps_per_epoch"))
        percentage = as_number(answer.get("percentage_done"))
        done = None
        if step and percentage:
            # The service does not report the number of steps: estimated from the percentage.
            done = round(step * 100 / percentage)
        logs = [log for log in answer.get("status_logs") or [] if isinstance(log, dict)]
        details = [log["detail"] for log in logs if log.get("detail")]
        words = str(logs[-1].get("message") or "") if logs else ""
        if state is JobState.FAILED and details:
            words = f"{words}: {details[-1]}" if words else str(details[-1])
        return Status(
            state=state,
            percentage=percentage,
            step=None if step is None else int(step),
            num_steps=done,
            message=words,
            epoch=step / per_epoch if step is not None and per_epoch else as_number(answer.get("epochs_completed")),
            train_loss=as_number(answer.get("train_loss")),
            validation_loss=as_number(answer.get("val_loss")),
        )

    def configs(self) -> list[Json]:
        return list(self._rows("/v1/customization/configs"))

    def find_deployment(self, namespace: str, name: str) -> Json | None:
        rows = self._rows("/v1/deployment/model-deployments")
        return next((row for row in rows if (row.get("namespace"), row.get("name")) == (namespace, name)), None)

    @classmethod
    def deploy(cls, folder: Path, job: Job, config: Config, say: Say) -> Json:
        """Deploy the model of a completed job and wait until it is ready. Repeating it reuses the deployment."""
        model = job.details.get("output_model")
        if job.state is not JobState.COMPLETED or not model:
            raise BackendError(f"{job.id}: is {job.state}, and only a completed job can be deployed")
        with cls.for_job(job, config) as api:
            namespace, wanted = api.settings.namespace, api.settings.deployment_config
            name = wanted.deployment_name or job.id
            nim: Json = {"image_tag": wanted.image_tag, "gpu": wanted.gpu}
            if wanted.image_name is not None:
                nim["image_name"] = wanted.image_name
            shared = {"name": name, "namespace": namespace, "description": wanted.description}
            settings = {**shared, "model": model, "nim_deployment": nim}
            api._created(api.host, "/v1/deployment/configs", json=settings)
            body = {**shared, "config": f"{namespace}/{name}"}
            is_new = api._created(api.host, "/v1/deployment/model-deployments", json=body)
            # A generated name is unique to this job; one chosen by the user may be in use.
            models = None
            if not is_new and wanted.deployment_name is not None:
                models = (api.find_deployment(namespace, name) or {}).get("models")
            if models and model not in models:
                raise BackendError(
                    f"{namespace}/{name}: is the deployment of {', '.join(map(str, models))}: choose another "
                    f"deployment_config.deployment_name, or leave it out"
                )
            deployment: Json = {"name": name, "namespace": namespace, "status": "created"}
            write_job(folder, change_job(job, deployment=deployment))
            say(f"deployment {namespace}/{name} of {model} was created")
            ready = api.wait_for_deployment(folder, name, say)
        answer = {"model": model, "url": ready.get("url"), "models": ready.get("models") or [model]}
        deployment = {**deployment, "status": "ready", **answer}
        write_job(folder, change_job(read_job(folder), deployment=deployment))
        return deployment

    def wait_for_deployment(self, folder: Path, name: str, say: Say) -> Json:
        """Poll a deployment until it is ready. Raises JobFailed if it fails, JobTimeout after the timeout."""
        settings, timeout, last = self.settings, self.settings.deployment_timeout_seconds, None
        limits = WaitLimits(
            poll_interval_seconds=min(settings.poll_interval_seconds, timeout),
            timeout_seconds=timeout,
            max_failures=settings.max_status_failures,
        )
        for deployment in poll(lambda: self.find_deployment(settings.namespace, name), limits):
            details = (deployment or {}).get("status_details") or {}
            status = str(details.get("status", "missing")).lower()
            if deployment is not None and status == "ready":
                return deployment
            if status in ("failed", "error"):
                raise JobFailed(f"deployment {name}: {status}: {details.get('description') or 'no reason given'}")
            if status != last:
                say(f"deployment {name}: {status}")
                last = status
        raise JobTimeout(
            f"deployment {name}: not ready after {timeout:g} s (last seen: {last}). Wait on with: "
            f"pairwright jobs deploy {folder}"
        )


def service_status(job_id: str, settings: NemoCustomizerConfig) -> Status:
    """Return the status of a job that has no job file here, by its id on the service."""
    with CustomizerApi(settings) as api:
        answer = api.job_status(job_id)
        return api.to_status(api.state_of(job_id, answer), answer)


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


NEMO_CUSTOMIZER = CustomizerApi.as_backend()

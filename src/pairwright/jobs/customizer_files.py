"""Files and deployments of the NeMo Customizer backend: export, upload to the data store, deployment of the result."""

import time
from pathlib import Path
from typing import Any

from pairwright.config import Config
from pairwright.config.backend_config import NemoCustomizerConfig
from pairwright.jobs.customizer_api import CustomizerApi
from pairwright.jobs.dataset import Dataset, write_dataset
from pairwright.jobs.job import (
    BackendError,
    Job,
    JobFailed,
    JobState,
    JobTimeout,
    Say,
    ServiceError,
    Unreachable,
    change_job,
    read_job,
    write_job,
)
from pairwright.records.messages import Json


def deploy(folder: Path, job: Job, config: Config, say: Say) -> Json:
    """Deploy the model of a completed job and wait until it is ready. Repeating it reuses the existing deployment."""
    model = job.details.get("output_model")
    if job.state is not JobState.COMPLETED or not model:
        raise BackendError(f"{job.id}: is {job.state}, and only a completed job can be deployed")
    settings = config.backend.nemo_customizer.model_copy(
        update={name: job.details[name] for name in ("entity_host", "datastore_host", "namespace")}
    )
    name = settings.deployment_config.deployment_name or job.id
    with CustomizerApi(settings) as api:
        _create(api, settings, name, model)
        write_job(
            folder, change_job(job, deployment={"name": name, "namespace": settings.namespace, "status": "created"})
        )
        say(f"deployment {settings.namespace}/{name} of {model} was created")
        ready = _wait(api, settings, folder, name, say)
    deployment = {
        "name": name,
        "namespace": settings.namespace,
        "status": "ready",
        "model": model,
        "url": ready.get("url"),
        "models": ready.get("models") or [model],
    }
    write_job(folder, change_job(read_job(folder), deployment=deployment))
    return deployment


def _create(api: CustomizerApi, settings: NemoCustomizerConfig, name: str, model: str) -> None:
    wanted = settings.deployment_config
    nim: Json = {"image_tag": wanted.image_tag, "gpu": wanted.gpu}
    if wanted.image_name is not None:
        nim["image_name"] = wanted.image_name
    shared = {"namespace": settings.namespace, "description": wanted.description}
    api.create_deployment_config({"name": name, **shared, "model": model, "nim_deployment": nim})
    deployment = api.create_deployment({"name": name, **shared, "config": f"{settings.namespace}/{name}"})
    # A name of ours belongs to this job alone; one that the user chose may be in use.
    if not deployment and wanted.deployment_name is not None:
        _refuse_other_model(api, settings, name, model)


def _refuse_other_model(api: CustomizerApi, settings: NemoCustomizerConfig, name: str, model: str) -> None:
    """Raise if a deployment name set by the user belongs to another model."""
    deployment = api.find_deployment(settings.namespace, name)
    models = (deployment or {}).get("models")
    if models and model not in models:
        raise BackendError(
            f"{settings.namespace}/{name}: is the deployment of {', '.join(map(str, models))}: choose another "
            f"deployment_config.deployment_name, or leave it out"
        )


def _wait(api: CustomizerApi, settings: NemoCustomizerConfig, folder: Path, name: str, say: Say) -> Json:
    """Poll a deployment until it is ready. Raises JobFailed if it fails, JobTimeout after the configured timeout."""
    started, num_failures, last = time.monotonic(), 0, None
    while True:
        try:
            deployment = api.find_deployment(settings.namespace, name)
            num_failures = 0
        except Unreachable:
            num_failures += 1
            if num_failures > settings.max_status_failures:
                raise
        else:
            details = (deployment or {}).get("status_details") or {}
            status = str(details.get("status", "missing")).lower()
            if deployment is not None and status == "ready":
                return deployment
            if status in ("failed", "error"):
                raise JobFailed(f"deployment {name}: {status}: {details.get('description') or 'no reason given'}")
            if status != last:
                say(f"deployment {name}: {status}")
                last = status
        if time.monotonic() - started > settings.deployment_timeout_seconds:
            raise JobTimeout(
                f"deployment {name}: not ready after {settings.deployment_timeout_seconds:g} s (last seen: {last}). "
                f"Wait on with: pairwright jobs deploy {folder}"
            )
        time.sleep(min(settings.poll_interval_seconds, settings.deployment_timeout_seconds))


# Export of the pairs and upload to the data store

TRAINING, VALIDATION = "training/training_file.jsonl", "validation/validation_file.jsonl"


def export(pairs: Path, folder: Path, config: NemoCustomizerConfig, *, seed: int) -> Dataset:
    """Write the training and validation files for the service to `folder`: pairs, or for sft their chosen sides."""
    return write_dataset(
        pairs,
        folder,
        target="customizer-sft" if config.hyperparameters.training_type == "sft" else "customizer",
        names=(TRAINING, VALIDATION),
        validation=config.validation,
        seed=seed,
        history=config.use_full_message_history,
    )


def upload(api: CustomizerApi, dataset: Dataset, config: NemoCustomizerConfig, *, message: str) -> str:
    """Upload the files to the dataset repository in one commit. Returns its revision."""
    hub = _hub()
    repo = f"{config.namespace}/{config.dataset_name}"
    # False, not None: with None the client would send the token that is stored on this machine.
    client = hub.HfApi(endpoint=f"{api.datastore_host}/v1/hf", token=api.hf_token or False)
    files = [(TRAINING, dataset.training)]
    if dataset.validation is not None:
        files.append((VALIDATION, dataset.validation))
    operations = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path)) for name, path in files]
    try:
        client.create_repo(repo, repo_type="dataset", exist_ok=True)
        if dataset.validation is None and client.file_exists(repo, VALIDATION, repo_type="dataset"):
            operations.append(hub.CommitOperationDelete(path_in_repo=VALIDATION))  # of an earlier run
        # without a change since the commit before, the client makes none and returns that one
        revision = client.create_commit(repo, operations=operations, repo_type="dataset", commit_message=message).oid
    except Exception as error:  # the client raises what its HTTP library raises, which changes between its versions
        raise _explain_error(error, f"{api.datastore_host}/v1/hf", repo) from error
    if not revision:
        raise BackendError(f"{repo}: the data store did not say which revision the upload made")
    return str(revision)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise BackendError("huggingface_hub is not installed: pip install 'pairwright[customizer]'") from None
    return huggingface_hub


def _explain_error(error: Exception, endpoint: str, repo: str) -> BackendError:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    words = f"{endpoint}: upload to {repo}: {type(error).__name__}: {str(error)[:500]}"
    # Status codes that a repeat will not change.
    if isinstance(status, int) and status < 500 and status not in (408, 429):
        hint = ": check backend.nemo_customizer.hf_token and the namespace" if status in (401, 403) else ""
        return ServiceError(words + hint, status=status)
    return Unreachable(words)

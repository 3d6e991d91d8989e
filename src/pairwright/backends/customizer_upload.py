"""The pairs on their way into a data store: exported, uploaded in one commit, and the commit's id kept.

The Hugging Face client speaks to the store at `<datastore>/v1/hf`. A job is pinned to the commit, so a later run that
uploads to the same dataset changes nothing for it.
"""

from pathlib import Path
from typing import Any

from pairwright.backends.customizer_api import CustomizerApi
from pairwright.backends.dataset import Dataset, write_dataset
from pairwright.backends.job import BackendError, ServiceError, Unreachable
from pairwright.config.backend import NemoCustomizerConfig

TRAINING, VALIDATION = "training/training_file.jsonl", "validation/validation_file.jsonl"


def export(pairs: Path, folder: Path, config: NemoCustomizerConfig, *, seed: int) -> Dataset:
    """The files that the service trains on, below `folder`."""
    return write_dataset(
        pairs, folder, target="customizer", names=(TRAINING, VALIDATION), validation=config.validation, seed=seed,
        history=config.use_full_message_history,
    )  # fmt: skip


def upload(api: CustomizerApi, dataset: Dataset, config: NemoCustomizerConfig, *, message: str) -> str:
    """Put the files into the dataset of the data store; returns the revision."""
    hub = _hub()
    repo = f"{config.namespace}/{config.dataset_name}"
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
        raise _explained(error, f"{api.datastore_host}/v1/hf", repo) from error
    if not revision:
        raise BackendError(f"{repo}: the data store did not say which revision the upload made")
    return str(revision)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise BackendError("huggingface_hub is not installed: pip install 'pairwright[customizer]'") from None
    return huggingface_hub


def _explained(error: Exception, endpoint: str, repo: str) -> BackendError:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    words = f"{endpoint}: upload to {repo}: {type(error).__name__}: {str(error)[:500]}"
    if isinstance(status, int) and status < 500 and status not in (408, 429):
        hint = ": check backend.nemo_customizer.hf_token and the namespace" if status in (401, 403) else ""
        return ServiceError(words + hint, status=status)
    return Unreachable(words)

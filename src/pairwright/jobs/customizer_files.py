"""Files of the NeMo Customizer backend: export of the pairs and upload to the data store."""

from pathlib import Path

from pairwright.config.customizer_config import NemoCustomizerConfig
from pairwright.jobs.dataset import Dataset, write_dataset
from pairwright.jobs.job import BackendError, ServiceError, Unreachable

TRAINING, VALIDATION = "training/training_file.jsonl", "validation/validation_file.jsonl"


def export(pairs: Path, folder: Path, config: NemoCustomizerConfig, *, seed: int) -> Dataset:
    """Write the training and validation files for the service to `folder`: pairs, or only chosen sides for sft."""
    return write_dataset(
        pairs,
        folder,
        target="customizer-sft" if config.hyperparameters.training_type == "sft" else "customizer",
        names=(TRAINING, VALIDATION),
        validation=config.validation,
        seed=seed,
        history=config.use_full_message_history,
    )


def upload(host: str, token: str | None, repo: str, dataset: Dataset, *, message: str) -> str:
    """Upload the files to a dataset repository of the data store in one commit. Returns its revision."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise BackendError("huggingface_hub is not installed: pip install 'pairwright[customizer]'") from None
    # False, not None: with None the client would send the locally stored token.
    client = hub.HfApi(endpoint=f"{host}/v1/hf", token=token or False)
    files = [(TRAINING, dataset.training)]
    if dataset.validation is not None:
        files.append((VALIDATION, dataset.validation))
    operations: list[hub.CommitOperationAdd | hub.CommitOperationDelete] = [
        hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path)) for name, path in files
    ]
    try:
        client.create_repo(repo, repo_type="dataset", exist_ok=True)
        if dataset.validation is None and client.file_exists(repo, VALIDATION, repo_type="dataset"):
            operations.append(hub.CommitOperationDelete(path_in_repo=VALIDATION))  # of an earlier run
        # if nothing changed, the client creates no commit and returns the last one
        revision = client.create_commit(repo, operations=operations, repo_type="dataset", commit_message=message).oid
    except Exception as error:  # the client raises errors of its HTTP library, which differ between versions
        status = getattr(getattr(error, "response", None), "status_code", None)
        words = f"{host}/v1/hf: upload to {repo}: {type(error).__name__}: {str(error)[:500]}"
        # Status codes for which a retry does not help.
        if isinstance(status, int) and status < 500 and status not in (408, 429):
            hint = ": check backend.nemo_customizer.hf_token and the namespace" if status in (401, 403) else ""
            raise ServiceError(words + hint, status=status) from error
        raise Unreachable(words) from error
    if not revision:
        raise BackendError(f"{repo}: the data store did not say which revision the upload made")
    return str(revision)

"""Creates jobs from requests. Base model, dataset revision and configuration are pinned on submission."""

import re
from typing import Any

from sqlalchemy.engine import Connection, RowMapping

from pairwright.service.api_errors import Refusal
from pairwright.service.request_models import DatasetReference, JobBody
from pairwright.service.rows import entities, repositories
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.entities import check_model_name, check_name, new_id, split_reference
from pairwright.service.rows.repositories import Commit
from pairwright.service.run.base_models import find_target, train_section, warnings_of

# hf://datasets/NAMESPACE/NAME, with @COMMIT for one revision.
_FILES_URL = re.compile(r"hf://datasets/([^/@]+)/([^/@]+)(?:@([A-Za-z0-9]+))?")
# Folders of a dataset, and the split that their files belong to.
SPLITS = {"training": "train", "validation": "validation"}
Document = dict[str, Any]


def check_files_url(url: str, field: str) -> tuple[str, str, str]:
    """Parse `hf://datasets/<ns>/<name>[@<commit>]` into namespace, name and revision."""
    match = _FILES_URL.fullmatch(url)
    if match is None:
        raise Refusal(
            422, "bad_files_url", f"{field}: got {url[:200]!r}, expected hf://datasets/<namespace>/<name>[@<commit>]"
        )
    return check_name(match[1], field), check_name(match[2], field), match[3] or repositories.MAIN


def submit(connection: Connection, body: JobBody, caller: Caller, request: jobs.Request) -> RowMapping:
    """Create the job of a request, or return the one that an earlier attempt created."""
    # Before any check: what the first request was answered with must not depend on what changed since.
    repeated = jobs.find_repeat(connection, request)
    if repeated is not None:
        caller.check(repeated["namespace"], write=True)
        return repeated
    config = check_model_name(body.config, "config")
    section = train_section(body.hyperparameters)
    reference = _reference(body.dataset)
    namespace = check_name(body.namespace or reference.namespace, "namespace")
    caller.check(namespace, write=True)
    target = find_target(connection, config)
    dataset, (source, commit) = _dataset(connection, reference, caller)
    identity = new_id("cust")
    files = _files(commit, source)
    document: Document = {
        "id": identity,
        "name": check_name(body.name, "name") if body.name is not None else None,
        "namespace": namespace,
        "project": body.project,
        "description": body.description,
        "config": body.config,
        "dataset": dataset,
        "hyperparameters": body.hyperparameters.model_dump(exclude_none=True),
        # Copied, so that the job still tells it when the target has changed.
        "config_snapshot": {
            "base_model": target["base_model"],
            "max_seq_length": target["max_seq_length"],
            "precision": "fp32",
            "training_option": {
                "training_type": body.hyperparameters.training_type,
                "finetuning_type": body.hyperparameters.finetuning_type,
                "num_gpus": 0,
                "micro_batch_size": 1,
            },
            "dataset_schema": None,
            "prompt_template": None,
        },
        "output_model": _output_model(body, target, namespace, reference, identity),
        "warnings": warnings_of(body.hyperparameters, body.integrations),
        "integrations": body.integrations,
        "ownership": body.ownership,
        "custom_fields": body.custom_fields,
        "dataset_parameters": body.dataset_parameters,
        # For the worker; clients do not see it.
        "work": {
            "model": target["model_path"],
            "training_type": body.hyperparameters.training_type,
            "seed": body.hyperparameters.seed,
            "train": section,
            "files": files,
        },
    }
    return jobs.insert(connection, document, request)


def _reference(given: str | DatasetReference) -> DatasetReference:
    if isinstance(given, DatasetReference):
        return given
    if given.startswith("hf://"):
        return DatasetReference(files_url=given)
    namespace, name = split_reference(given, "dataset") if "/" in given else ("default", check_name(given, "dataset"))
    return DatasetReference(name=name, namespace=namespace)


def _dataset(
    connection: Connection, reference: DatasetReference, caller: Caller
) -> tuple[Document, tuple[str, Commit]]:
    """Return the dataset for the API document, and its URL and commit to train on."""
    url = reference.files_url
    if url is None:
        if reference.name is None:
            raise Refusal(422, "no_dataset", "dataset: expected a name and a namespace, or a files_url")
        check_name(reference.namespace, "dataset.namespace")
        check_name(reference.name, "dataset.name")
        caller.check(reference.namespace, write=False)
        known = entities.find(connection, entities.DATASET, reference.namespace, reference.name)
        # A dataset that is not registered may still be a repository of that name.
        url = f"hf://datasets/{reference.namespace}/{reference.name}" if known is None else str(known["files_url"])
    namespace, name, revision = check_files_url(url, "dataset.files_url")
    caller.check(namespace, write=False)
    try:
        commit = repositories.commit_at(connection, namespace, name, revision)
    except Refusal as refusal:
        raise Refusal(422, "dataset_not_found", f"dataset: {refusal.message}; upload it before the job") from None
    # The commit, whatever was asked for: an upload that comes later does not change the job.
    source = f"hf://datasets/{namespace}/{name}@{commit.oid}"
    reference_fields = {
        "name": reference.name or name,
        "namespace": reference.namespace if reference.name else namespace,
    }
    return {**reference_fields, "files_url": source}, (source, commit)


def _files(found: Commit, source: str) -> list[Document]:
    """List the JSON Lines files of the training and validation folders, in order."""
    files = [
        {"path": path, "split": SPLITS[folder], "sha256": blob.sha256, "size": blob.size}
        for path, blob in found.tree.items()
        # A list of one binds the name inside the comprehension.
        for folder in [path.partition("/")[0]]
        if folder in SPLITS and path.endswith(".jsonl")
    ]
    if not any(file["split"] == "train" and file["size"] for file in files):
        raise Refusal(
            422,
            "no_training_file",
            f"dataset: {source} has no training/*.jsonl with rows: upload training/training_file.jsonl",
        )
    return files


def _output_model(body: JobBody, target: Document, namespace: str, reference: DatasetReference, identity: str) -> str:
    if body.output_model is not None:
        model = check_model_name(body.output_model, "output_model")
        if model.partition("/")[0] != namespace or "/" not in model:
            raise Refusal(422, "bad_output_model", f"output_model: got {model!r}, expected {namespace}/NAME[@VERSION]")
        return model
    base = target["base_model"].rpartition("/")[2]
    dataset = reference.name or "dataset"
    return f"{namespace}/{base}-{dataset}-{body.hyperparameters.finetuning_type}@{identity}"

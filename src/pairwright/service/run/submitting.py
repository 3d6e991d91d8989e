"""Creates jobs from requests. Base model, dataset revision and configuration are pinned on submission."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header
from pydantic import BaseModel
from sqlalchemy.engine import Connection, RowMapping

from pairwright.errors import SourceError
from pairwright.service.access import CallerIs
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context
from pairwright.service.request_models import DatasetReference, JobBody
from pairwright.service.rows import entities, repositories
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_model_name, check_name, new_id, split_reference
from pairwright.service.rows.repositories import Commit
from pairwright.service.run.base_models import find_target
from pairwright.service.run.hyperparameters import train_section, warnings_of
from pairwright.service.run.training_data import DataFile, check_rows
from pairwright.service.run.usage import check_quota

# hf://datasets/NAMESPACE/NAME, with @COMMIT for one revision.
_FILES_URL = re.compile(r"hf://datasets/([^/@]+)/([^/@]+)(?:@([A-Za-z0-9]+))?")
RETRY_BACKOFF_SECONDS = 20.0  # maximum pause of a client between two attempts
# Folder or file name in a dataset -> split.
SPLITS = {"training": "train", "train": "train", "validation": "validation"}
Document = dict[str, Any]


def check_files_url(url: str, field: str) -> tuple[str, str, str]:
    """Parse `hf://datasets/<ns>/<name>[@<commit>]` into namespace, name and revision."""
    match = _FILES_URL.fullmatch(url)
    if match is None:
        raise Refusal(
            422, "bad_files_url", f"{field}: got {url[:200]!r}, expected hf://datasets/<namespace>/<name>[@<commit>]"
        )
    return check_name(match[1], field), check_name(match[2], field), match[3] or repositories.MAIN


@dataclass(frozen=True)
class Source:
    """The dataset of a job: its fields in the API document, and its files."""

    document: Document
    files: list[Document]


async def _identity_of(
    caller: CallerIs,
    idempotency_key: Annotated[str | None, Header(max_length=300)] = None,
    x_stainless_retry_count: Annotated[str | None, Header()] = None,
    x_stainless_read_timeout: Annotated[str | None, Header()] = None,
) -> Callable[[BaseModel], jobs.Request]:
    retry = x_stainless_retry_count or ""
    number = int(retry) if retry.isdigit() and len(retry) < 5 else 0
    try:
        timeout = min(3600.0, max(1.0, float(x_stainless_read_timeout or 60)))
    except ValueError:
        timeout = 60.0

    def hashed(text: str) -> str:
        # Separated by a null character, which no caller name contains.
        return hashlib.sha256(f"{caller.name}\0{text}".encode("utf-8", "replace")).hexdigest()

    return lambda body: jobs.Request(
        body_hash=hashed(body.model_dump_json()),
        key=None if idempotency_key is None else hashed(idempotency_key),
        attempt=number,
        # The n-th retry comes after at most n timeouts and n pauses.
        window_seconds=number * (timeout + RETRY_BACKOFF_SECONDS),
    )


# A function that returns the identity of a submission, to detect retries.
IdentityOf = Annotated[Callable[[BaseModel], jobs.Request], Depends(_identity_of)]


def submit(context: Context, body: JobBody, caller: Caller, request: jobs.Request) -> RowMapping:
    """Create the job of a request, or return the one that an earlier attempt created."""
    # Before any check: a retry gets the same answer, even if something changed since.
    repeated = find_repeat(context, caller, request)
    if repeated is not None:
        return repeated
    train_section(body.hyperparameters)
    with context.database.reading() as connection:
        source = _source(connection, _reference(body.dataset), caller)
        _config(connection, body)
    check_source(source, body.hyperparameters.training_type, context)
    return insert_once(context, body, caller, request, source=source)


def find_repeat(context: Context, caller: Caller, request: jobs.Request) -> RowMapping | None:
    if request.key is None and not request.attempt:
        return None
    with context.database.writing_one_at_a_time("jobs") as connection:
        repeated = jobs.find_repeat(connection, request)
    if repeated is not None:
        caller.check(repeated["namespace"], write=True)
    return repeated


def insert_once(
    context: Context,
    body: JobBody,
    caller: Caller,
    request: jobs.Request,
    *,
    source: Source,
    identity: str | None = None,
    more: Document | None = None,
) -> RowMapping:
    """Create a job, unless another attempt of the request did so meanwhile. `more`: further fields of its document."""
    namespace = check_name(body.namespace or _reference(body.dataset).namespace, "namespace")
    caller.check(namespace, write=True)
    check_quota(context, namespace, 0)
    # Serialized, so that concurrent retries create one job.
    with context.database.writing_one_at_a_time("jobs") as connection:
        row = jobs.find_repeat(connection, request)
        if row is None:
            document = _job_document(connection, body, namespace, source, identity or new_id("cust"))
            row = jobs.insert(connection, {**document, **(more or {})}, request)
    context.wake.set()
    return row


def check_source(source: Source, training_type: str, context: Context) -> None:
    """Read the rows of a dataset, up to a limit. Raises a 422 refusal with file, line and reason."""
    files = [DataFile(file["path"], context.blobs.path(file["sha256"]), file["split"]) for file in source.files]
    try:
        num_rows = check_rows(files, training_type, max_bytes=context.settings.check_bytes)
    except SourceError as error:
        message = context.settings.hide_paths(str(error))
        raise Refusal(422, "bad_row", message, details=[{"field": "dataset", "message": message}]) from None
    if not num_rows:
        raise Refusal(422, "no_training_file", "dataset: its training files have no rows")


def _job_document(connection: Connection, body: JobBody, namespace: str, source: Source, identity: str) -> Document:
    section = train_section(body.hyperparameters)
    target, max_seq_length, config_warnings = _config(connection, body)
    return {
        "id": identity,
        "name": check_name(body.name, "name") if body.name is not None else None,
        "namespace": namespace,
        "project": body.project,
        "description": body.description,
        "config": body.config if isinstance(body.config, str) else body.config.model_dump(exclude_none=True),
        "dataset": source.document,
        "hyperparameters": body.hyperparameters.model_dump(exclude_none=True),
        # Copied, so that the job is unaffected by changes of the target.
        "config_snapshot": {
            "base_model": target["base_model"],
            "max_seq_length": max_seq_length,
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
        "output_model": _output_model(body, target, namespace, _reference(body.dataset), identity),
        "warnings": [*warnings_of(body.hyperparameters, body.integrations), *config_warnings],
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
            "max_length": max_seq_length,
            "files": source.files,
        },
    }


def _config(connection: Connection, body: JobBody) -> tuple[Document, int, list[dict[str, str]]]:
    """Return the base model of a job, its maximum sequence length, and warnings."""
    config = body.config
    if isinstance(config, str):
        target = find_target(connection, check_model_name(config, "config"))
        return target, int(target["max_seq_length"]), []
    name = config.target
    if isinstance(name, dict):
        plain, namespace = name.get("name") or name.get("base_model"), name.get("namespace")
        name = f"{namespace}/{plain}" if namespace and plain and "/" not in str(plain) else plain
    name = name or (f"{config.namespace}/{config.name}" if config.namespace and config.name else config.name)
    if not isinstance(name, str):
        raise Refusal(422, "unknown_config", "config.target: expected the name of a base model")
    for field in ("prompt_template", "chat_prompt_template"):
        if getattr(config, field) is not None:
            message = "rows are rendered with the chat template of the base model: leave it out"
            raise Refusal(422, "unsupported_config", f"config.{field}: {message}")
    asked = body.hyperparameters.training_type, body.hyperparameters.finetuning_type
    options = [(option.get("training_type"), option.get("finetuning_type")) for option in config.training_options]
    if options and asked not in options:
        message = f"config.training_options: none is {asked[0]} with {asked[1]}, as the hyperparameters say"
        raise Refusal(422, "unsupported_config", message)
    target = find_target(connection, check_model_name(name, "config.target"))
    limit = int(target["max_seq_length"])
    if config.max_seq_length is not None and config.max_seq_length > limit:
        message = f"config.max_seq_length: got {config.max_seq_length}, {target['name']!r} has a context of {limit}"
        raise Refusal(422, "unsupported_config", message)
    warnings = []
    if config.pod_spec or config.training_precision not in (None, "fp32"):
        explanation = "jobs run on the service's own machine, in fp32"
        warnings.append({"message": "pod_spec and training_precision have no effect", "explanation": explanation})
    return target, config.max_seq_length or limit, warnings


def _reference(dataset: str | DatasetReference) -> DatasetReference:
    if isinstance(dataset, DatasetReference):
        return dataset
    if dataset.startswith("hf://"):
        return DatasetReference(files_url=dataset)
    namespace, name = (
        split_reference(dataset, "dataset") if "/" in dataset else ("default", check_name(dataset, "dataset"))
    )
    return DatasetReference(name=name, namespace=namespace)


def _source(connection: Connection, reference: DatasetReference, caller: Caller) -> Source:
    url = reference.files_url
    if url is None:
        if reference.name is None:
            raise Refusal(422, "no_dataset", "dataset: expected a name and a namespace, or a files_url")
        check_name(reference.namespace, "dataset.namespace")
        check_name(reference.name, "dataset.name")
        caller.check(reference.namespace, write=False)
        known = entities.find(connection, entities.DATASET, reference.namespace, reference.name)
        # An unregistered dataset may be a repository of that name.
        url = f"hf://datasets/{reference.namespace}/{reference.name}" if known is None else str(known["files_url"])
    namespace, name, revision = check_files_url(url, "dataset.files_url")
    caller.check(namespace, write=False)
    try:
        commit = repositories.commit_at(connection, namespace, name, revision)
    except Refusal as refusal:
        raise Refusal(422, "dataset_not_found", f"dataset: {refusal.message}; upload it before the job") from None
    # Pinned to the commit, so that later uploads do not change the job.
    source = f"hf://datasets/{namespace}/{name}@{commit.oid}"
    document = {
        "name": reference.name or name,
        "namespace": reference.namespace if reference.name else namespace,
        "files_url": source,
    }
    return Source(document, _files(commit, source))


def _files(commit: Commit, source: str) -> list[Document]:
    files = [
        {"path": path, "split": split, "sha256": blob.sha256, "size": blob.size}
        for path, blob in commit.tree.items()
        # A list of one binds the name inside the comprehension.
        for split in [_split_of(path)]
        if split is not None
    ]
    if not any(file["split"] == "train" and file["size"] for file in files):
        message = f"dataset: {source} has no training/*.jsonl with rows: upload training/training_file.jsonl"
        raise Refusal(422, "no_training_file", message)
    return files


def _split_of(path: str) -> str | None:
    """Return the split of a file by its path; None for other files.

    >>> [_split_of(path) for path in ("training/a.jsonl", "validation.jsonl", "data/train-00000-of-00001.parquet", "x")]
    ['train', 'validation', 'train', None]
    """
    if not path.endswith((".jsonl", ".parquet")):
        return None
    first, _, rest = path.partition("/")
    if first == "data" and rest:
        # Names of `datasets.push_to_hub`.
        first = rest.partition("-")[0]
    elif not rest:
        first = path.rpartition(".")[0]
    return SPLITS.get(first)


def _output_model(body: JobBody, target: Document, namespace: str, reference: DatasetReference, identity: str) -> str:
    if body.output_model is not None:
        model = check_model_name(body.output_model, "output_model")
        if model.partition("/")[0] != namespace or "/" not in model:
            raise Refusal(422, "bad_output_model", f"output_model: got {model!r}, expected {namespace}/NAME[@VERSION]")
        return model
    base = target["base_model"].rpartition("/")[2]
    dataset = reference.name or "dataset"
    return f"{namespace}/{base}-{dataset}-{body.hyperparameters.finetuning_type}@{identity}"

"""Base models (targets) that jobs can train.

Targets are added with `pairwright serve targets add NAME DIR`, under the config name that clients send, for example
`meta/llama-3.2-1b-instruct@v1.0.0+A100`. The model folder is not copied; it is checked when the target is added and
again when a job is submitted.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from sqlalchemy.engine import Connection

from pairwright.errors import ConfigError
from pairwright.jobs.doctor.memory import count_parameters
from pairwright.service.api_errors import Refusal
from pairwright.service.rows import entities
from pairwright.service.rows.names import check_model_name
from pairwright.service.run.hyperparameters import FINETUNING_TYPES, TRAINING_TYPES

_PRECISION = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "I8": "int8"}
Document = dict[str, Any]


def add_target(connection: Connection, name: str, folder: Path) -> Document:
    check_model_name(name, "NAME")
    folder = folder.resolve()
    settings = _settings(folder)
    num_parameters, precision = _weights(folder)
    # NAME is BASE_MODEL[@VERSION][+HARDWARE].
    target, _, hardware = name.partition("+")
    base, _, version = target.partition("@")
    document = {
        "name": name,
        "namespace": base.partition("/")[0] if "/" in base else "default",
        "target": target,
        "base_model": base,
        "version": version,
        "hardware": hardware,
        "model_path": str(folder),
        "num_parameters": num_parameters,
        "precision": precision,
        "max_seq_length": _context(settings),
        "model_type": str(settings.get("model_type", "unknown")),
    }
    return entities.insert(connection, entities.TARGET, "", name, document)


def find_target(connection: Connection, config: str) -> Document:
    """Return the target of a config name. A name without version or hardware must match exactly one target."""
    everything = entities.every(connection, entities.TARGET)
    exact = [target for target in everything if target["name"] == config]
    matches = exact or [target for target in everything if config in (target["target"], target["base_model"])]
    if len(matches) != 1:
        known = ", ".join(sorted(target["name"] for target in everything)) or "none yet: pairwright serve targets add"
        what = "is not known" if not matches else "names several targets"
        raise Refusal(422, "unknown_config", f"config: {config!r} {what}; known configs: {known}")
    if not Path(matches[0]["model_path"], "config.json").is_file():
        raise Refusal(409, "target_gone", f"config: the folder of {config!r} is not there any more: ask the operator")
    return matches[0]


def config_document(target: Document) -> Document:
    return {
        "id": target["id"].replace("cust-target", "cust-config"),
        "name": target["name"].partition("/")[2] or target["name"],
        "namespace": target["namespace"],
        "description": f"{target['model_type']} with {target['num_parameters']:,} parameters",
        "target": target_document(target),
        "training_options": [
            {"training_type": training, "finetuning_type": tuning, "num_gpus": 0, "micro_batch_size": 1}
            for training in TRAINING_TYPES
            for tuning in FINETUNING_TYPES
        ],
        "training_precision": "fp32",
        "max_seq_length": target["max_seq_length"],
        "prompt_template": None,
        "created_at": target["created_at"],
        "updated_at": target["updated_at"],
        "custom_fields": {},
    }


def target_document(target: Document) -> Document:
    return {
        "id": target["id"],
        "name": target["target"].partition("/")[2] or target["target"],
        "namespace": target["namespace"],
        "base_model": target["base_model"],
        "model_path": Path(target["model_path"]).name,  # clients do not see the location of the folder
        "num_parameters": target["num_parameters"],
        "precision": target["precision"],
        "model_type": "hf",
        "enabled": True,
        "status": "ready",
        "created_at": target["created_at"],
        "updated_at": target["updated_at"],
    }


def _settings(folder: Path) -> Document:
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: not a model's folder: config.json: {error}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{folder}: not a model's folder: config.json holds no object")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        raise ConfigError(f"{folder}: no tokenizer beside the model: save it there too (tokenizer.save_pretrained)")
    return settings


def _weights(folder: Path) -> tuple[int, str]:
    try:
        counts = count_parameters(folder)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder}: a file is not safetensors: {error}") from None
    if not counts:
        raise ConfigError(f"{folder}: no *.safetensors: save the model with save_pretrained(safe_serialization=True)")
    kind = counts.most_common(1)[0][0]
    return counts.total(), _PRECISION.get(kind, kind.lower())


def _context(settings: Document) -> int:
    for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
        value = settings.get(key)
        if isinstance(value, int) and value > 0:
            return value
    # A conservative default if no key is set.
    return 2048

"""Translate hyperparameters of a request to the section `train`; unsupported values are refused."""

from typing import Any

import pydantic

from pairwright.config.customizer_config import follow_average
from pairwright.config.train_config import TrainConfig
from pairwright.service.api_errors import Refusal
from pairwright.service.request_models import Dpo, Hyperparameters

TRAINING_TYPES = ("dpo", "sft")
FINETUNING_TYPES = ("lora", "lora_merged", "all_weights")
SAVE_EVERY = 100  # updates that a crash loses at most


def train_section(parameters: Hyperparameters) -> dict[str, Any]:
    """Translate hyperparameters to the section `train`. Raises a 422 refusal for unsupported values."""
    _check(parameters)
    dpo = parameters.dpo or Dpo()
    section: dict[str, Any] = {
        "channels": {"dpo": float(parameters.training_type == "dpo"), "sft": float(parameters.training_type == "sft")},
        "finetuning_type": parameters.finetuning_type,
        "epochs": parameters.epochs,
        "batch_size": parameters.batch_size,
        "learning_rate": parameters.learning_rate,
        # None, 0 and -1 mean no limit.
        "max_steps": parameters.max_steps if parameters.max_steps is not None and parameters.max_steps > 0 else None,
        "warmup_steps": parameters.warmup_steps,
        "weight_decay": parameters.weight_decay,
        "optimizer": "adamw",
        "schedule": "cosine" if parameters.optimizer.endswith("cosine_annealing") else "constant",
        "adam_beta1": parameters.adam_beta1,
        "adam_beta2": parameters.adam_beta2,
        "min_learning_rate": parameters.min_learning_rate or 0.0,
        "val_check_interval": parameters.val_check_interval,
        "log_every_n_steps": parameters.log_every_n_steps or 1,
        "save_every": SAVE_EVERY,
        "max_grad_norm": dpo.max_grad_norm,
        "dpo": {"contrast": "all"} | follow_average(dpo.model_dump(exclude={"max_grad_norm"})),
    }
    if parameters.lora is not None:
        section["lora"] = parameters.lora.model_dump()
    try:
        # Bounds of the trainer are checked now, not when the job starts.
        TrainConfig.model_validate(section)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, ("hyperparameters", *problem["loc"])))
        raise _refuse_value(where, str(problem["msg"])) from None
    return section


def warnings_of(parameters: Hyperparameters, integrations: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return warnings for options without effect; they are shown in the job."""
    warnings = []
    if parameters.sequence_packing_enabled:
        explanation = "batches are cut by tokens already; the result is the same"
        warnings.append({"message": "sequence_packing_enabled has no effect", "explanation": explanation})
    if integrations:
        explanation = "metrics are in the job's status and its run folder"
        warnings.append({"message": "integrations are not carried out by this service", "explanation": explanation})
    for name, value in (parameters.sft.model_dump() if parameters.sft is not None else {}).items():
        if value:
            explanation = "this trainer trains without dropout in the model; lora.adapter_dropout is applied"
            warnings.append({"message": f"sft.{name} has no effect", "explanation": explanation})
    if parameters.lora is not None and parameters.finetuning_type == "all_weights":
        warnings.append({"message": "lora has no effect", "explanation": "finetuning_type is all_weights"})
    if parameters.dpo is not None and parameters.training_type != "dpo":
        warnings.append({"message": "dpo has no effect", "explanation": f"training_type is {parameters.training_type}"})
    return warnings


def _check(parameters: Hyperparameters) -> None:
    if parameters.training_type not in TRAINING_TYPES:
        raise _refuse_value(
            "hyperparameters.training_type", f"got {parameters.training_type!r}, this service trains dpo and sft"
        )
    for name in ("grpo", "distillation"):
        if getattr(parameters, name) is not None:
            raise _refuse_value(f"hyperparameters.{name}", "this service trains dpo and sft")
    if parameters.optimizer.startswith("adam_") and parameters.weight_decay:
        message = "Adam with weight_decay is not AdamW: use the adamw optimizer, or weight_decay 0 (where they agree)"
        raise _refuse_value("hyperparameters.optimizer", message)


def _refuse_value(where: str, message: str) -> Refusal:
    details = [{"field": where, "message": message}]
    return Refusal(422, "unsupported_hyperparameter", f"{where}: {message}", details=details)

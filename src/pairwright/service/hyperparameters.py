"""A job's hyperparameters as our trainer's `train` section. What cannot be done exactly is refused."""

from typing import Any

import pydantic

from pairwright.config.train import TrainConfig
from pairwright.service.bodies import Dpo, Hyperparameters
from pairwright.service.refusals import Refusal

TRAINING_TYPES = ("dpo", "sft")
FINETUNING_TYPES = ("lora", "lora_merged", "all_weights")
SAVE_EVERY = 100  # updates that a crash may cost


def train_section(given: Hyperparameters) -> dict[str, Any]:
    """The configuration that a job trains with."""
    _check(given)
    dpo = given.dpo or Dpo()
    section: dict[str, Any] = {
        "channels": {"dpo": float(given.training_type == "dpo"), "sft": float(given.training_type == "sft")},
        "finetuning_type": given.finetuning_type,
        "epochs": given.epochs,
        "batch_size": given.batch_size,
        "learning_rate": given.learning_rate,
        "max_steps": given.max_steps if given.max_steps is not None and given.max_steps > 0 else None,
        "warmup_steps": given.warmup_steps,
        "weight_decay": given.weight_decay,
        "optimizer": "adamw",
        "schedule": "cosine" if given.optimizer.endswith("cosine_annealing") else "constant",
        "adam_beta1": given.adam_beta1,
        "adam_beta2": given.adam_beta2,
        "min_learning_rate": given.min_learning_rate or 0.0,
        "val_check_interval": given.val_check_interval,
        "log_every_n_steps": given.log_every_n_steps,
        "save_every": SAVE_EVERY,
        "max_grad_norm": dpo.max_grad_norm,
        "dpo": dpo.model_dump(exclude={"max_grad_norm"}),
    }
    if given.lora is not None:
        section["lora"] = given.lora.model_dump()
    try:
        TrainConfig.model_validate(section)
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, ("hyperparameters", *problem["loc"])))
        raise _refused(where, str(problem["msg"])) from None
    return section


def warnings_of(given: Hyperparameters, integrations: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What was asked for and makes no difference here; shown in the job."""
    found = []
    if given.sequence_packing_enabled:
        explanation = "batches are cut by tokens already; the result is the same"
        found.append({"message": "sequence_packing_enabled has no effect", "explanation": explanation})
    if integrations:
        explanation = "metrics are in the job's status and its run folder"
        found.append({"message": "integrations are not carried out by this service", "explanation": explanation})
    if given.lora is not None and given.finetuning_type == "all_weights":
        found.append({"message": "lora has no effect", "explanation": "finetuning_type is all_weights"})
    if given.dpo is not None and given.training_type != "dpo":
        found.append({"message": "dpo has no effect", "explanation": f"training_type is {given.training_type}"})
    return found


def _check(given: Hyperparameters) -> None:
    if given.training_type not in TRAINING_TYPES:
        raise _refused("hyperparameters.training_type", f"got {given.training_type!r}, this service trains dpo and sft")
    for name in ("grpo", "distillation"):
        if getattr(given, name) is not None:
            raise _refused(f"hyperparameters.{name}", "this service trains dpo and sft")
    if given.sft is not None:
        for name, value in given.sft.model_dump().items():
            if value:
                raise _refused(f"hyperparameters.sft.{name}", f"got {value!r}: dropout is off here; leave it out")
    if given.optimizer.startswith("adam_") and given.weight_decay:
        message = "Adam with weight_decay is not AdamW: use the adamw optimizer, or weight_decay 0 (where they agree)"
        raise _refused("hyperparameters.optimizer", message)


def _refused(where: str, message: str) -> Refusal:
    details = [{"field": where, "message": message}]
    return Refusal(422, "unsupported_hyperparameter", f"{where}: {message}", details=details)

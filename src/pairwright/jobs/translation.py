"""Translates the section `train` for external trainers, and rejects options that they do not support.

An ignored option would silently change the training, so every unsupported option is an error.
"""

import math
from pathlib import Path

from pairwright.config.train_config import TrainConfig
from pairwright.errors import ConfigError
from pairwright.jobs.job import BackendError
from pairwright.pairs.pair_table import read_curriculum
from pairwright.tokens import ChatTokenizer, TokensError


def refuse_options(train: TrainConfig, asked: dict[str, bool], *, trainer: str) -> None:
    """Raise if an option is set that no external trainer supports, or one in `asked`, which `trainer` does not."""
    asked = {
        **asked,
        "train.reference": train.reference != "initial",
        "train.quantization": train.quantization != "none",
        "train.early_stopping_patience": train.early_stopping_patience is not None,
        "train.dump_batches": train.dump_batches > 0,
        "train.shuffle_by": train.shuffle_by is not None,
        "train.finetuning_type lora_merged": train.finetuning_type == "lora_merged",
    }
    if keys := [key for key, is_asked in asked.items() if is_asked]:
        raise ConfigError(
            f"{trainer} cannot do what these ask for: {', '.join(keys)}: leave them out, or train with "
            f"backend.name: local"
        )


def has_curriculum_order(pairs: Path, *, trainer: str, keeps_order: bool = False) -> bool:
    """Return whether a pairs table is in curriculum order. Raises if `trainer` shuffles it (not `keeps_order`)."""
    curriculum = read_curriculum(pairs)
    if curriculum is not None and not keeps_order:
        raise ConfigError(
            f"{pairs}: the pairs have the order of a curriculum ({curriculum}), which {trainer} would not follow: "
            "train with backend.name: local, or build them without pairs.curriculum"
        )
    return curriculum is not None


def micro_batch(train: TrainConfig, *, num_gpus: int, trainer: str) -> tuple[int, int]:
    """Return pairs per device and pass, and passes per step, such that a step has exactly `batch_size` pairs."""
    if train.batch_size % num_gpus:
        raise ConfigError(
            f"train.batch_size: {train.batch_size} pairs cannot be shared by {num_gpus} GPUs of {trainer}"
        )
    share = train.batch_size // num_gpus
    if train.gradient_accumulation_steps is not None:
        size, rest = divmod(share, train.gradient_accumulation_steps)
        if rest:
            raise ConfigError(
                f"train.gradient_accumulation_steps: {train.gradient_accumulation_steps} does not divide {share}"
            )
        return size, train.gradient_accumulation_steps
    # The largest size up to the wanted one that divides the share of a device.
    wanted = min(train.micro_batch_size or 1, share)
    size = next(number for number in range(wanted, 0, -1) if share % number == 0)
    return size, share // size


def steps_between(interval: float | None, steps_per_epoch: int) -> int:
    """Convert an interval to steps: below 1 it is a fraction of an epoch, None is one epoch.

    >>> steps_between(0.25, 80), steps_between(10, 80), steps_between(None, 80)
    (20, 10, 80)
    """
    if interval is None:
        return steps_per_epoch
    return max(1, round(interval * steps_per_epoch)) if interval < 1 else round(interval)


def steps_per_epoch(num_pairs: int, train: TrainConfig, *, keeps_rest: bool) -> int:
    steps = math.ceil(num_pairs / train.batch_size) if keeps_rest else num_pairs // train.batch_size
    if not steps:
        raise ConfigError(
            f"train.batch_size: {train.batch_size} is more than the {num_pairs} pairs for training, and the trainer "
            f"leaves out a step that is not full: choose a smaller one"
        )
    return steps


def model_folder(model: str, *, trainer: str, needs_template: bool = True) -> str:
    """Return the model for the trainer: a local folder as an absolute path, other names unchanged."""
    folder = Path(model)
    # A name on the Hugging Face Hub, which the trainer resolves itself.
    if not folder.is_dir():
        return model
    if (folder / "adapter_config.json").exists():
        raise BackendError(f"{folder}: is an adapter; {trainer} wants the whole model: merge it first")
    try:
        tokenizer = ChatTokenizer.from_folder(folder)
    except TokensError as error:
        raise BackendError(f"{error}; {trainer} would not train with this model's own template") from error
    if needs_template and not tokenizer.has_template:
        raise BackendError(f"{folder}: no chat template, and {trainer} would render the pairs with one: add it there")
    return str(folder.resolve())

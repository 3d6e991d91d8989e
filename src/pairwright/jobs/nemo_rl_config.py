"""Builds the complete configuration for `examples/run_dpo.py` of NeMo RL from the section `train`.

It does not inherit from NeMo RL's dpo.yaml, which names an NVIDIA dataset that would stay in use if only a path were
added, and which stops after 150 steps. Model and tokenizer share one path. The keys are those of NeMo RL 0.6 and later,
where a dataset is `data.train` with `dataset_name` and `data_path`; since 0.7 NeMo RL also checks their types.
"""

import math
from pathlib import Path
from typing import Any

from pairwright.config import Config
from pairwright.config.customizer_config import follow_average
from pairwright.config.train_config import LEARNING_RATE, TrainConfig
from pairwright.errors import ConfigError
from pairwright.jobs.dataset import Dataset
from pairwright.jobs.translation import micro_batch, steps_between, steps_per_epoch
from pairwright.records.messages import Json

# Keys that `overrides` must not change: they define the data, the model and the output.
_OURS = ("data", "policy.model_name", "policy.tokenizer", "checkpointing.checkpoint_dir", "checkpointing.enabled")
_CLASSES = {"preference": "PreferenceDataset", "binary": "BinaryPreferenceDataset"}


def nemo_rl_config(config: Config, dataset: Dataset, *, model: str, output: Path) -> Json:
    """Build the configuration, with the overrides of the user applied last."""
    train, settings = config.train, config.backend.nemo_rl
    max_length = config.tokens.pair_length or settings.max_total_sequence_length
    num_gpus = settings.gpus_per_node * settings.num_nodes
    size, _ = micro_batch(train, num_gpus=num_gpus, trainer="NeMo RL")
    per_epoch = steps_per_epoch(dataset.num_training, train, keeps_rest=False)
    validated = max(size * num_gpus, 1)
    # No `split`: NeMo RL uses the only split of a JSONL file, and rejects null.
    source: Json = {"dataset_name": _CLASSES[settings.dataset]}
    if settings.dataset == "binary":
        source |= {"prompt_key": "prompt", "chosen_key": "chosen", "rejected_key": "rejected"}
    name = output.name or "pairwright"
    tree: Json = {
        "dpo": {
            "max_num_epochs": train.epochs,
            "max_num_steps": train.max_steps or train.epochs * per_epoch,
            "val_period": steps_between(train.val_check_interval, per_epoch) if dataset.validation else 0,
            "val_batches": math.ceil(dataset.num_validation / validated) if dataset.validation else 0,
            "val_global_batch_size": validated,
            "val_micro_batch_size": size,
            "val_at_start": dataset.validation is not None,
            "val_at_end": dataset.validation is not None,
            "seed": config.seed,
            "reference_policy_kl_penalty": train.dpo.beta,
            "preference_average_log_probs": train.dpo.preference_average_log_probs,
            "sft_average_log_probs": follow_average(train.dpo.model_dump(exclude_unset=True))["sft_average_log_probs"],
            "preference_loss_weight": train.dpo.preference_loss_weight,
            "sft_loss_weight": train.dpo.foreign_sft_weight,
        },
        "checkpointing": {
            "enabled": True,
            "checkpoint_dir": str(output / "checkpoints"),
            # `val:` and the name under which run_dpo.py logs the validation loss.
            "metric_name": "val:validation-default_loss" if dataset.validation else None,
            "higher_is_better": False,
            "keep_top_k": train.keep_top_k,
            "save_period": train.save_every or per_epoch,
            "checkpoint_must_save_by": None,
        },
        "policy": _policy(train, model=model, size=size, per_epoch=per_epoch, max_length=max_length),
        "data": {
            "max_input_seq_length": max_length,
            "shuffle": train.shuffle,
            "num_workers": 1,
            "train": {**source, "data_path": str(dataset.training.resolve())},
            "validation": {**source, "data_path": str(dataset.validation.resolve())} if dataset.validation else None,
            "default": {"prompt_file": None, "system_prompt_file": None},
        },
        "logger": {
            "log_dir": str(output / "logs"),
            "wandb_enabled": "wandb" in train.report_to,
            "tensorboard_enabled": "tensorboard" in train.report_to,
            "mlflow_enabled": "mlflow" in train.report_to,
            "swanlab_enabled": False,
            "monitor_gpus": False,
            "num_val_samples_to_print": 0,
            "wandb": {"project": "pairwright", "name": name},
            "swanlab": {"project": "pairwright", "name": name},
            "tensorboard": {"log_dir": str(output / "tensorboard")},
            "mlflow": {"experiment_name": "pairwright", "run_name": name},
            "gpu_monitoring": {"collection_interval": 10, "flush_interval": 10},
        },
        "cluster": {"gpus_per_node": settings.gpus_per_node, "num_nodes": settings.num_nodes},
    }
    for key, value in settings.overrides.items():
        _override(tree, key, value)
    return tree


def _policy(train: TrainConfig, *, model: str, size: int, per_epoch: int, max_length: int) -> Json:
    targets = list(train.lora.target_modules or [])
    # The file inherits nothing, so disabled features are explicit.
    return {
        "model_name": model,
        "tokenizer": {"name": model, "chat_template_kwargs": None},
        "train_global_batch_size": train.batch_size,
        "train_micro_batch_size": size,
        "max_total_sequence_length": max_length,
        "precision": "bfloat16" if train.precision == "bf16" else "float32",
        "offload_optimizer_for_logprob": False,
        "dtensor_cfg": {
            "enabled": True,
            # Only the v2 DTensor worker supports LoRA; v1 fails at the start.
            "_v2": train.finetuning_type == "lora",
            "env_vars": {},
            "cpu_offload": False,
            "sequence_parallel": False,
            "activation_checkpointing": train.gradient_checkpointing,
            "tensor_parallel_size": 1,
            "context_parallel_size": 1,
            "custom_parallel_plan": None,
            "clear_cache_every_n_steps": None,
            "automodel_kwargs": {},
            "lora_cfg": {
                "enabled": train.finetuning_type == "lora",
                "target_modules": targets,
                "exclude_modules": [],
                # Without named modules, all linear layers get an adapter.
                "match_all_linear": not targets,
                "dim": train.lora.adapter_dim,
                "alpha": int(train.lora.alpha),
                "dropout": train.lora.adapter_dropout,
                "dropout_position": "pre",
                "lora_A_init": "xavier",
                "use_triton": False,
            },
        },
        "megatron_cfg": {"enabled": False},
        "dynamic_batching": {"enabled": False},
        "sequence_packing": {"enabled": False},
        "make_sequence_length_divisible_by": 1,
        "max_grad_norm": train.max_grad_norm or None,
        "optimizer": {
            "name": "torch.optim.AdamW",
            "kwargs": {
                "lr": train.learning_rate or LEARNING_RATE,
                "weight_decay": train.weight_decay,
                "betas": [train.adam_beta1, train.adam_beta2],
                "eps": train.adam_epsilon,
                "foreach": False,
                "fused": False,
            },
        },
        "scheduler": _scheduler(train, train.max_steps or train.epochs * per_epoch),
    }


def _scheduler(train: TrainConfig, num_steps: int) -> list[Json]:
    """Build the learning rate schedule as a sequence of torch schedulers, warm-up first."""
    rest = max(1, num_steps - train.warmup_steps)
    end = train.min_learning_rate / (train.learning_rate or LEARNING_RATE)
    after: dict[str, Json] = {
        "constant": {"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": {"factor": 1.0, "total_iters": rest}},
        "linear": {
            "name": "torch.optim.lr_scheduler.LinearLR",
            "kwargs": {"start_factor": 1.0, "end_factor": end, "total_iters": rest},
        },
        "cosine": {
            "name": "torch.optim.lr_scheduler.CosineAnnealingLR",
            "kwargs": {"T_max": rest, "eta_min": train.min_learning_rate},
        },
    }
    if not train.warmup_steps:
        return [after[train.schedule], {"milestones": []}]
    # A factor of 0 is not allowed; this one reaches 1 in equal steps.
    warmup = {"start_factor": 1 / (train.warmup_steps + 1), "end_factor": 1.0, "total_iters": train.warmup_steps}
    return [
        {"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": warmup},
        after[train.schedule],
        {"milestones": [train.warmup_steps]},
    ]


def _override(tree: Json, dotted: str, value: Any) -> None:
    """Set a key given by dotted path. Keys that define the data, model or tokenizer of the job cannot be overridden."""
    if any(dotted == ours or dotted.startswith(f"{ours}.") for ours in _OURS):
        raise ConfigError(
            f"backend.nemo_rl.overrides: {dotted} would train other data, another model or another tokenizer than the "
            f"job says"
        )
    *parents, last = dotted.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"backend.nemo_rl.overrides: {dotted}: {parent!r} is a value, not a section")
    tree[last] = value

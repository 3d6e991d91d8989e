"""TRL backend: writes a dataset and a YAML file for `trl dpo`, and optionally runs the command.

TRL trains on every token after the prompt. Pairs whose sides contain tool results, or start with a message that the
model did not generate, would train on those, too; they are refused, unless the user accepts it.
"""

from pathlib import Path

import msgspec

from pairwright.config import Config
from pairwright.config.train_config import TrainConfig
from pairwright.errors import ConfigError
from pairwright.export.exporter import begins_with_text
from pairwright.jobs import local, process
from pairwright.jobs.dataset import Dataset, refuse_unfaithful, write_dataset
from pairwright.jobs.job import (
    Backend,
    Job,
    JobRequest,
    JobState,
    Say,
    Status,
    change_job,
    new_job,
    write_job,
    write_yaml,
)
from pairwright.jobs.local import PROCESS, launch, process_status, serve_result
from pairwright.jobs.translation import (
    has_curriculum_order,
    micro_batch,
    model_folder,
    refuse_untranslatable,
    steps_between,
    steps_per_epoch,
)
from pairwright.records.messages import Json
from pairwright.tokens import ChatTokenizer
from pairwright.tokens.message_dialect import takes_arguments_as_text

# Losses of our trainer that TRL's DPOTrainer has under the same name.
LOSSES = ("sigmoid", "hinge", "ipo", "robust", "apo_zero", "apo_down")
_OPTIMIZERS = {"adamw": "adamw_torch", "adafactor": "adafactor", "adamw_8bit": "adamw_bnb_8bit"}
# What decides what is trained on, and where the result goes, is not for `options`.
_OURS = (
    "dataset_name",
    "datasets",
    "dataset_config",
    "dataset_train_split",
    "dataset_test_split",
    "model_name_or_path",
    "output_dir",
    "config",
)


def submit(folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    """Export the pairs, write the configuration, and start `trl dpo` if requested."""
    if request.pairs is None:
        raise ConfigError("the trl backend trains on pairs: give --pairs DIR")
    process.refuse_running(folder / PROCESS)
    settings, train = config.backend.trl, config.train
    _check(train, settings.options)
    has_curriculum_order(request.pairs, trainer="TRL")
    model = model_folder(request.model, trainer="TRL", needs_template=not begins_with_text(request.pairs))
    files = folder / "exports" / "trl"
    dataset = write_dataset(
        request.pairs,
        files,
        target="trl",
        names=("train.jsonl", "validation.jsonl"),
        validation=settings.validation,
        seed=config.seed,
    )
    encodes_again = "arguments_as_text" in dataset.noted and _encodes_arguments_again(model)
    refuse_unfaithful(
        dataset,
        trainer="TRL",
        is_accepted=settings.accept_other_data,
        key="backend.trl.accept_other_data",
        also=("arguments_as_text",) if encodes_again else (),
    )
    say(f"exported {dataset} to {files}")
    path = (folder / "trl-dpo.yaml").resolve()
    tree = trl_config(config, dataset, model=model, output=(folder / "model").resolve())
    write_yaml(path, {**tree, **settings.options}, heading="Written by pairwright for `trl dpo --config FILE`.")
    command = [*settings.command, "dpo", "--config", str(path)]
    details = {
        "command": command,
        "config": str(path),
        "files": dataset.as_json(),
        "script": " ".join(command),
        "num_steps": _num_steps(train, dataset),
    }
    job = change_job(new_job("trl", model=request.model, pairs=request.pairs), details=details)
    if not request.launch:
        return write_job(folder, msgspec.structs.replace(job, state=JobState.PREPARED))
    return launch(folder, job, command, say=say)


def _encodes_arguments_again(model: str) -> bool:
    """Whether the chat template of a model would encode the JSON text of a call's arguments a second time."""
    if not Path(model).is_dir():
        return False
    tokenizer = ChatTokenizer.from_folder(model)
    return not takes_arguments_as_text(tokenizer, tokenizer.renderer(None))


def trl_config(config: Config, dataset: Dataset, *, model: str, output: Path) -> Json:
    """Translate a configuration to the options of `trl dpo`."""
    train, seed = config.train, config.seed
    # For one device: TRL takes the size of a micro batch and the number of passes a step.
    size, passes = micro_batch(train, num_gpus=1, trainer="TRL")
    per_epoch = steps_per_epoch(dataset.num_training, train, keeps_rest=True)
    tree: Json = {
        # A folder: `datasets` loads train.jsonl and validation.jsonl in it as splits of these names.
        "dataset_name": str(dataset.training.parent.resolve()),
        "dataset_train_split": "train",
        "dataset_test_split": "validation",
        "model_name_or_path": model,
        "output_dir": str(output),
        "num_train_epochs": train.epochs,
        # -1 means no limit in transformers.
        "max_steps": train.max_steps or -1,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": passes,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": train.schedule,
        "warmup_steps": train.warmup_steps,
        "optim": _OPTIMIZERS[train.optimizer],
        "adam_beta1": train.adam_beta1,
        "adam_beta2": train.adam_beta2,
        "adam_epsilon": train.adam_epsilon,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "loss_type": [train.dpo.loss],
        "loss_weights": [train.dpo.preference_loss_weight],
        "beta": train.dpo.beta,
        "label_smoothing": train.dpo.label_smoothing,
        "max_length": config.tokens.pair_length,  # null: TRL would cut at 1024 by itself
        "bf16": train.precision == "bf16",
        "gradient_checkpointing": train.gradient_checkpointing,
        "seed": seed,
        "data_seed": seed,
        "logging_steps": train.log_every_n_steps,
        "report_to": list(train.report_to) or "none",
        "save_strategy": "steps",
        "save_steps": train.save_every or per_epoch,
        # The best ones, and the last.
        "save_total_limit": train.keep_top_k + 1,
        "eval_strategy": "no" if dataset.validation is None else "steps",
        "eval_steps": steps_between(train.val_check_interval, per_epoch),
        "per_device_eval_batch_size": size,
    }
    return tree | (_lora(train) if train.finetuning_type == "lora" else {})


def status(folder: Path, job: Job, config: Config) -> Status:
    # Written by the final save, so it is there only when training was completed.
    model_file = "adapter_config.json" if config.train.finetuning_type == "lora" else "config.json"
    return process_status(folder, job, _progress, folder / "model" / model_file)


def deploy(folder: Path, job: Job, config: Config, say: Say) -> Json:
    return serve_result(folder, job, folder / "model", config, say)


def _check(train: TrainConfig, options: Json) -> None:
    """Raise for options that TRL does not support, or that would change the data or model of the job."""
    refuse_untranslatable(
        train,
        trainer="TRL",
        losses=LOSSES,
        more={
            "train.dpo.preference_average_log_probs": train.dpo.preference_average_log_probs,
            "train.dpo.sft_loss_weight": train.dpo.foreign_sft_weight > 0,
            "train.min_learning_rate": train.min_learning_rate > 0,
            "train.finetuning_type lora_merged": train.finetuning_type == "lora_merged",
            "train.shuffle": not train.shuffle,
            "train.dropout": train.dropout,
        },
    )
    ours = [key for key in options if key in _OURS]
    if ours:
        raise ConfigError(
            f"backend.trl.options: {', '.join(ours)} would train other data or another model than the job says"
        )


def _lora(train: TrainConfig) -> Json:
    return {
        "use_peft": True,
        "lora_r": train.lora.adapter_dim,
        "lora_alpha": int(train.lora.alpha),
        "lora_dropout": train.lora.adapter_dropout,
        "lora_target_modules": list(train.lora.target_modules or ["all-linear"]),
    }


def _num_steps(train: TrainConfig, dataset: Dataset) -> int:
    return train.max_steps or train.epochs * steps_per_epoch(dataset.num_training, train, keeps_rest=True)


def _progress(folder: Path, job: Job) -> Status:
    """Read the progress from trainer_state.json of the newest checkpoint."""
    # Sorted by time: checkpoint-10 would sort before checkpoint-9 by name.
    states = sorted((folder / "model").glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    state: Json = {}
    if states:
        try:
            state = msgspec.json.decode(states[-1].read_bytes())
        except (OSError, msgspec.DecodeError):
            state = {}
    rows = [row for row in state.get("log_history") or [] if isinstance(row, dict)]
    step, num_steps = state.get("global_step"), state.get("max_steps") or job.details.get("num_steps")
    losses = [row["loss"] for row in rows if "loss" in row]
    validated = [row["eval_loss"] for row in rows if "eval_loss" in row]
    return Status(
        state=JobState.RUNNING,
        step=step,
        num_steps=num_steps,
        percentage=100.0 * step / num_steps if step and num_steps else None,
        epoch=state.get("epoch"),
        train_loss=losses[-1] if losses else None,
        validation_loss=validated[-1] if validated else None,
    )


TRL = Backend(
    name="trl",
    submit=submit,
    status=status,
    cancel=local.cancel,
    deploy=deploy,
    logs=local.logs,
    wait_limits=local.wait_limits,
)

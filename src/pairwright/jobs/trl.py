"""TRL backend: writes rows of tokens and a YAML file for `python -m pairwright.trl`, and optionally runs it.

TRL's trainers get the ids, masks and weights of our own loop (trl/exact_trainers.py), so nothing is encoded again, and
tool results, recorded ids and call arguments are trained as in the local backend.
"""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from pairwright.config import Config
from pairwright.config.train_config import LEARNING_RATE, TrainConfig
from pairwright.errors import ConfigError
from pairwright.export.exporter import begins_with_text
from pairwright.jobs import process
from pairwright.jobs.dataset import Dataset, with_split
from pairwright.jobs.job import BackendError, Job, JobRequest, JobState, Say, Status, change_job, new_job, write_yaml
from pairwright.jobs.local import LOCAL, PROCESS, launch, process_status, serve_result
from pairwright.jobs.translation import (
    has_curriculum_order,
    micro_batch,
    model_folder,
    refuse_options,
    steps_between,
    steps_per_epoch,
)
from pairwright.paths import find_model
from pairwright.records.messages import Json
from pairwright.tokens.stage.stage import encode_source

_OPTIMIZERS = {"adamw": "adamw_torch", "adafactor": "adafactor", "adamw_8bit": "adamw_bnb_8bit"}
FILE = "trl.yaml"
_KINDS = ("dpo", "sft", "kto")
# Keys of the section `train` that affect rows and their values.
_ROW_OPTIONS = {"where", "score", "kto", "dpo", "credit", "min_probability", "precision", "device"}


def submit(folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    process.refuse_running(folder / PROCESS)
    settings = config.backend.trl
    kind = _check(config.train, settings.options)
    model = find_model(request.model)
    dataset = write_rows(folder, request, config, kind, model)
    say(f"wrote {dataset} to {dataset.training.parent}")
    tree = trl_tree(config, dataset, kind=kind, model=str(model.resolve()), output=(folder / "model").resolve())
    path = (folder / FILE).resolve()
    write_yaml(path, tree, heading="Written by pairwright for `python -m pairwright.trl FILE`.")
    command = [*(settings.command or (sys.executable, "-m")), "pairwright.trl", str(path)]
    details = {
        "command": command,
        "config": str(path),
        "files": dataset.as_json(),
        "script": " ".join(command),
        "num_steps": config.train.max_steps
        or config.train.epochs * steps_per_epoch(dataset.num_training, config.train, keeps_rest=True),
    }
    job = change_job(new_job("trl", model=request.model, pairs=request.pairs), details=details)
    return launch(folder, job, command, is_started=request.launch, say=say)


def write_rows(folder: Path, request: JobRequest, config: Config, kind: str, model: Path) -> Dataset:
    files = folder / "exports" / "trl"
    source = request.experience if kind == "kto" or request.pairs is None else request.pairs
    if source is None or (kind == "dpo" and request.pairs is None):
        wanted = {"dpo": "pairs: give --pairs DIR", "kto": "runs: give --experience DIR"}
        raise ConfigError(f"the {kind} channel trains on {wanted.get(kind, 'pairs or runs: give --pairs DIR')}")
    is_pairs = source == request.pairs
    if is_pairs:
        has_curriculum_order(source, trainer="TRL")
        model_folder(str(model), trainer="TRL", needs_template=not begins_with_text(source))
        if request.tokens is None:
            source = with_split(source, files / "pairs", validation=config.backend.trl.validation, seed=config.seed)
    options = config.tokens.model_copy(update={"tokenizer": config.tokens.tokenizer or str(model)})
    if request.tokens is None:
        encode_source(source, folder / "tokens", options)
    from pairwright.training.token_rows import TokenRows  # needs torch

    train = config.train.model_dump(exclude_unset=True, include=_ROW_OPTIONS)
    # Only a single local process can check that the reference values come from its model: a sharded model cannot.
    reference = model if request.launch and not config.backend.trl.command else None
    tokens = request.tokens or folder / "tokens"
    rows = TokenRows(tokens, Path(str(options.tokenizer)), kind, reference=reference, **train)
    num_training, num_validation = rows.count("train"), rows.count("validation")
    training, validation = files / "train.parquet", files / "validation.parquet"
    rows.write_parquet(training, "train")
    if num_validation:
        rows.write_parquet(validation, "validation")
    elif is_pairs and request.tokens is None and config.backend.trl.validation > 0:
        raise BackendError(
            f"{source}: none of the pairs held out for validation was encoded: bring more tasks, or set "
            "backend.trl.validation: 0"
        )
    return Dataset(
        training=training,
        validation=validation if num_validation else None,
        num_training=num_training,
        num_validation=num_validation,
        refused=rows.refused,
        noted={},
    )


def trl_tree(config: Config, dataset: Dataset, *, kind: str, model: str, output: Path) -> Json:
    """Return the input of `python -m pairwright.trl`: kind of training, model, rows, and arguments of TRL's trainer."""
    train, seed = config.train, config.seed
    # For one device: TRL expects the size of a micro-batch and the number of passes per step.
    size, passes = micro_batch(train, num_gpus=1, trainer="TRL")
    if kind == "kto" and size == 1:
        raise ConfigError("train.micro_batch_size: TRL's KTO needs at least 2")
    per_epoch = steps_per_epoch(dataset.num_training, train, keeps_rest=True)
    arguments: Json = {
        "output_dir": str(output),
        "num_train_epochs": train.epochs,
        # -1 means no limit in transformers.
        "max_steps": train.max_steps or -1,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": passes,
        "learning_rate": train.learning_rate or LEARNING_RATE,
        "lr_scheduler_type": train.schedule,
        "warmup_steps": train.warmup_steps,
        "optim": _OPTIMIZERS[train.optimizer],
        "adam_beta1": train.adam_beta1,
        "adam_beta2": train.adam_beta2,
        "adam_epsilon": train.adam_epsilon,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "max_length": None,  # no truncation here: encoding truncates or refuses long sequences
        "bf16": train.precision == "bf16",
        "use_cpu": train.device == "cpu",
        "gradient_checkpointing": train.gradient_checkpointing,
        "seed": seed,
        "data_seed": seed,
        "logging_steps": train.log_every_n_steps,
        "report_to": list(train.report_to) or "none",
        "save_strategy": "steps",
        "save_steps": train.save_every or per_epoch,
        "save_total_limit": train.keep_top_k + 1,
        "eval_strategy": "no" if dataset.validation is None else "steps",
        "eval_steps": steps_between(train.val_check_interval, per_epoch),
        "per_device_eval_batch_size": size,
    }
    if kind != "sft":
        arguments["precompute_ref_log_probs"] = True
    if kind == "kto":
        names = ("beta", "desirable_weight", "undesirable_weight")
        arguments |= {"loss_type": train.kto.loss, **{name: getattr(train.kto, name) for name in names}}
    lora = {
        "task_type": "CAUSAL_LM",
        "r": train.lora.adapter_dim,
        "lora_alpha": int(train.lora.alpha),
        "lora_dropout": train.lora.adapter_dropout,
        "target_modules": list(train.lora.target_modules or ()) or "all-linear",
    }
    return {
        "kind": kind,
        "model": model,
        "train": str(dataset.training.resolve()),
        "validation": None if dataset.validation is None else str(dataset.validation.resolve()),
        "arguments": arguments | config.backend.trl.options,
        # The loss of the section train.dpo, even if TRL has no name for it.
        "terms": train.dpo.model_dump(mode="json", exclude_unset=True) if kind == "dpo" else None,
        "lora": lora if train.finetuning_type == "lora" else None,
    }


def status(folder: Path, job: Job, config: Config) -> Status:
    # Written by the final save, so it exists only after training completed.
    model_file = "adapter_config.json" if config.train.finetuning_type == "lora" else "config.json"
    return process_status(folder, job, _progress, folder / "model" / model_file)


def deploy(folder: Path, job: Job, config: Config, say: Say) -> Json:
    return serve_result(folder, job, folder / "model", config, say)


def _check(train: TrainConfig, options: Json) -> str:
    """Return the kind of training. Raises for options that TRL does not support or that change the output folder."""
    weights = {name: weight for name, weight in train.channels.model_dump().items() if weight}
    kind = next(iter(weights), "")
    refuse_options(
        train,
        {
            "train.channels (one of dpo, sft and kto, with weight 1)": kind not in _KINDS or weights != {kind: 1.0},
            "train.dpo.loss kto": "kto" in train.dpo.losses,
            "train.kto.sft_loss_weight": bool(train.kto.sft_loss_weight),
            "train.shuffle": not train.shuffle,
            "train.min_learning_rate": train.min_learning_rate > 0,
            "train.dropout": train.dropout,
            "train.dpo.anchor_weight": train.dpo.anchor_weight > 0,
            "train.early_stop": train.early_stop,
        },
        trainer="TRL",
    )
    if "output_dir" in options:
        raise ConfigError("backend.trl.options: output_dir is the folder of the job")
    return kind


def _progress(folder: Path, job: Job) -> Status:
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


TRL = replace(LOCAL, name="trl", submit=submit, status=status, deploy=deploy)

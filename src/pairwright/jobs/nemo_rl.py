"""NeMo RL backend: writes dataset, configuration and launch script, and optionally runs the script here.

NeMo RL trains only the last message of a side, does not render tools, and skips pairs that are too long with a
warning. A job that would lose data this way is refused, unless the user accepts it.
"""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pairwright.config import Config
from pairwright.config.backend_config import NemoRlConfig
from pairwright.config.train_config import NO_ANCHOR, TrainConfig
from pairwright.errors import ConfigError, PairwrightError
from pairwright.export.chat_lines import Unfit, chat_message
from pairwright.jobs import process
from pairwright.jobs.dataset import UNFAITHFUL, Dataset, write_dataset
from pairwright.jobs.job import BackendError, Job, JobRequest, JobState, Say, Status, change_job, new_job, write_yaml
from pairwright.jobs.local import LOCAL, PROCESS, launch, process_status
from pairwright.jobs.nemo_rl_config import nemo_rl_config
from pairwright.jobs.translation import has_curriculum_order, model_folder, refuse_options
from pairwright.pairs.pair_table import read_pairs
from pairwright.paths import write_atomic
from pairwright.records.messages import Json, Message
from pairwright.tokens import ChatTokenizer, EncodeOptions, TokensError
from pairwright.tokens.encode import encode_raw_text, is_raw_text


def submit(folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    if request.pairs is None:
        raise ConfigError("the nemo-rl backend trains on pairs: give --pairs DIR")
    process.refuse_running(folder / PROCESS)
    settings = config.backend.nemo_rl
    _check(config, request, settings)
    is_ordered = has_curriculum_order(request.pairs, trainer="NeMo RL", keeps_order=True)
    model = model_folder(request.model, trainer="NeMo RL")
    # Checked before the export, since it needs only the pairs and the tokenizer.
    limit = config.tokens.pair_length or settings.max_total_sequence_length
    number = num_longer(request.pairs, model, limit=limit)
    if number and not settings.accept_other_data:
        raise BackendError(
            f"{number} pairs have more than {limit} tokens, and NeMo RL would leave them out: raise "
            f"backend.nemo_rl.max_total_sequence_length, or accept it with backend.nemo_rl.accept_other_data: true"
        )
    files = folder / "exports" / "nemo-rl"
    dataset = write_dataset(
        request.pairs,
        files,
        target=f"nemo-rl-{settings.dataset}",
        names=("train.jsonl", "validation.jsonl"),
        validation=settings.validation,
        seed=config.seed,
    )
    refuse_unfaithful(dataset, settings)
    say(f"exported {dataset} to {files}")
    if not config.train.dpo.foreign_sft_weight:
        say(f"warning: {NO_ANCHOR}; train.dpo.sft_loss_weight=0.1 adds one")
    if rest := dataset.num_training % config.train.batch_size:
        say(
            f"NeMo RL drops the last batch of an epoch where it is not full: {rest} of {dataset.num_training} pairs "
            f"are not trained in each epoch of {config.train.batch_size} a step"
        )
    output = folder.resolve() / "nemo-rl"
    tree = nemo_rl_config(config, dataset, model=model, output=output)
    # The order of the file is the curriculum.
    if is_ordered and tree["data"]["shuffle"]:
        tree["data"]["shuffle"] = False
        say("data.shuffle is false: the pairs are in the order of a curriculum")
    path = (folder / "nemo-rl-dpo.yaml").resolve()
    write_yaml(path, tree, heading="Written by pairwright for examples/run_dpo.py of NeMo RL.")
    script = _write_script(folder, path, settings)
    details = {
        "config": str(path),
        "script": str(script),
        "files": dataset.as_json(),
        "num_steps": tree["dpo"]["max_num_steps"],
        "dropped_an_epoch": dataset.num_training % config.train.batch_size,
    }
    job = change_job(new_job("nemo-rl", model=request.model, pairs=request.pairs), details=details)
    return launch(folder, job, ["bash", str(script)], directory=settings.directory, is_started=request.launch, say=say)


def status(folder: Path, job: Job, config: Config) -> Status:
    return process_status(folder, job, _progress, folder / "nemo-rl" / "checkpoints")


def deploy(folder: Path, job: Job, config: Config, say: Say) -> Json:
    raise BackendError(
        f"NeMo RL's checkpoints are sharded: convert the best one in {folder / 'nemo-rl' / 'checkpoints'} with "
        f"examples/converters/convert_dcp_to_hf.py of NeMo RL, then: pairwright serve model FOLDER"
    )


def refuse_untranslatable(train: TrainConfig) -> None:
    channels = train.channels.model_dump()
    asked = {
        "train.channels": any(weight for name, weight in channels.items() if name != "dpo"),
        "train.channels.dpo": train.channels.dpo != 1.0,
        "train.dpo.use_margin": train.dpo.use_margin,
        "train.dpo.mixture": bool(train.dpo.mixture),
        "train.dpo.label_smoothing": train.dpo.label_smoothing > 0,
        f"train.dpo.loss {train.dpo.loss!r} (it has sigmoid)": train.dpo.loss != "sigmoid",
        "train.optimizer": train.optimizer != "adamw",
        "train.where": train.where is not None,
        "train.credit": train.credit != "off",
        "train.min_probability": train.min_probability > 0,
        "train.dpo.contrast": train.dpo.contrast == "decisions",
        "train.dpo.anchor_weight": train.dpo.anchor_weight > 0,
        "train.early_stop": train.early_stop,
    }
    refuse_options(train, asked, trainer="NeMo RL")


def refuse_unfaithful(dataset: Dataset, settings: NemoRlConfig) -> None:
    """Raise if NeMo RL would train on other data than the pairs contain, unless the user accepted this."""
    losses = [f"{reason} {dataset.noted[reason]}" for reason in UNFAITHFUL if reason in dataset.noted]
    if losses and not settings.accept_other_data:
        raise BackendError(
            f"NeMo RL would train other data than these pairs hold ({', '.join(losses)}; docs: Exports): "
            f"train with the local backend, or accept it with backend.nemo_rl.accept_other_data: true"
        )


def _check(config: Config, request: JobRequest, settings: NemoRlConfig) -> None:
    refuse_untranslatable(config.train)
    if request.launch:
        if settings.directory is None:
            raise ConfigError("backend.nemo_rl.directory: not set; give a checkout of NeMo RL to launch from")
        if not Path(settings.directory, "examples", "run_dpo.py").is_file():
            raise ConfigError(
                f"backend.nemo_rl.directory: {settings.directory} has no examples/run_dpo.py: not a checkout of NeMo RL"
            )
        if settings.num_nodes > 1:
            raise ConfigError(
                "backend.nemo_rl.num_nodes: only one node is launched here: write the files without --launch, and give "
                "the script to the scheduler of the cluster"
            )
        if shutil.which("uv") is None:
            raise BackendError("uv: not installed; without --launch the files are written for another machine")


def _write_script(folder: Path, path: Path, settings: NemoRlConfig) -> Path:
    command = (
        f"uv run examples/run_dpo.py --config {shlex.quote(str(path))} "
        f"cluster.gpus_per_node={settings.gpus_per_node} cluster.num_nodes={settings.num_nodes}"
    )
    heading = "# Written by pairwright. Run in a checkout of NeMo RL."
    script = (folder / "nemo-rl-launch.sh").resolve()
    with write_atomic(script, error=PairwrightError) as temporary:
        temporary.write_text(f"#!/usr/bin/env bash\n{heading}\nset -euo pipefail\n{command}\n", encoding="utf-8")
        temporary.chmod(0o755)
    return script


def _progress(folder: Path, job: Job) -> Status:
    """Read the progress from the checkpoint folders, which are named by step."""
    steps = [
        int(path.name.removeprefix("step_"))
        for path in (folder / "nemo-rl" / "checkpoints").glob("step_*")
        if path.name.removeprefix("step_").isdigit()
    ]
    step, num_steps = max(steps, default=None), job.details.get("num_steps")
    return Status(
        state=JobState.RUNNING,
        step=step,
        num_steps=num_steps,
        percentage=100.0 * step / num_steps if step and num_steps else None,
    )


def num_longer(pairs: Path, model: str, *, limit: int) -> int | None:
    """Count the pairs with a side of more than `limit` tokens including the prompt; None without a local tokenizer."""
    if not Path(model).is_dir():
        return None
    tokenizer = ChatTokenizer.from_folder(model)
    count = 0
    for pair in read_pairs(pairs):
        sides = (pair.chosen, pair.rejected)
        count += any(_length(tokenizer, [*pair.prompt, *side], pair.tools) > limit for side in sides)
    return count


def _length(tokenizer: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Json]) -> int:
    """Return the number of tokens of a conversation; 0 if it cannot be rendered (the trainer reports that)."""
    try:
        if is_raw_text(messages):
            return len(encode_raw_text(tokenizer, messages, EncodeOptions()))
        chat = [chat_message(message, arguments="object") for message in messages]
        schemas = tokenizer.schemas(tools)
        ids, _ = tokenizer.encode(tokenizer.renderer(schemas).text(chat, schemas))
    except (TokensError, Unfit):
        return 0
    return len(ids)


NEMO_RL = replace(LOCAL, name="nemo-rl", submit=submit, status=status, deploy=deploy)

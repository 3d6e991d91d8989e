"""NeMo RL backend: writes dataset, configuration and launch script, and optionally launches the job.

NeMo RL trains only the last message of a side, does not render tools, and skips pairs that are too long with a
warning. A job that would lose data this way is refused, unless the user accepts it.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from pairwright.config import Config
from pairwright.config.backend_config import NemoRlConfig
from pairwright.config.train_config import NO_ANCHOR
from pairwright.errors import ConfigError, PairwrightError
from pairwright.export.chat_lines import Unfit, chat_message
from pairwright.jobs import local, process
from pairwright.jobs.dataset import refuse_unfaithful, write_dataset
from pairwright.jobs.job import (
    FINAL,
    Backend,
    BackendError,
    Job,
    JobRequest,
    JobState,
    Say,
    Status,
    Unreachable,
    change_job,
    new_job,
    write_job,
    write_yaml,
)
from pairwright.jobs.local import PROCESS, launch, process_status
from pairwright.jobs.nemo_rl_config import nemo_rl_config
from pairwright.jobs.translation import has_curriculum_order, model_folder, refuse_untranslatable
from pairwright.ledger.run_status import last_lines
from pairwright.pairs.pair_table import read_pairs
from pairwright.paths import write_atomic
from pairwright.records.messages import Json, Message
from pairwright.tokens import ChatTokenizer, EncodeOptions, TokensError
from pairwright.tokens.encode import encode_raw_text, is_raw_text

# Slurm's job states -> ours.
_SLURM = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "COMPLETED": JobState.COMPLETED,
    "CANCELLED": JobState.CANCELLED,
    **dict.fromkeys(
        ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"), JobState.FAILED
    ),
}


def submit(folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
    """Export the pairs, write configuration and launch script, and start the job if requested."""
    if request.pairs is None:
        raise ConfigError("the nemo-rl backend trains on pairs: give --pairs DIR")
    process.refuse_running(folder / PROCESS)
    settings = config.backend.nemo_rl
    _check(config, request, settings)
    is_ordered = has_curriculum_order(request.pairs, trainer="NeMo RL", keeps_order=True)
    model = model_folder(request.model, trainer="NeMo RL")
    # Checked before the export, since it needs only the pairs and the tokenizer.
    limit = config.tokens.pair_length or config.backend.nemo_rl.max_total_sequence_length
    number = num_longer(request.pairs, model, limit=limit)
    if number and not config.backend.nemo_rl.accept_other_data:
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
    refuse_unfaithful(
        dataset, trainer="NeMo RL", is_accepted=settings.accept_other_data, key="backend.nemo_rl.accept_other_data"
    )
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
    script = _write_script(folder, path, model, settings)
    details = {
        "config": str(path),
        "script": str(script),
        "files": dataset.as_json(),
        "slurm_id": None,
        "launcher": settings.launcher,
        "num_steps": tree["dpo"]["max_num_steps"],
        "dropped_an_epoch": dataset.num_training % config.train.batch_size,
    }
    job = change_job(new_job("nemo-rl", model=request.model, pairs=request.pairs), details=details)
    if not request.launch:
        # `replace`, not `change_job`: `prepared` is an initial state without transitions to it.
        return write_job(folder, msgspec.structs.replace(job, state=JobState.PREPARED))
    job = write_job(folder, job)
    if settings.launcher == "slurm":
        return _hand_in(folder, job, settings, say)
    return launch(folder, job, ["bash", str(script)], directory=_directory(settings), say=say)


def status(folder: Path, job: Job, config: Config) -> Status:
    if job.details.get("slurm_id") and job.state not in FINAL:
        return _slurm_status(folder, job)
    return process_status(folder, job, _progress, folder / "nemo-rl" / "checkpoints")


def cancel(folder: Path, job: Job, config: Config) -> Job:
    if not job.details.get("slurm_id") or job.state in FINAL:
        return local.cancel(folder, job, config)
    job = write_job(folder, change_job(job, state=JobState.CANCELLING))
    _run(["scancel", job.details["slurm_id"]])
    return job


def deploy(folder: Path, job: Job, config: Config, say: Say) -> Json:
    raise BackendError(
        f"NeMo RL's checkpoints are sharded: convert the best one in {folder / 'nemo-rl' / 'checkpoints'} with "
        f"examples/converters/convert_dcp_to_hf.py of NeMo RL, then: pairwright serve model FOLDER"
    )


def logs(folder: Path, job: Job, config: Config, follow: bool) -> Iterator[str]:
    slurm_id = job.details.get("slurm_id")
    if slurm_id is None:
        yield from local.logs(folder, job, config, follow)
    else:
        # ray.sub of NeMo RL writes its logs to SLURM_JOB_ID-logs in the folder of the submission.
        path = _directory(config.backend.nemo_rl) / f"{slurm_id}-logs" / "ray-driver.log"
        yield from last_lines(path, 10_000)


def launch_commands(path: Path, model: str, settings: NemoRlConfig) -> dict[str, str]:
    """Build the launch commands for one GPU, many GPUs and Slurm, to be run in a checkout of NeMo RL."""
    run = f"uv run examples/run_dpo.py --config {shlex.quote(str(path))}"
    many = f"{run} cluster.gpus_per_node={settings.gpus_per_node} cluster.num_nodes={settings.num_nodes}"
    slurm = settings.slurm
    # Every path is mounted under its own name. Only $PWD is expanded by the shell; all our values are quoted.
    mounts = ",".join([*(f"{place}:{place}" for place in _places(path, model)), *slurm.mounts])
    options = [
        f"--nodes={settings.num_nodes}",
        *([f"--account={slurm.account}"] if slurm.account else []),
        *([f"--partition={slurm.partition}"] if slurm.partition else []),
        f"--job-name=pairwright-{path.parent.name}",
        f"--time={slurm.time}",
        *([f"--gres=gpu:{settings.gpus_per_node}"] if slurm.gres else []),
    ]
    container = shlex.quote(slurm.container) if slurm.container else "YOUR_CONTAINER"
    handed = (
        f'COMMAND={shlex.quote(many)} CONTAINER={container} MOUNTS="$PWD:$PWD,"{shlex.quote(mounts)} '
        f"sbatch {' '.join(map(shlex.quote, options))} ray.sub"
    )
    return {"one GPU": f"{run} cluster.gpus_per_node=1 cluster.num_nodes=1", "many GPUs": many, "Slurm": handed}


def _check(config: Config, request: JobRequest, settings: NemoRlConfig) -> None:
    """Raise for options that NeMo RL does not support and, if launching, for missing programs and settings."""
    train = config.train
    refuse_untranslatable(
        train,
        trainer="NeMo RL",
        losses=("sigmoid",),
        more={
            "train.dpo.label_smoothing": train.dpo.label_smoothing > 0,
            "train.optimizer": train.optimizer != "adamw",
            "train.finetuning_type lora_merged": train.finetuning_type == "lora_merged",
        },
    )
    if request.launch:
        _directory(settings)
        if settings.launcher == "slurm" and not settings.slurm.container:
            raise ConfigError("backend.nemo_rl.slurm.container: not set; Slurm runs NeMo RL in a container")
        program = "sbatch" if settings.launcher == "slurm" else "uv"
        if shutil.which(program) is None:
            raise BackendError(f"{program}: no such program here; without --launch the files are written for elsewhere")


def _directory(settings: NemoRlConfig) -> Path:
    if settings.directory is None:
        raise ConfigError("backend.nemo_rl.directory: not set; give a checkout of NeMo RL to launch from")
    directory = Path(settings.directory)
    if not (directory / "examples" / "run_dpo.py").is_file():
        raise ConfigError(
            f"backend.nemo_rl.directory: {directory} has no examples/run_dpo.py: not a checkout of NeMo RL"
        )
    return directory


def _write_script(folder: Path, path: Path, model: str, settings: NemoRlConfig) -> Path:
    if settings.launcher == "slurm":
        # ray.sub passes the mounts to srun unquoted, separated by commas and colons.
        for place in _places(path, model):
            if re.search(r"[\s,:*?\[\]'\"\\]", place):
                raise ConfigError(f"{place!r}: cannot be mounted by Slurm: choose a path of plain characters")
    commands = launch_commands(path, model, settings)
    chosen = "Slurm" if settings.launcher == "slurm" else "many GPUs"
    lines = ["#!/usr/bin/env bash", "# Written by pairwright. Run in a checkout of NeMo RL.", "set -euo pipefail"]
    for name, command in commands.items():
        # Other launchers are comments in the script; a command may have several lines.
        lines += ["", f"# {name}", command if name == chosen else "# " + "\n# ".join(command.splitlines())]
    script = (folder / "nemo-rl-launch.sh").resolve()
    with write_atomic(script, error=PairwrightError) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.chmod(0o755)
    return script


def _places(path: Path, model: str) -> list[str]:
    """Return the folders to mount in the container: the run folder, and the model folder if it is local."""
    return list(dict.fromkeys([str(path.parent), *([model] if os.path.isabs(model) else [])]))


def _hand_in(folder: Path, job: Job, settings: NemoRlConfig, say: Say) -> Job:
    output = _run(["bash", job.details["script"]], directory=_directory(settings))
    # Output of sbatch.
    match = re.search(r"Submitted batch job (\d+)", output)
    if match is None:
        raise BackendError(f"sbatch did not say which job it made: {output.strip()[-300:]!r}")
    say(f"Slurm job {match[1]}")
    return write_job(folder, change_job(job, state=JobState.PENDING, details={**job.details, "slurm_id": match[1]}))


def _slurm_status(folder: Path, job: Job) -> Status:
    # -X: the job without its steps; -n: no header; -P: fields separated by |.
    state_name = _run(["sacct", "-j", job.details["slurm_id"], "-X", "-n", "-P", "-o", "State"]).strip()
    name = state_name.split("\n")[0].split()[0].rstrip("+") if state_name else "PENDING"  # if not in the accounting yet
    if name not in _SLURM:
        raise Unreachable(f"Slurm job {job.details['slurm_id']}: state {name!r}")
    progress = _progress(folder, job)
    return msgspec.structs.replace(
        progress, state=_SLURM[name], message="" if name in ("RUNNING", "COMPLETED") else name
    )


def _progress(folder: Path, job: Job) -> Status:
    """Read the progress from the checkpoint folders, which are named by step."""
    # Only folders named step_N.
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


def _run(command: list[str], directory: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Unreachable(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def num_longer(pairs: Path, model: str, *, limit: int) -> int | None:
    """Count the pairs with a side of more than `limit` tokens including the prompt.

    Returns None if the tokenizer is not available locally.
    """
    if not Path(model).is_dir():
        return None
    tokenizer = ChatTokenizer.from_folder(model)
    count = 0
    for pair in read_pairs(pairs):
        sides = (pair.chosen, pair.rejected)
        # NeMo RL leaves out a pair if one of its sides is too long.
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


NEMO_RL = Backend(
    name="nemo-rl", submit=submit, status=status, cancel=cancel, deploy=deploy, logs=logs, wait_limits=local.wait_limits
)

"""Validation problems as lines that name the key, or the command-line option that set it."""

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from pairwright.config.config_tree import fields_at
from pairwright.config.sections import Section
from pairwright.errors import ConfigError

# Pydantic's phrases and ours; longer phrases come before those that they contain
_WORDS = {
    "Input should be": "expected",
    "greater than or equal to": "at least",
    "greater than": "above",
    "less than or equal to": "at most",
    "less than": "below",
}


def describe_problems(
    error: ValidationError,
    root: type[BaseModel],
    *,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    with_values: bool = False,
) -> list[str]:
    """Return one line per problem.

    root: the model that was validated.
    flags: for keys that were set on the command line, the option and its value; lines name these instead of the key.
    with_values: whether to repeat bad values; those of a configuration may be secrets from the environment.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        location, message = _locate(problem, root)
        key = ".".join(location)
        # an option is named for every problem at or below its key; the dots keep `a.b` from matching `a.bc`
        flag = next((option for option in flags or {} if f"{key}.".startswith(f"{option}.")), None)
        if problem["type"] == "extra_forbidden":
            name, line = key, _explain_unknown(location, root)
        elif flags and flag is not None:
            name, line = flag, _with_value(*flags[flag], message)
        elif with_values and len(problem["loc"]) == len(location):
            name, line = location[0], _with_value(location[0], problem["input"], message)
        else:
            name, line = key, f"{key}: {message}" if key else message
        # the branches of a union are problems of one value: the first says what is expected, the others add to it
        lines[name] = f"{lines[name]}, or {_expectation(message).removeprefix('expected ')}" if name in lines else line
    return list(lines.values())


class CheckedSection(Section):
    """A section that Python callers create on its own; invalid values raise ConfigError, as in a configuration.

    >>> from pairwright.config.train_config import DistillTerms
    >>> class DistillOptions(CheckedSection, DistillTerms): ...
    >>> DistillOptions(beta=1.5)
    Traceback (most recent call last):
    pairwright.errors.ConfigError: beta: got 1.5, expected at most 1
    """

    if not TYPE_CHECKING:  # type checkers see the fields as arguments

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError("; ".join(describe_problems(error, type(self), with_values=True))) from None


def _locate(problem: Any, root: type[BaseModel]) -> tuple[list[str], str]:
    """The location and the message of a problem. A check over several fields begins its message with its field."""
    location = [str(part) for part in problem["loc"]]
    if problem["type"] != "value_error":
        return location, problem["msg"]
    message = problem["msg"].removeprefix("Value error, ")
    name, colon, rest = message.partition(": ")
    # a validator may name its field by its own name, or by the full dotted key
    prefix = ".".join([*location, ""])
    if colon and (name in fields_at(location, root) or (prefix and name.startswith(prefix))):
        return [*location, name.removeprefix(prefix)], rest
    return location, message


def _with_value(name: str, value: Any, message: str) -> str:
    expectation = _expectation(message)
    return f"{name}: got {value!r}, {expectation}" if expectation.startswith("expected") else f"{name}: {message}"


def _expectation(message: str) -> str:
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours, 1)
    return message


# Removed keys, and the fixed behaviour that replaces each.
_REMOVED = {
    "pairs.min_candidates": "two candidates of a prompt are compared",
    "policy.retry_seconds": "the first wait is 0.5 s and doubles",
    "policy.max_retry_seconds": "the longest wait is 60 s",
    "train.dpo.margin_scale": "a margin is the reward gap itself",
    "train.grpo.max_ratio": "ratios are bounded by clip_low and clip_high alone",
    "train.grpo.kl_estimator": "the estimator is k3",
    "train.grpo.teacher_beta": "recorded teacher log-probabilities are not used",
    "train.grpo.teacher_weight": "recorded teacher log-probabilities are not used; train.sdpo.teacher names a model",
    "train.grpo.max_sampling_ratio": "ratios are to the recorded log-probabilities",
    "train.dpo.reference_sync": "the reference does not move",
    "train.dpo.reference_mixup": "the reference does not move",
    "train.sdpo.ema_rate": "the teacher is initial, same, or a model",
    "train.sdpo.students": "the teacher reads hints, or nothing",
    "train.sdpo.success_reward": "the teacher reads hints, or nothing",
    "train.sharding": "models that need shards are trained with --backend trl and accelerate's FSDP",
    "train.run_weight": "each sequence of a run counts as one",
    "pairs.tree": "runs are compared two by two",
    "pairs.environment_divergence": "runs that diverge at a user or tool message are not comparable",
    "pairs.balance_by": "lengths are balanced by dropping pairs",
    "pairs.teacher_choice": "the majority of the teachers decides",
    "pairs.curriculum_start": "a curriculum has no stages",
    "pairs.curriculum_increment": "a curriculum has no stages",
    "pairs.curriculum_interval": "a curriculum has no stages",
    "pairs.curriculum_learning": "a curriculum has no stages; pairs.curriculum orders tasks",
    "train.stages": "pairs have a curriculum (pairs.curriculum); other stages are several trainings with train.where",
    "train.stage_epochs": "pairs have a curriculum (pairs.curriculum)",
    "train.sdpo.top_k_of": "the tokens are the student's likeliest",
    "train.sdpo.token_clip": "the loss of a token is not bounded",
    "train.sdpo.entropy_weight": "tokens count alike",
    "backend.nemo_customizer.request_timeout_seconds": "a request may take 60 s",
    "backend.nemo_platform.request_timeout_seconds": "a request may take 60 s, an upload 600",
    "backend.nemo_platform.max_status_failures": "10 status calls in a row may fail",
    "backend.nemo_platform.output_name": "models are named after dataset_name",
    "backend.nemo_rl.launcher": "give the script nemo-rl-launch.sh to sbatch",
    "backend.nemo_rl.slurm": "options of Slurm are those of sbatch, which gets the script nemo-rl-launch.sh",
    "backend.local": "a job is looked at every second, without a time limit; a cancelled one has 60 s to save",
    "sources.on_bad_record": "bad records are quarantined; pairwright import --strict ends with exit code 1",
    "loop.accumulate": "pairs are built from the experience of all rounds so far",
    "engine.max_retries": "a piece of work is repeated 3 times after its worker died",
    "evaluate.num_resamples": "intervals have 10,000 resamples",
    "evaluate.method": "intervals are bias-corrected and accelerated (bca)",
}


def _explain_unknown(location: list[str], root: type[BaseModel]) -> str:
    # Keys of options that were built in Python have no section prefix.
    removed = next((key for key in _REMOVED if f".{key}".endswith("." + ".".join(location))), None)
    if removed is not None:
        return f"unknown key {'.'.join(location)!r}, which was removed: {_REMOVED[removed]}"
    known = fields_at(location[:-1], root)
    near = difflib.get_close_matches(location[-1], known, n=1)
    hint = f"did you mean {'.'.join([*location[:-1], *near])!r}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {'.'.join(location)!r}; {hint}"

"""Held-out tasks played by the old and by the new model: the same tasks, the same seeds, through collect/.

    RUN/evaluation/before/    experience/ and collection/ of the old model      after/   of the new one

Seeds come from the run's seed, the task and the run, not from the model, so both are asked the same with the same
draws. What is done is not played again: a resumed evaluation goes on where it was.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pairwright.collect.runner import Collected, Workflow, collect
from pairwright.collect.tally import Status
from pairwright.config import Config
from pairwright.errors import ConfigError
from pairwright.evaluate.evaluation import Evaluation, evaluate
from pairwright.evaluate.from_config import evaluate_settings
from pairwright.evaluate.scores import Scores, read_scores
from pairwright.messages import Json

BATCH = "evaluation"
SIDES = ("before", "after")
Watch = Callable[[Status], None]


def evaluate_models(
    config: Config,
    *,
    before: str,
    after: str,
    output: Path,
    resume: bool = False,
    base: Path | None = None,
    watch: Watch | None = None,
    workflow: Workflow | None = None,
    tasks: Sequence[Json] | None = None,
) -> tuple[Evaluation, list[Collected]]:
    """Let two models (folders, or names at the endpoint) play the held-out tasks, and compare their scores.

    `workflow` and `tasks` stand in for what the configuration names.
    """
    played = []
    for side, model in zip(SIDES, (before, after), strict=True):
        folder = output / "evaluation" / side
        settings: dict[str, Any] = {
            "resume": resume,
            "base": base,
            "watch": watch,
            "workflow": workflow,
            "tasks": tasks,
        }
        played.append(play_holdout(config, model, folder, **settings))
    sides = [holdout_scores(config, output / "evaluation" / side) for side in SIDES]
    compared = evaluate_settings(config.evaluate, seed=config.seed)
    return evaluate(sides[0], sides[1], **compared, names=(before, after)), played


def play_holdout(
    config: Config, model: str, folder: Path, *, tasks: Sequence[Json] | None = None, **settings: Any
) -> Collected:
    """One model on the held-out tasks; `settings` are those of `collect`."""
    held_out = holdout_config(config, model, has_tasks=tasks is not None)
    return collect(held_out, output=folder, tasks=tasks, **settings)


def holdout_scores(config: Config, folder: Path) -> Scores:
    """What was scored in a folder that `play_holdout` filled."""
    return read_scores(folder / "experience", reduce=config.evaluate.reduce)


def holdout_config(config: Config, model: str, *, has_tasks: bool = False) -> Config:
    """The configuration of that collection: a model's folder is loaded here, a name is asked for at the endpoint."""
    section = config.evaluate
    if not has_tasks and section.dataset is None and section.num_tasks is None:
        raise ConfigError("evaluate.dataset: expected the held-out tasks, e.g. evaluate.dataset=heldout.jsonl")
    settings = {
        "workflow": section.workflow or config.collect.workflow, "dataset": section.dataset, "split": section.split,
        "num_tasks": section.num_tasks, "num_runs": section.num_runs, "batch": BATCH,
    }  # fmt: skip
    policy: dict[str, object] = {"model": model, "model_version": None, "num_candidates": 1}
    if Path(model).is_dir():
        policy |= {"base_url": None}
    if section.temperature is not None:
        policy |= {"temperature": section.temperature}
    return config.model_copy(
        update={
            "collect": config.collect.model_copy(update=settings),
            "policy": config.policy.model_copy(update=policy),
        }
    )

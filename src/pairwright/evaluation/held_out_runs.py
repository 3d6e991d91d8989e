"""Held-out runs of both models: the same tasks and seeds, recorded by collection/."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pairwright.collection.collecting import collect
from pairwright.collection.runner import Collected, Watch, Workflow
from pairwright.config import Config
from pairwright.errors import ConfigError
from pairwright.evaluation.evaluation import Evaluation, evaluate, evaluate_settings
from pairwright.evaluation.scores import Scores, read_scores
from pairwright.records.messages import Json

BATCH = "evaluation"
SIDES = ("before", "after")


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
    """Run two models (folders, GGUF files, URL#NAME, or names at the endpoint) on the held-out tasks, and compare them.
    `workflow` and `tasks` override the configuration."""
    collections = []
    for side, model in zip(SIDES, (before, after), strict=True):
        folder = output / "evaluation" / side
        # both sides get the same settings: with equal tasks and seeds, runs can be paired by (task, run)
        side_runs = play_holdout(
            config, model, folder, resume=resume, base=base, watch=watch, workflow=workflow, tasks=tasks
        )
        collections.append(side_runs)
    sides = [holdout_scores(config, output / "evaluation" / side) for side in SIDES]
    compare_options = evaluate_settings(config.evaluate, seed=config.seed)
    return evaluate(sides[0], sides[1], **compare_options, names=(before, after)), collections


def play_holdout(
    config: Config, model: str, folder: Path, *, tasks: Sequence[Json] | None = None, **settings: Any
) -> Collected:
    """Run one model on the held-out tasks; `settings` are passed to `collect`."""
    held_out = holdout_config(config, model, has_tasks=tasks is not None)
    return collect(held_out, output=folder, tasks=tasks, **settings)


def holdout_scores(config: Config, folder: Path) -> Scores:
    """The scores in a folder that `play_holdout` wrote."""
    return read_scores(folder / "experience", reduce=config.evaluate.reduce)


def holdout_config(config: Config, model: str, *, has_tasks: bool = False) -> Config:
    """The configuration of a held-out run. A folder or GGUF file is loaded here, URL#NAME is requested from that
    endpoint, any other name from the configured one."""
    section = config.evaluate
    if not has_tasks and section.dataset is None and section.num_tasks is None:
        raise ConfigError("evaluate.dataset: expected the held-out tasks, e.g. evaluate.dataset=heldout.jsonl")
    settings = {
        "workflow": section.workflow or config.collect.workflow,
        "dataset": section.dataset,
        "split": section.split,
        "num_tasks": section.num_tasks,
        "num_runs": section.num_runs,
        "batch": BATCH,
    }
    # one answer per request; the configured version is that of the collection's policy, so it is removed
    policy: dict[str, object] = {"model": model, "model_version": None, "num_candidates": 1, "dtype": section.dtype}
    # a folder or file is loaded here, even if the configuration names an endpoint
    if Path(model).is_dir() or Path(model).is_file():
        policy |= {"base_url": None}
    elif model.startswith(("http://", "https://")):
        url, _, name = model.partition("#")
        if not name:
            raise ConfigError(f"{model}: expected URL#NAME, the endpoint and the model's name there")
        policy |= {"base_url": url, "model": name}
    if section.temperature is not None:
        policy |= {"temperature": section.temperature}
    if section.max_tokens is not None:
        policy |= {"max_tokens": section.max_tokens}
    return config.model_copy(
        update={
            "collect": config.collect.model_copy(update=settings),
            "policy": config.policy.model_copy(update=policy),
        }
    )

"""`pairwright.evaluate`: the Python interface. Compares two models on the same tasks, or two files of scores."""

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pairwright.collection.runner import Watch, Workflow
from pairwright.config import Config
from pairwright.config.config_file import adjust_config
from pairwright.errors import ConfigError
from pairwright.evaluation import evaluation
from pairwright.evaluation.comparison import CompareOptions, Metric
from pairwright.evaluation.evaluation import Evaluation, evaluate_settings, write_evaluation
from pairwright.evaluation.held_out_runs import evaluate_models
from pairwright.evaluation.scores import Scores, read_scores
from pairwright.records.messages import Json
from pairwright.store.table import Table

PathLike = str | os.PathLike[str]


def evaluate(
    before: Any,
    after: Any,
    workflow: Workflow | str | None = None,
    tasks: Iterable[Json] | PathLike | int | None = None,
    *,
    output: PathLike | None = None,
    config: Config | PathLike | None = None,
    policy: Json | None = None,
    seed: int | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    metrics: Iterable[Any] = (),
    options: CompareOptions | None = None,
    gate: Any = None,
    names: tuple[str, str] | None = None,
    **more: Any,
) -> Evaluation:
    """Compare two models on the same tasks with the same seeds, task by task.

    Args:
        before: The old model: its folder, GGUF file, URL#NAME or name, or the result of `train`. Without a workflow:
            its scores, as `Scores`, an experience table, or a file or folder of them.
        after: The new model, in the same forms.
        workflow: The `async def` function that runs and scores a task, or its name "module:function".
        tasks: The held-out tasks: rows (dicts), a file of them, or the number of tasks, which then have only an id.
        output: Folder for the runs of both and for evaluation.json; by default a temporary one.
        config: A configuration or its YAML file; the other arguments override it.
        policy: Options of the `policy` section: {"base_url": ..., "max_tokens": 64}, ...
        seed: Seed of the runs and of the bootstrap.
        resume: With `output`: run only what is not done yet.
        watch: A function that is called with the status of each collection.
        metrics: `Metric`s, or their names; the first decides. By default the reward.
        options: `CompareOptions`, with `Scores` only.
        gate: A `Gate`, or a dict of its fields: {"min_improvement": 0.02}.
        names: Labels of the two models.
        **more: Every other option of the `evaluate` section: `num_runs`, `temperature`, `confidence`, ...

    Returns:
        The comparison of each metric with confidence intervals, and the verdict of the gate.

    >>> import pairwright as pw
    >>> proof = pw.evaluate("scores/before.csv", "scores/after.csv")
    >>> proof.comparisons[0].wins, proof.passed
    (3, True)
    """
    if isinstance(before, Scores) and isinstance(after, Scores):
        measured = [Metric(metric) if isinstance(metric, str) else metric for metric in metrics]
        return evaluation.evaluate(before, after, metrics=measured, options=options, gate=gate, names=names)
    section = dict(more)  # overrides of the `evaluate` section
    if metrics := list(metrics):
        section["metrics"] = [_fields(metric, "name", "better") for metric in metrics]
    if gate is not None:
        section["gate"] = _fields(gate, "min_improvement", "margin", "confidence", "min_tasks")
    values: dict[str, Any] = {"evaluate": section, "policy": policy or {}}
    values |= {} if seed is None else {"seed": seed}
    if workflow is None and config is None:  # files of scores: nothing is run
        if tasks is not None:
            raise ConfigError("workflow: expected the async function that plays and scores a task")
        adjusted = adjust_config(**values)
        sides = [_scores(side, adjusted.evaluate.reduce) for side in (before, after)]
        measures = evaluate_settings(adjusted.evaluate, seed=adjusted.seed)
        result = evaluation.evaluate(*sides, **measures, names=names)
        if output is not None:
            write_evaluation(Path(output), result)
        return result
    if isinstance(workflow, str):
        section["workflow"] = workflow
    if isinstance(tasks, int):
        section |= {"num_tasks": tasks, "dataset": None}  # a number of tasks replaces a configured dataset
    elif isinstance(tasks, str | os.PathLike):
        section["dataset"] = os.fspath(tasks)
    rows = list(tasks) if tasks is not None and not isinstance(tasks, int | str | os.PathLike) else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()) if output is None else output)
        function: Callable[..., Any] | None = None if isinstance(workflow, str) else workflow
        settings: Json = {"resume": resume, "watch": watch, "workflow": function, "tasks": rows}
        result, _ = evaluate_models(
            adjust_config(config, **values), before=_model(before), after=_model(after), output=folder, **settings
        )
        if output is not None:
            write_evaluation(folder, result)
    return result


def _model(model: Any) -> str:
    return str(os.fspath(getattr(model, "model", model)))


def _scores(side: Any, reduce: Any) -> Scores:
    if isinstance(side, Scores):
        return side
    path = side.folder if isinstance(side, Table) else Path(os.fspath(side))
    if not path.exists():
        raise ConfigError(f"{path}: no scores here; to let models play, pass a workflow and tasks")
    return read_scores(path, reduce=reduce)


def _fields(value: Any, *names: str) -> Json:
    """Fields of a configuration value, from a name, a dict, or an object."""
    if isinstance(value, str):
        return {names[0]: value}
    return dict(value) if isinstance(value, dict) else {name: getattr(value, name) for name in names}

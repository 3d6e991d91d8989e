"""`pairwright.collect`: the Python interface of a collection. A workflow and tasks in, an experience table out."""

import inspect
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pairwright.collection.collection_identity import begin_or_resume
from pairwright.collection.counters import Status
from pairwright.collection.policies import Policy
from pairwright.collection.run_policy import make_policy
from pairwright.collection.runner import Collected, Collection, Watch, Workflow
from pairwright.collection.scoring import make_scorer
from pairwright.collection.tasks import load_tasks
from pairwright.config import Config
from pairwright.config.config_file import adjust_config
from pairwright.config.user_code import WORKFLOWS, load_function
from pairwright.engines.event_loops import run_to_end
from pairwright.errors import ConfigError
from pairwright.records.messages import Json

PathLike = str | os.PathLike[str]


def collect(
    play: Workflow | str | Config | None = None,
    tasks: Iterable[Json] | PathLike | int | None = None,
    *,
    output: PathLike,
    workflow: Workflow | None = None,
    model: PathLike | None = None,
    policy: Policy | Json | None = None,
    config: Config | PathLike | None = None,
    seed: int | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    progress: bool = False,
    base: PathLike | None = None,
    **options: Any,
) -> Collected:
    """Run a workflow over tasks and record it in an experience table. Works in scripts and in notebooks.

    Args:
        play: The workflow: an `async def` function of (task, policy, recorder), or its name: "module:function",
            "path/file.py:function". A configuration passed here is used as `config`.
        tasks: Rows (dicts), a file of them, or the number of tasks, which then have only an id.
        output: Folder of the run; the table is in `experience/`.
        workflow: The workflow, if it is not `play`.
        model: Folder of a local model, or the name of one at the endpoint of `policy`.
        policy: Options of the `policy` section as a dict, e.g. {"base_url": ..., "num_candidates": 4}, or an object
            with `name`, `complete` and `close`.
        config: A configuration or its YAML file; the other arguments override it.
        seed: Seed of all runs.
        resume: Continue the collection in `output`: only unfinished runs are executed.
        watch: A function that is called with the status twice a second.
        progress: True prints the status to stderr.
        base: Second folder to resolve relative paths of the configuration from.
        **options: Every other option of the `collect` section: `num_runs`, `max_concurrency`, `scorer`, ...

    Returns:
        The result of the collection; its `table` has the records.

    >>> import pairwright as pw
    >>> async def play(task, policy, recorder):
    ...     async with recorder.step(f"task {task.id}") as step:
    ...         for answer in await policy.complete(step.prompt, n=2, max_tokens=4):
    ...             step.candidate(answer, score=len(set(answer.text)))
    >>> collected = pw.collect(play, 3, output="runs/played", model="models/tiny")
    >>> collected.status.num_done, len(collected.table)
    (3, 6)
    """
    # `values` overrides the configuration by section; objects that cannot be part of it are passed on separately
    values: dict[str, Any] = {"collect": dict(options)}
    if isinstance(play, Config):
        config = play
    elif isinstance(play, str):
        values["collect"]["workflow"] = play
    elif play is not None:
        workflow = play
    rows: Iterable[Json] | None = None
    if isinstance(tasks, int):  # a number of tasks replaces a configured dataset
        values["collect"] |= {"num_tasks": tasks, "dataset": None}
    elif isinstance(tasks, str | os.PathLike):
        values["collect"]["dataset"] = os.fspath(tasks)
    else:
        rows = tasks
    values |= {"policy": policy} if isinstance(policy, dict) else {}
    if model is not None:
        values["policy"] = {**values.get("policy", {}), "model": os.fspath(model)}
    values |= {} if seed is None else {"seed": seed}
    config = adjust_config(config, **values)
    if config.policy.model is None and config.policy.base_url is None and config.model is not None:
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"model": config.model})})
    base = None if base is None else Path(base)
    settings = config.collect
    if settings.dataset is not None and base is not None and not Path(settings.dataset).exists():
        settings = settings.model_copy(update={"dataset": str(base / settings.dataset)})
    listed = load_tasks(settings, rows)
    if workflow is None:
        if settings.workflow is None:
            raise ConfigError("collect.workflow: expected module:function or path/file.py:function")
        workflow = load_function(settings.workflow, group=WORKFLOWS, base=base)
    name = f"{getattr(workflow, '__module__', 'value')}:{getattr(workflow, '__qualname__', type(workflow).__name__)}"
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(workflow).parameters.values()
    if sum(item.default is item.empty and item.kind not in any_number for item in parameters) > 3:
        raise ConfigError(f"{name}: a workflow is a function of (task, policy, recorder), or of fewer of them")
    folder = Path(output)
    run_id = begin_or_resume(folder / "collection", config, resume=resume, workflow=settings.workflow or name)
    watch = _print_status if watch is None and progress else watch

    async def run() -> Collected:
        scorer = make_scorer(settings.scorer, base=base)
        own_policy = None if isinstance(policy, dict) else policy
        if watch is not None and own_policy is None:
            watch(Status(phase=f"loading {config.policy.model}"))
        answering = make_policy(config.policy, base=base) if own_policy is None else own_policy
        collection = Collection(config, folder, run_id, listed, workflow, answering, scorer, watch)
        try:
            return await collection.run()
        finally:
            collection.close_agents()
            if own_policy is None:
                await answering.close()
            await scorer.close()

    return run_to_end(run())


def _print_status(status: Status) -> None:
    print(f"{status.num_done:,} of {status.num_runs:,} runs, {status.num_running:,} under way", file=sys.stderr)

"""Scorers: who scores what a workflow leaves unscored.

    function    score(task, candidate) of each candidate              evaluator   score(run) of each finished run
    command     a program with the case as JSON on its stdin          judge       a model, see judge.py

A score is a number, or {"score": number, "components": {...}}; None leaves it unscored. A scorer that fails fails the
run, whose answers are kept: on resume only the scoring is done again.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairwright.collect.command import CommandScorer
from pairwright.collect.failures import CollectError, ScorerError, one_line
from pairwright.collect.loading import SCORERS, load_function
from pairwright.collect.recording import Candidate, Step
from pairwright.collect.tasks import Task
from pairwright.config import ScorerConfig
from pairwright.messages import Json


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run as an evaluator sees it: the task, what the workflow returned, and its steps with their candidates."""

    task: Task
    output: Any
    steps: list[Step]


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Scorer:
    """What can be asked of a scorer: to score the candidates of a step, or a finished run, or neither."""

    step: Callable[[Task, Step], Awaitable[None]] | None = None
    run: Callable[[FinishedRun], Awaitable[float | None]] | None = None
    close: Callable[[], Awaitable[None]] = _nothing


def make_scorer(config: ScorerConfig, *, base: Path | None = None) -> Scorer:
    return _KINDS[config.kind](config, base)


def as_score(value: Any, where: str) -> tuple[float | None, Json]:
    """A score and its components, from what a scorer gave."""
    components: Json = {}
    if isinstance(value, dict):
        if not isinstance(components := value.get("components", {}), dict):
            raise ScorerError(f"{where}: components must be an object, got {components!r}")
        if "score" not in value and "reward" not in value:
            raise ScorerError(f"{where}: expected a number or an object with `score`, got {str(value)[:200]}")
        value = value["score"] if "score" in value else value["reward"]
    if value is None:
        return None, components
    try:
        return float(value), components
    except (TypeError, ValueError):
        raise ScorerError(f"{where}: expected a number, got {str(value)[:200]!r}") from None


def _function(config: ScorerConfig, base: Path | None) -> Scorer:
    name = str(config.function)
    function = load_function(name, group=SCORERS, base=base)

    async def score(task: Task, step: Step) -> None:
        for candidate in step.unscored:
            _set(candidate, *as_score(await _called(function, name, task, candidate), name))

    return Scorer(step=score)


def _evaluator(config: ScorerConfig, base: Path | None) -> Scorer:
    name = str(config.function)
    function = load_function(name, group=SCORERS, base=base)

    async def score(run: FinishedRun) -> float | None:
        return as_score(await _called(function, name, run), name)[0]

    return Scorer(run=score)


def _command(config: ScorerConfig, base: Path | None) -> Scorer:
    command = CommandScorer(config, folder=base)

    async def score_step(task: Task, step: Step) -> None:
        for candidate in step.unscored:
            case = {**_case(task, step), "completion": _shown(candidate), "text": candidate.text}
            _set(candidate, *as_score(await command.score(case), command.name))

    async def score_run(run: FinishedRun) -> float | None:
        steps = [
            {**_case(run.task, step), "candidates": [_shown(item) for item in step.candidates]} for step in run.steps
        ]
        case = {"task": run.task.data, "id": run.task.id, "run": run.task.run, "output": run.output, "steps": steps}
        return as_score(await command.score(case), command.name)[0]

    return Scorer(step=score_step) if config.scope == "candidate" else Scorer(run=score_run)


def _judge(config: ScorerConfig, base: Path | None) -> Scorer:
    from pairwright.collect.judge import Judge
    from pairwright.collect.policies import make_policy

    judge = Judge(make_policy(config.judge, base=base), config)
    return Scorer(step=judge.score, close=judge.close)


_KINDS: dict[str, Callable[[ScorerConfig, Path | None], Scorer]] = {
    "none": lambda config, base: Scorer(),
    "function": _function,
    "evaluator": _evaluator,
    "command": _command,
    "judge": _judge,
}


async def _called(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    try:
        value = function(*arguments)
        return await value if inspect.isawaitable(value) else value
    except CollectError:
        raise
    except Exception as error:  # the user's code: whatever it raises is the scorer's failure
        raise ScorerError(f"{name}: {one_line(error)}") from error


def _set(candidate: Candidate, score: float | None, components: Json) -> None:
    candidate.score = score
    candidate.components = {**candidate.components, **components}


def _case(task: Task, step: Step) -> Json:
    import msgspec

    return {
        "task": task.data,
        "id": task.id,
        "run": task.run,
        "step": step.index,
        "prompt": msgspec.to_builtins(step.prompt),
        "tools": list(step.tools),
    }


def _shown(candidate: Candidate) -> list[Json]:
    import msgspec

    shown: list[Json] = msgspec.to_builtins(candidate.messages)
    return shown

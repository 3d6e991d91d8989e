"""Scorers of the candidates that a workflow leaves unscored.

    function    score(run) or score(task, candidate), per candidate   evaluator   score(run) for each finished run
    command     a program with the case as JSON on its stdin          judge       a model, see `Judge`

A score is a number, or {"score": number, "components": {...}}; None means unscored. If a scorer fails, the run fails,
but the answers of the run are logged: a resume repeats only the scoring.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collection.command_scorers import CommandScorer
from pairwright.collection.judge import Judge
from pairwright.collection.recording import Candidate, Step
from pairwright.collection.run_failures import CollectError, PolicyError, ScorerError, one_line
from pairwright.collection.run_policy import make_policy
from pairwright.collection.tasks import Task
from pairwright.config import ScorerConfig
from pairwright.config.user_code import SCORERS, load_function
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import Json
from pairwright.scorers.programs import ALL, Outcome, Program, find_program
from pairwright.scorers.references import find_criterion
from pairwright.store.score_log import OVERALL


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run for an evaluator: the task, the workflow's return value, and its steps with their candidates."""

    task: Task
    output: Any
    steps: list[Step]


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Scorer:
    """The functions of a scorer: `step` scores the candidates of a step, `run` a finished run; either may be None."""

    step: Callable[[Task, Step], Awaitable[None]] | None = None
    run: Callable[[FinishedRun], Awaitable[float | None]] | None = None
    close: Callable[[], Awaitable[None]] = _nothing


def make_scorer(config: ScorerConfig, *, base: Path | None = None) -> Scorer:
    return _KINDS[config.kind](config, base)


def as_score(value: Any, where: str) -> tuple[float | None, Json]:
    """Parse the value of a scorer to a score and its components.

    >>> as_score({"score": 1, "components": {"format": 0.5}}, "my_scorer"), as_score(None, "my_scorer")
    ((1.0, {'format': 0.5}), (None, {}))
    """
    components: Json = {}
    # {"score": ...}, or {"reward": ...} from some evaluators
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
    if name == ALL or find_criterion(name) is not None:
        return _program(find_program(name))
    function = load_function(name, group=SCORERS, base=base)
    parameters = inspect.signature(function).parameters.values()
    if sum(one.default is one.empty and one.kind in (0, 1) for one in parameters) == 1:  # positional: score(run)
        return _program(find_program(name, base=base))

    async def score(task: Task, step: Step) -> None:
        for candidate in step.unscored:
            _set(candidate, *as_score(await _call_function(function, name, task, candidate), name))

    return Scorer(step=score)


def _program(program: Program) -> Scorer:
    async def score(task: Task, step: Step) -> None:
        candidates = step.unscored
        for candidate, (_, outcome) in zip(candidates, program.run(_runs(task, step)), strict=True):
            if outcome.failure is not None:
                raise ScorerError(outcome.failure)
            _take(candidate, outcome)

    return Scorer(step=score)


def _evaluator(config: ScorerConfig, base: Path | None) -> Scorer:
    name = str(config.function)
    function = load_function(name, group=SCORERS, base=base)

    async def score(run: FinishedRun) -> float | None:
        return as_score(await _call_function(function, name, run), name)[0]

    return Scorer(run=score)


def _command(config: ScorerConfig, base: Path | None) -> Scorer:
    command = CommandScorer(config, folder=base)

    async def score_step(task: Task, step: Step) -> None:
        for candidate in step.unscored:
            messages = msgspec.to_builtins(candidate.messages)
            case = {**_case(task, step), "completion": messages, "text": candidate.text}
            _set(candidate, *as_score(await command.score(case), command.name))

    async def score_run(run: FinishedRun) -> float | None:
        steps = [
            {**_case(run.task, step), "candidates": [msgspec.to_builtins(item.messages) for item in step.candidates]}
            for step in run.steps
        ]
        case = {"task": run.task.data, "id": run.task.id, "run": run.task.run, "output": run.output, "steps": steps}
        return as_score(await command.score(case), command.name)[0]

    return Scorer(step=score_step) if config.scope == "candidate" else Scorer(run=score_run)


def _judge(config: ScorerConfig, base: Path | None) -> Scorer:
    judge = Judge(make_policy(config.judge.as_policy(), base=base), config)

    async def score(task: Task, step: Step) -> None:
        candidates = step.unscored
        try:
            outcomes, _ = await judge.judge(_runs(task, step))
        except PolicyError as error:
            raise ScorerError(f"the judge gave no answer: {error}") from error
        for candidate, outcome in zip(candidates, outcomes, strict=True):
            _take(candidate, outcome)

    return Scorer(step=score, close=judge.close)


_KINDS: dict[str, Callable[[ScorerConfig, Path | None], Scorer]] = {
    "none": lambda config, base: Scorer(),
    "function": _function,
    "evaluator": _evaluator,
    "command": _command,
    "judge": _judge,
}


async def _call_function(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    try:
        value = function(*arguments)
        # a scorer may be a plain or an async function
        return await value if inspect.isawaitable(value) else value
    except CollectError:
        raise
    except Exception as error:  # any exception of the user's code is a failure of the scorer
        raise ScorerError(f"{name}: {one_line(error)}") from error


def _runs(task: Task, step: Step) -> list[Experience]:
    """Convert the unscored candidates of a step to runs for scorers; `info.task` has the data of their task."""
    return [
        Experience(
            eid=EID(task.batch, task.id, task.run, step.index, str(number)),
            kind=Kind.SINGLE_TURN if len(candidate.messages) == 1 else Kind.MULTI_TURN,
            prompt=step.prompt,
            tools=step.tools_of(candidate),
            completion=candidate.messages,
            info={**candidate.info, "task": task.data},
        )
        for number, candidate in enumerate(step.unscored)
    ]


def _take(candidate: Candidate, outcome: Outcome) -> None:
    criteria = dict(outcome.scores)
    _set(candidate, criteria.pop(OVERALL, None), criteria)


def _set(candidate: Candidate, score: float | None, components: Json) -> None:
    candidate.score = score
    candidate.components = {**candidate.components, **components}


def _case(task: Task, step: Step) -> Json:
    return {
        "task": task.data,
        "id": task.id,
        "run": task.run,
        "step": step.index,
        "prompt": msgspec.to_builtins(step.prompt),
        "tools": list(step.tools),
    }

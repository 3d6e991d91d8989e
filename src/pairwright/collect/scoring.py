"""Scorers: who scores what a workflow leaves unscored.

    function    score(task, candidate) of each candidate              evaluator   score(run) of each finished run
    command     a program with the case as JSON on its stdin          judge       a model, see judge.py

A score is a number, or {"score": number, "components": {...}}; None leaves it unscored. A scorer that fails fails the
run, whose answers are kept: on resume only the scoring is done again.
"""

import asyncio
import inspect
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collect.completion import CollectError, ScorerError, one_line
from pairwright.collect.recording import Candidate, Step
from pairwright.collect.tasks import Task
from pairwright.collect.user_code import SCORERS, load_function
from pairwright.config import ScorerConfig
from pairwright.records.messages import Json

# A verifier command: the case as JSON on its standard input, the verdict as its exit code or as JSON on its output.

MAX_OUTPUT_BYTES = 2**20
_NOT_FOUND_OR_KILLED = 126  # what shells and wrappers return when the program itself did not run


class CommandScorer:
    """Runs the command for a case; at most so many at once."""

    def __init__(self, config: ScorerConfig, *, folder: Path | None = None) -> None:
        self.name = f"scorer {config.command[0]}"
        self._config, self._folder = config, folder
        self._slots = asyncio.Semaphore(config.max_concurrency)

    async def score(self, case: Json) -> Any:
        """What the command said: a number, an object with a score, or None."""
        try:
            data = msgspec.json.encode(case) + b"\n"
        except (TypeError, ValueError) as error:
            raise ScorerError(f"{self.name}: the case cannot be written as JSON: {error}") from None
        async with self._slots:
            code, output, complaint = await self._run(data)
        if code < 0 or code >= _NOT_FOUND_OR_KILLED:
            raise ScorerError(f"{self.name}: ended with {_ending(code)}: {complaint}")
        if self._config.result == "exit_code":
            return 1.0 if code == 0 else 0.0
        if code != 0:
            raise ScorerError(f"{self.name}: ended with {_ending(code)}: {complaint}")
        try:
            return msgspec.json.decode(output)
        except (ValueError, RecursionError) as error:
            raise ScorerError(f"{self.name}: its output is not JSON ({error}): {output[:200]!r}") from None

    async def _run(self, data: bytes) -> tuple[int, bytes, str]:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._config.command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd=self._folder
            )
        except OSError as error:
            raise ScorerError(f"{self.name}: cannot be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._config.timeout_seconds):
                _, output, complaint = await asyncio.gather(
                    _feed(process.stdin, data), _read(process.stdout), _read(process.stderr)
                )
                code = await process.wait()
        except TimeoutError:
            raise ScorerError(f"{self.name}: took longer than {self._config.timeout_seconds:g} s") from None
        finally:
            await _end(process)
        if output is None:
            raise ScorerError(f"{self.name}: wrote more than {MAX_OUTPUT_BYTES:,} bytes")
        return code, output, (complaint or b"").decode("utf-8", "replace").strip()[-300:]


async def _feed(stdin: asyncio.StreamWriter | None, data: bytes) -> None:
    assert stdin is not None
    try:
        stdin.write(data)
        await stdin.drain()
        stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # a command need not read its input


async def _read(stream: asyncio.StreamReader | None) -> bytes | None:
    """All output, or None if it is more than a verdict can be; the rest is read and dropped so that nothing blocks."""
    assert stream is not None
    kept = bytearray()
    while chunk := await stream.read(65_536):
        if len(kept) <= MAX_OUTPUT_BYTES:
            kept += chunk
    return bytes(kept) if len(kept) <= MAX_OUTPUT_BYTES else None


async def _end(process: asyncio.subprocess.Process) -> None:
    """End what is left of the command's session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise ScorerError(f"the scorer's processes cannot be ended: {one_line(error)}") from None
    await process.wait()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


# Scorers: who scores what a workflow leaves unscored.


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

"""Recording: steps, candidates and trajectories of one run, from any depth of the code that plays it.

    async with step(prompt) as s:                       # the recorder of the run that is going on
        for answer in await policy.complete(s.prompt, n=8):
            s.candidate(answer, score=quality(answer.text))

A candidate goes to the table when it has its score: at the end of its step, or at the end of the run for what the
final reward or the scorer of finished runs decides. Its id is made of its place and content, so a run that is played
again after a crash records nothing twice. What the policy returned in this run is matched with what is recorded
(sampled.py): token ids, log-probabilities, finish reasons and tools come from there. Outside of a collection recording
does nothing, so that the same code runs in production.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from pairwright.collect.completion import Completion, Prompt, as_messages
from pairwright.collect.sampled_tokens import Sampled, SampledCalls, experience_of
from pairwright.collect.tasks import Task
from pairwright.errors import RecordError
from pairwright.records.canonical import prompt_hash
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message

Emit = Callable[[str, list[Experience]], None]  # the hash of the prompt, and candidates of it


@dataclass(eq=False)
class Candidate:
    """One answer at a step, with its score once there is one."""

    messages: tuple[Message, ...]
    completion: Completion | None = None
    score: float | None = None
    components: Json = field(default_factory=dict)
    info: Json = field(default_factory=dict)
    metrics: Json = field(default_factory=dict)
    sampled: Sampled = field(default_factory=Sampled)

    @property
    def text(self) -> str:
        return self.messages[-1].text if self.messages else ""


class Step:
    """A decision point: a prompt and the candidates that compete for it.

    `tools` that are not named (None) are those that the policy was asked with for each candidate.
    """

    def __init__(
        self, recorder: "Recorder | None", prompt: Prompt, tools: Sequence[Json] | None, name: str | None, index: int
    ) -> None:
        self.prompt = as_messages(prompt, "prompt", role="user")
        self.name, self.index = name, index
        self.candidates: list[Candidate] = []
        self._tools = None if tools is None else tuple(tools)
        self._hashed: tuple[tuple[Json, ...], str] | None = None
        self._recorder = recorder
        self._num_emitted = 0

    @property
    def tools(self) -> tuple[Json, ...]:
        """The tools of the step: those that were named, else those of its first candidate."""
        return self.tools_of(self.candidates[0]) if self.candidates else self._tools or ()

    def tools_of(self, candidate: Candidate) -> tuple[Json, ...]:
        return (candidate.sampled.tools or ()) if self._tools is None else self._tools

    def prompt_hash_of(self, candidate: Candidate) -> str:
        """What a candidate may be compared with: the same prompt with the same tools."""
        tools = self.tools_of(candidate)
        if self._hashed is None or self._hashed[0] != tools:
            self._hashed = tools, prompt_hash(self.prompt, tools)
        return self._hashed[1]

    def candidate(
        self,
        completion: Completion | Prompt,
        *,
        score: float | None = None,
        components: Json | None = None,
        info: Json | None = None,
        metrics: Json | None = None,
    ) -> Candidate:
        """Record an answer: what the policy gave, or text or messages from elsewhere. Its score may come later."""
        given = completion if isinstance(completion, Completion) else None
        messages = (given.message,) if given else as_messages(completion, "completion", role="assistant")  # type: ignore[arg-type]
        if not messages:
            raise RecordError("completion", completion, "at least one message")
        calls = SampledCalls() if self._recorder is None else self._recorder.calls
        sampled = calls.match_messages(self.prompt, messages) if given is None else calls.match_completion(given)
        made = Candidate(messages, given, score, dict(components or {}), dict(info or {}), dict(metrics or {}), sampled)
        self.candidates.append(made)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._recorder is not None:
            await self._recorder.close_step(self, failed=error is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._recorder is not None:
            self._recorder.emit_scored(self)

    def take_scored(self) -> list[tuple[int, Candidate]]:
        """The candidates that were not taken yet, if all of them have a score."""
        waiting = list(enumerate(self.candidates))[self._num_emitted :]
        if any(candidate.score is None for _, candidate in waiting):
            return []
        self._num_emitted = len(self.candidates)
        return waiting

    def take_rest(self) -> list[tuple[int, Candidate]]:
        """The candidates that were not taken yet, with a score or without."""
        waiting = list(enumerate(self.candidates))[self._num_emitted :]
        self._num_emitted = len(self.candidates)
        return waiting

    @property
    def unscored(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.score is None]


ScoreStep = Callable[[Step], Awaitable[None]]


class Recorder:
    """What one run records. `score_step`, if there is one, scores the candidates that a step leaves unscored."""

    def __init__(
        self, task: Task, emit: Emit, *, model_version: str | int | None = None, score_step: ScoreStep | None = None
    ) -> None:
        self.task = task
        self.steps: list[Step] = []
        self.calls = SampledCalls()
        self.final_reward: float | None = None
        self._emit, self._score_step = emit, score_step
        self._model_version = model_version
        self._open: dict[str, Step] = {}
        self._numbers = itertools.count()

    def place(self, *, task: int | str, run: int) -> None:
        """Record under another task and run from now on: what a replay asks belongs to the run that it replays."""
        self.task = replace(self.task, id=task, run=run)

    def step(
        self, prompt: Prompt, *, tools: Sequence[Json] | None = None, name: str | None = None, index: int | None = None
    ) -> Step:
        """A step of this run; they are numbered as they begin unless `index` says otherwise."""
        made = Step(self, prompt, tools, name, next(self._numbers) if index is None else index)
        self.steps.append(made)
        return made

    def start(self, name: str, prompt: Prompt, *, tools: Sequence[Json] | None = None) -> None:
        """Begin a step whose candidates come as events with its name."""
        self._open[name] = self.step(prompt, tools=tools, name=name)

    def end(
        self,
        name: str,
        completion: Completion | Prompt,
        *,
        score: float | None = None,
        prompt: Prompt | None = None,
        tools: Sequence[Json] | None = None,
        info: Json | None = None,
    ) -> None:
        """A candidate of the step with this name. Where no start came, the prompt that is given here begins it."""
        if name not in self._open:
            if prompt is None:
                raise RecordError("prompt", None, f"the prompt of step {name!r}: it has no start that gave one")
            self.start(name, prompt, tools=tools)
        self._open[name].candidate(completion, score=score, info=info)
        self.emit_scored(self._open[name])

    def trajectory(
        self,
        prompt: Prompt,
        completion: Completion | Prompt,
        *,
        reward: float | None = None,
        tools: Sequence[Json] | None = None,
        components: Json | None = None,
        info: Json | None = None,
        metrics: Json | None = None,
    ) -> None:
        """A whole trajectory as one experience: everything that the model and its tools did after the prompt.

        The ids that the policy sampled in its turns become one sequence, with what the environment added masked out.
        """
        made = self.step(prompt, tools=tools)
        made.candidate(completion, score=reward, components=components, info=info, metrics=metrics)
        self.emit_scored(made)

    def reward(self, value: float) -> None:
        """The final reward of the run: the score of every candidate that has none of its own."""
        self.final_reward = float(value)

    async def close_step(self, closed: Step, *, failed: bool) -> None:
        if self._score_step is not None and closed.unscored and not failed:
            await self._score_step(closed)
        self.emit_scored(closed)

    async def close(self) -> None:
        """The end of a run that went well: score and hand over what waits."""
        for waiting in self.steps:
            if self._score_step is not None and waiting.unscored and self.final_reward is None:
                await self._score_step(waiting)
            for candidate in waiting.unscored:
                candidate.score = self.final_reward
            self.emit_scored(waiting)
        for waiting in self.steps:  # what nobody scored is kept as unscored
            self._emit_all(waiting, waiting.take_rest())

    def emit_scored(self, closed: Step) -> None:
        self._emit_all(closed, closed.take_scored())

    def _emit_all(self, closed: Step, numbered: list[tuple[int, Candidate]]) -> None:
        """Hand candidates over, apart by what they may be compared with."""
        groups: dict[str, list[Experience]] = {}
        for number, candidate in numbered:
            experience = self._experience(closed, number, candidate)
            groups.setdefault(closed.prompt_hash_of(candidate), []).append(experience)
        for key, experiences in groups.items():
            self._emit(key, experiences)

    def _experience(self, of: Step, number: int, candidate: Candidate) -> Experience:
        return experience_of(
            self.task,
            prompt=of.prompt,
            tools=of.tools_of(candidate),
            prompt_hash=of.prompt_hash_of(candidate),
            step=of.index,
            step_name=of.name,
            number=number,
            messages=candidate.messages,
            sampled=candidate.sampled,
            score=candidate.score,
            components=candidate.components,
            info=candidate.info,
            metrics=candidate.metrics,
            model_version=self._model_version,
        )


_current: ContextVar[Recorder | None] = ContextVar("pairwright_recorder", default=None)


def current_recorder() -> Recorder | None:
    """The recorder of the run that this code is part of; None outside of a collection."""
    return _current.get()


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Make a recorder the current one for what runs inside, tasks that are started there included."""
    token = _current.set(recorder)
    try:
        yield recorder
    finally:
        _current.reset(token)


def step(
    prompt: Prompt, *, tools: Sequence[Json] | None = None, name: str | None = None, index: int | None = None
) -> Step:
    """A step of the run that is going on. Outside of a collection its candidates go nowhere."""
    recorder = _current.get()
    if recorder is None:
        return Step(None, prompt, tools, name, 0 if index is None else index)
    return recorder.step(prompt, tools=tools, name=name, index=index)

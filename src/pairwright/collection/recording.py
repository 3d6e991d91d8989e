"""Recording: steps, candidates and trajectories of one run, from anywhere in the workflow's code.

    async with step(prompt) as s:                       # the recorder of the current run
        for answer in await policy.complete(s.prompt, n=8):
            s.candidate(answer, score=quality(answer.text))

A candidate is written to the table when it has its score: at the end of its step, or at the end of the run if the
final reward or a scorer of finished runs decides it. Its id is derived from its position and content, so a run that is
repeated after a crash records nothing twice. Recorded messages are matched with the completions that the policy
returned (sampled_tokens.py), which provide token ids, log-probabilities, finish reasons and tools. Outside of a
collection recording does nothing, so the same code runs in production.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pairwright.collection.policies import Completion, Prompt, as_messages
from pairwright.collection.sampled_tokens import Sampled, SampledCalls
from pairwright.collection.tasks import Task
from pairwright.errors import RecordError
from pairwright.generate.template_variables import KEY
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import Json, Message, canonical_messages, content_hash, prompt_hash
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind

Emit = Callable[[str, list[Experience]], None]  # called with a prompt hash and candidates for that prompt


@dataclass(eq=False)
class Candidate:
    """One answer at a step, and its score (None until it is scored)."""

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
    """A decision point: a prompt and its competing candidates.

    Without `tools` (None) each candidate has the tools of the request that produced it.
    """

    def __init__(
        self, recorder: "Recorder | None", prompt: Prompt, tools: Sequence[Json] | None, name: str | None, index: int
    ) -> None:
        self.prompt = as_messages(prompt, "prompt", role="user")
        self.name, self.index = name, index
        self.candidates: list[Candidate] = []
        self._tools = None if tools is None else tuple(tools)
        # the tools and the hash of the last candidate
        self._hashed: tuple[tuple[Json, ...], str] | None = None
        self._recorder = recorder
        self._num_emitted = 0

    @property
    def tools(self) -> tuple[Json, ...]:
        """The tools of the step: those passed explicitly, else those of its first candidate."""
        return self.tools_of(self.candidates[0]) if self.candidates else self._tools or ()

    def tools_of(self, candidate: Candidate) -> tuple[Json, ...]:
        return (candidate.sampled.tools or ()) if self._tools is None else self._tools

    def prompt_hash_of(self, candidate: Candidate) -> str:
        """Return the hash of prompt and tools: candidates with equal hashes are comparable."""
        tools = self.tools_of(candidate)  # the last hash is cached: candidates of a step usually share their tools
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
        """Record an answer: a completion of the policy, or text or messages. Its score may be set later."""
        answer = completion if isinstance(completion, Completion) else None
        messages = (answer.message,) if answer else as_messages(completion, "completion", role="assistant")  # type: ignore[arg-type]
        if not messages:
            raise RecordError("completion", completion, "at least one message")
        # outside of a collection there are no calls to match
        calls = SampledCalls() if self._recorder is None else self._recorder.calls
        sampled = calls.match_messages(self.prompt, messages) if answer is None else calls.match_completion(answer)
        candidate = Candidate(
            messages, answer, score, dict(components or {}), dict(info or {}), dict(metrics or {}), sampled
        )
        self.candidates.append(candidate)
        return candidate

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if self._recorder is not None:
            await self._recorder.close_step(self, failed=kind is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        if self._recorder is not None:
            self._recorder.emit(self)

    def take(self, *, only_scored: bool) -> list[tuple[int, Candidate]]:
        """Take the candidates that were not taken yet, with their positions in the step."""
        # all or none: candidates of a step are compared, so they are written together
        if only_scored and any(candidate.score is None for candidate in self.candidates[self._num_emitted :]):
            return []
        waiting = list(enumerate(self.candidates))[self._num_emitted :]
        self._num_emitted = len(self.candidates)
        return waiting

    @property
    def unscored(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.score is None]


ScoreStep = Callable[[Step], Awaitable[None]]


class Recorder:
    """The records of one run. `score_step`, if any, scores candidates that the workflow left unscored."""

    def __init__(
        self, task: Task, emit: Emit, *, model_version: str | int | None = None, score_step: ScoreStep | None = None
    ) -> None:
        self.task = task
        self.steps: list[Step] = []
        self.calls = SampledCalls()
        self.final_reward: float | None = None
        self._emit, self._score_step = emit, score_step
        self._model_version = model_version
        self._open: dict[str, Step] = {}  # steps by name, see `start` and `end`
        self._numbers = itertools.count()

    def place(self, *, task: int | str, run: int) -> None:
        """Record under another task and run from now on, e.g. those of a replayed run."""
        self.task = replace(self.task, id=task, run=run)

    def step(
        self, prompt: Prompt, *, tools: Sequence[Json] | None = None, name: str | None = None, index: int | None = None
    ) -> Step:
        """Begin a step of this run; steps are numbered in order unless `index` is passed."""
        new_step = Step(self, prompt, tools, name, next(self._numbers) if index is None else index)
        self.steps.append(new_step)
        return new_step

    def start(self, name: str, prompt: Prompt, *, tools: Sequence[Json] | None = None) -> None:
        """Begin a named step, whose candidates are added with `end`."""
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
        """Add a candidate to the named step. If it was not started, `prompt` starts it."""
        if name not in self._open:
            if prompt is None:
                raise RecordError("prompt", None, f"the prompt of step {name!r}: it has no start that gave one")
            self.start(name, prompt, tools=tools)
        self._open[name].candidate(completion, score=score, info=info)
        self.emit(self._open[name])

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
        """Record a whole trajectory as one experience: all turns of the model and its tools after the prompt.

        The token ids of the model's turns become one sequence, with the tokens of the environment masked out.
        """
        # a trajectory is a step with one candidate, whose completion has many messages
        single_step = self.step(prompt, tools=tools)
        single_step.candidate(completion, score=reward, components=components, info=info, metrics=metrics)
        self.emit(single_step)

    def reward(self, value: float) -> None:
        """Set the final reward of the run: the score of every candidate without its own."""
        self.final_reward = float(value)

    def reward_from(self, output: Any) -> None:
        """Set the final reward from an agent's return value: a number, or a dict with `reward`; ignores the rest."""
        value = output.get("reward") if isinstance(output, dict) else output
        if isinstance(value, int | float):
            self.reward(float(value))

    async def close_step(self, closed: Step, *, failed: bool) -> None:
        if self._score_step is not None and closed.unscored and not failed:
            await self._score_step(closed)
        self.emit(closed)

    async def close(self) -> None:
        """End a successful run: score and emit the remaining candidates."""
        for waiting in self.steps:
            # a final reward set by the workflow takes precedence over the scorer
            if self._score_step is not None and waiting.unscored and self.final_reward is None:
                await self._score_step(waiting)
            for candidate in waiting.unscored:
                candidate.score = self.final_reward
            self.emit(waiting)
        for waiting in self.steps:  # candidates without any score are recorded as unscored
            self.emit(waiting, only_scored=False)

    def emit(self, closed: Step, *, only_scored: bool = True) -> None:
        """Emit the candidates of a step that were not emitted yet, grouped by prompt hash."""
        # tools, and so the prompt hash, may differ between candidates of a step
        groups: dict[str, list[Experience]] = {}
        for number, candidate in closed.take(only_scored=only_scored):
            experience = self._experience(closed, number, candidate)
            groups.setdefault(closed.prompt_hash_of(candidate), []).append(experience)
        for key, experiences in groups.items():
            self._emit(key, experiences)

    def _experience(self, owner: Step, number: int, candidate: Candidate) -> Experience:
        task, messages, sampled, tools = self.task, candidate.messages, candidate.sampled, owner.tools_of(candidate)
        # the id depends on content only: a repeated run gets the same ids, which the runner recognises
        suffix = content_hash(owner.prompt_hash_of(candidate), number, canonical_messages(messages))[:24]
        name = {} if owner.name is None else {"step_name": owner.name}
        info = {"candidate": number, **name, **sampled.facts(), **candidate.info}
        if not info.get(KEY):
            info.pop(KEY, None)
        is_cut = any(answer is not None and answer.finish_reason == "length" for answer in sampled.completions)
        return Experience(
            eid=EID(task.batch, task.id, task.run, owner.index, suffix),
            kind=Kind.SINGLE_TURN if len(messages) == 1 else Kind.MULTI_TURN,
            prompt=owner.prompt,
            tools=tools,
            completion=messages,
            reward=candidate.score,
            reward_components=candidate.components,
            truncate_status="response_truncated" if is_cut else None,
            model_version=self._model_version,
            errors=tuple(error_sites([*owner.prompt, *messages], list(tools), result_error_kind)),
            info=info,
            metrics=candidate.metrics,
            **sampled.arrays,
        )


# A context variable, since many runs are interleaved in one event loop; asyncio tasks inherit it
_current: ContextVar[Recorder | None] = ContextVar("pairwright_recorder", default=None)


def current_recorder() -> Recorder | None:
    """Return the recorder of the current run; None outside of a collection."""
    return _current.get()


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Make a recorder the current one within the block, including asyncio tasks started in it."""
    token = _current.set(recorder)
    try:
        yield recorder
    finally:
        _current.reset(token)


def step(
    prompt: Prompt, *, tools: Sequence[Json] | None = None, name: str | None = None, index: int | None = None
) -> Step:
    """Begin a step of the current run. Outside of a collection its candidates are not recorded."""
    recorder = _current.get()
    if recorder is None:
        return Step(None, prompt, tools, name, 0 if index is None else index)
    return recorder.step(prompt, tools=tools, name=name, index=index)

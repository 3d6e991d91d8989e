"""The policy of a configuration, and the policy object that a workflow gets with its log of answers.

Equal requests of a run are numbered. The number and the run's seed determine the seed of the answer; the number is also
part of the key under which an interrupted run finds its answer on resume.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pairwright.collection.counters import Status, Tally
from pairwright.collection.endpoint_policy import EndpointPolicy, GgufPolicy
from pairwright.collection.local_policy import LocalPolicy
from pairwright.collection.policies import Ask, Completion, Policy, Prompt, as_messages
from pairwright.collection.sampled_tokens import SampledCalls
from pairwright.collection.tasks import Task
from pairwright.config import PolicyConfig
from pairwright.errors import ConfigError
from pairwright.paths import find_model, whole_lines, write_bytes
from pairwright.records.messages import Json, content_hash

_Line = tuple[int | str, int, str, int, list[Completion]]  # task, run, key of the request, its number, answers
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Line)
Known = dict[tuple[str, int], list[Completion]]  # (key of the request, its number): the answers


def make_policy(config: PolicyConfig, *, base: Path | None = None) -> Policy:
    """Create the policy of a configuration: an endpoint, a GGUF file, or a local folder.

    Paths are resolved from the working directory, then from `base`.
    """
    if config.base_url is not None:
        return EndpointPolicy(config)
    model = config.model
    if model is None:
        raise ConfigError("policy: expected model (a folder), or base_url and model (an endpoint)")
    if base is not None and not Path(model).exists() and (base / model).exists():
        model = str(base / model)
    if model.endswith(".gguf"):
        return GgufPolicy(config, Path(model))
    return LocalPolicy.load(config, find_model(model))


class CallLog:
    """An open log of the answers of unfinished runs, so that a resumed run repeats no request."""

    def __init__(self, path: Path, *, is_done: Callable[[int | str, int], bool]) -> None:
        self.path = path
        self._known: dict[tuple[int | str, int], Known] = {}
        lines = []
        for line in whole_lines(path):
            task, run, key, number, answers = _decoder.decode(line)
            if not is_done(task, run):
                self._known.setdefault((task, run), {})[key, number] = answers
                lines.append(line + b"\n")
        # lines of runs that are done are dropped on opening, so that the log does not grow with every resume
        write_bytes(path, b"".join(lines))
        self._file = open(path, "ab")  # noqa: SIM115 (closed by `close`)

    def take(self, task: Task) -> Known:
        """Remove and return the answers of an interrupted run."""
        return self._known.pop((task.id, task.run), {})

    def add(self, task: Task, key: str, number: int, answers: list[Completion]) -> None:
        self._file.write(_encode((task.id, task.run, key, number, answers)) + b"\n")
        self._file.flush()

    def close(self, *, all_done: bool) -> None:
        self._file.close()
        if all_done:
            self.path.unlink(missing_ok=True)


class RunPolicy:
    """The policy of one run: `await policy.complete(prompt, n=8)`. Settings default to the configuration.

    Answers are kept in `log` for a resume, and in `calls` for the recorder; new ones are counted.
    """

    def __init__(
        self,
        policy: Policy,
        config: PolicyConfig,
        task: Task,
        *,
        log: CallLog,
        calls: SampledCalls,
        tally: Tally,
        status: Status,
    ) -> None:
        self._policy, self._config, self._task = policy, config, task
        self._log, self._calls, self._tally, self._status = log, calls, tally, status
        self._known = log.take(task)
        self._asked: dict[str, int] = {}  # requests so far, by content

    @property
    def name(self) -> str | int:
        return self._policy.name

    async def complete(
        self,
        prompt: Prompt,
        *,
        n: int | None = None,
        tools: Sequence[Json] = (),
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
        chat_template_kwargs: Json | None = None,
        extra: Json | None = None,
    ) -> list[Completion]:
        """Return `n` answers to a prompt (text, messages, or chat messages as dicts).

        `chat_template_kwargs` are variables of the chat template, which override those of the configuration; `extra`
        has further keys of a request to an endpoint.
        """
        config = self._config
        ask = Ask(
            messages=as_messages(prompt, "prompt", role="user"),
            tools=tuple(tools),
            n=config.num_candidates if n is None else n,
            temperature=config.temperature if temperature is None else temperature,
            top_p=config.top_p if top_p is None else top_p,
            max_tokens=config.max_tokens if max_tokens is None else max_tokens,
            stop=config.stop if stop is None else tuple(stop),
            seed=0 if seed is None else seed,
            chat_template_kwargs={**config.chat_template_kwargs, **(chat_template_kwargs or {})},
            extra=extra or {},
        )
        answers = await self._answer(ask, seed)
        self._calls.add(ask, answers)
        return answers

    async def _answer(self, ask: Ask, seed: int | None) -> list[Completion]:
        # an explicit seed is part of the key; a derived seed depends on the number
        key = content_hash(ask.key(), seed)
        number = self._asked[key] = self._asked.get(key, -1) + 1
        known = self._known.pop((key, number), None)
        if known is not None:
            return known
        if seed is None:
            # 31 bits, which every server accepts, so that seeds are equal for local models and endpoints
            drawn = int(content_hash("call", self._task.seed, key, number)[:8], 16) >> 1
            ask = msgspec.structs.replace(ask, seed=drawn)
        self._status.num_asked += 1
        try:
            answers = await self._policy.complete(ask)
        finally:
            self._status.num_asked -= 1
        self._log.add(self._task, key, number, answers)
        self._tally.add_answers(answers)
        self._status.add_answers(answers)
        return answers

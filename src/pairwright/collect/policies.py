"""Which policy a configuration means, and the policy as one run sees it.

A run's questions are numbered by their content: the n-th time that a run asks the same. That number and the run's
seed give the seed of the answer, and find the answer again when a run that was cut short is played once more.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pairwright.canonical import content_hash
from pairwright.collect.calls import CallLog
from pairwright.collect.completion import Ask, Completion, Policy, Prompt, as_messages
from pairwright.collect.tasks import Task
from pairwright.config import PolicyConfig
from pairwright.messages import Json


def make_policy(config: PolicyConfig, *, base: Path | None = None) -> Policy:
    """The policy of a configuration; a local folder is looked for from here, then from `base`."""
    if config.base_url is not None:
        from pairwright.collect.endpoint import EndpointPolicy

        return EndpointPolicy(config)
    from pairwright.collect.local import LocalPolicy, local_folder

    folder = local_folder(config)
    if base is not None and not folder.exists() and (base / folder).exists():
        folder = base / folder
    return LocalPolicy.load(config, folder)


class RunPolicy:
    """What a workflow asks: `await policy.complete(prompt, n=8)`. Settings that it does not give are the config's."""

    def __init__(
        self,
        policy: Policy,
        config: PolicyConfig,
        task: Task,
        *,
        calls: CallLog | None = None,
        on_answer: Callable[[list[Completion]], None] | None = None,
        on_call: Callable[[Ask, list[Completion]], None] | None = None,
    ) -> None:
        self._policy, self._config, self._task = policy, config, task
        self._calls, self._on_answer, self._on_call = calls, on_answer, on_call
        self._known = {} if calls is None else calls.take(task)
        self._asked: dict[str, int] = {}

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
    ) -> list[Completion]:
        """Answers to a prompt (text, messages, or chat messages as dicts), as many as `n`.

        `on_answer` learns of those that were asked for just now, `on_call` of all of them.
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
        )
        answers = await self._answered(ask, seed)
        if self._on_call is not None:
            self._on_call(ask, answers)
        return answers

    async def _answered(self, ask: Ask, seed: int | None) -> list[Completion]:
        key = content_hash(ask.key(), seed)
        number = self._asked[key] = self._asked.get(key, -1) + 1
        known = self._known.pop((key, number), None)
        if known is not None:
            return known
        if seed is None:
            # 31 bits, which every server takes: a model gives the same answers here and behind an endpoint
            drawn = int(content_hash("call", self._task.seed, key, number)[:8], 16) >> 1
            ask = msgspec.structs.replace(ask, seed=drawn)
        answers = await self._policy.complete(ask)
        if self._calls is not None:
            self._calls.add(self._task, key, number, answers)
        if self._on_answer is not None:
            self._on_answer(answers)
        return answers

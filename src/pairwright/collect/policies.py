"""Policies: their answers, the log of answers of unfinished runs, the policy object of a run, and the local policy.

Requests of a run are numbered per content: the n-th time that the run makes the same request. That number and the
run's seed give the seed of the answer, and the key under which an interrupted run finds its answer again on resume.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from pairwright.collect.tasks import Task
from pairwright.config import PolicyConfig
from pairwright.errors import ConfigError, PairwrightError, RecordError
from pairwright.generate import Batcher, Engine, GenerateError, Request, Sampling
from pairwright.generate.tool_calls import split_calls
from pairwright.paths import find_model, write_bytes
from pairwright.records.messages import Json, Message, ToolCall, content_hash
from pairwright.sources.fields import BadRecord
from pairwright.sources.shapes.chat_messages import message_from_chat

# The policy interface: Ask (a request), Completion (an answer), Policy; conversion of prompts; errors of a
# collection.
#
# Prompts and answers may be text, messages, or chat dicts; `as_messages` normalizes them.


Prompt = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A complete request to the model: equal requests with equal seeds may be answered from the log."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...] = ()
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0
    chat_template_kwargs: Json = {}  # variables of the chat template
    extra: Json = {}  # parameters of an agent's request that only an endpoint knows

    def key(self) -> str:
        """A hash that is equal for equal requests, whatever their seed."""
        sampling = (self.n, self.temperature, self.top_p, self.max_tokens, self.stop)
        variables = [item for item in (self.chat_template_kwargs, self.extra) if item]
        return content_hash(msgspec.to_builtins(self.messages), list(self.tools), *sampling, *variables)


class Completion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer. Token ids and log-probabilities are set if the model or its server returns them."""

    message: Message
    finish_reason: str | None = None
    model: str | None = None
    response_id: str | None = None
    prompt_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    token_texts: list[str] | None = None  # the tokens of the log-probabilities as text, if there are no ids
    num_prompt_tokens: int = 0
    num_tokens: int = 0

    @property
    def text(self) -> str:
        return self.message.text


class Policy(Protocol):
    """A model that answers requests. `name` is recorded as the model version."""

    @property
    def name(self) -> str | int: ...

    async def complete(self, ask: Ask) -> list[Completion]:
        """Return `ask.n` answers, or raise PolicyError."""
        ...

    async def close(self) -> None: ...


def as_messages(value: Prompt, where: str, *, role: str) -> tuple[Message, ...]:
    """Convert text (to one message of `role`), a message, or chat dicts in OpenAI's form to messages."""
    if isinstance(value, str):
        return (Message(role, value),)
    # a mapping is one chat message, a sequence of them a conversation
    if isinstance(value, Message | Mapping):
        value = [value]
    if not isinstance(value, Sequence):
        raise RecordError(where, value, "text, messages, or chat messages as dicts")
    return tuple(_message(item, f"{where}[{number}]") for number, item in enumerate(value))


def _message(value: Any, where: str) -> Message:
    if isinstance(value, Message):
        return value
    if not isinstance(value, Mapping):
        raise RecordError(where, value, "a Message or a chat message as dict")
    try:
        return message_from_chat(dict(value), where)
    except BadRecord as error:
        raise RecordError(where, value, str(error)) from None


# Failures of a run: a short kind to count by, and a message

FailureKind = Literal[
    "timeout", "connection", "rate_limited", "server_error", "refused", "bad_response", "scorer", "record", "workflow"
]


class CollectError(PairwrightError):
    """A collection that cannot start or continue."""


class PolicyError(CollectError):
    """The policy returned no answer, after the retries for this kind of failure."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        self.kind: FailureKind = kind
        super().__init__(message)


class ScorerError(CollectError):
    """The scorer failed or returned no valid score."""


def one_line(error: BaseException, limit: int = 500) -> str:
    """Format an exception as one line, for ledgers and tables."""
    # messages of HTTP and JSON libraries span several lines
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= limit else f"{line[:limit]}…"


# The call log: answers of unfinished runs, so that a resumed run repeats no request

_Line = tuple[int | str, int, str, int, list[Completion]]  # task, run, key of the request, its number, answers
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Line)
Known = dict[tuple[str, int], list[Completion]]  # (key of the request, its number): the answers


class CallLog:
    """An open log. Lines of runs for which `is_done(task, run)` holds are dropped on opening."""

    def __init__(self, path: Path, *, is_done: Callable[[int | str, int], bool]) -> None:
        self.path = path
        self._known: dict[tuple[int | str, int], Known] = {}
        lines = []
        for line in _whole_lines(path):
            task, run, key, number, answers = _decoder.decode(line)
            if not is_done(task, run):
                self._known.setdefault((task, run), {})[key, number] = answers
                lines.append(line)
        # compact the log on opening, so that it does not grow with every resume
        write_bytes(path, b"".join(lines))
        # O_APPEND: each write goes to the end of the file
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def take(self, task: Task) -> Known:
        """Remove and return the answers of an interrupted run."""
        return self._known.pop((task.id, task.run), {})

    def add(self, task: Task, key: str, number: int, answers: list[Completion]) -> None:
        line = memoryview(_encode((task.id, task.run, key, number, answers)) + b"\n")
        # os.write may write less than it was given
        while line:
            line = line[os.write(self._fd, line) :]

    def close(self, *, all_done: bool) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if all_done:
            self.path.unlink(missing_ok=True)


def _whole_lines(path: Path) -> list[bytes]:
    """The complete lines of a file; an incomplete last line, cut by a crash, is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


# The policy of a configuration, and the policy object that a workflow gets


def make_policy(config: PolicyConfig, *, base: Path | None = None) -> Policy:
    """Create the policy of a configuration; a local folder is resolved from the working directory, then from `base`."""
    if config.base_url is not None:
        from pairwright.collect.endpoint import EndpointPolicy

        return EndpointPolicy(config)

    folder = local_folder(config)
    if base is not None and not folder.exists() and (base / folder).exists():
        folder = base / folder
    return LocalPolicy.load(config, folder)


class RunPolicy:
    """The policy of one run: `await policy.complete(prompt, n=8)`. Settings default to the configuration."""

    def __init__(
        self,
        policy: Policy,
        config: PolicyConfig,
        task: Task,
        *,
        calls: CallLog | None = None,
        on_answer: Callable[[list[Completion]], None] | None = None,
        on_call: Callable[[Ask, list[Completion]], None] | None = None,
        on_ask: Callable[[int], None] | None = None,
    ) -> None:
        self._policy, self._config, self._task = policy, config, task
        self._calls, self._on_answer, self._on_call, self._on_ask = calls, on_answer, on_call, on_ask
        # without a log nothing is recorded for a resume, and every request is sent
        self._known = {} if calls is None else calls.take(task)
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

        `chat_template_kwargs` are variables of the chat template, over those of the configuration; `extra` are more
        keys of a request to an endpoint.
        `on_answer` is called with new answers only, `on_call` with those from the log, too.
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
        if self._on_call is not None:
            self._on_call(ask, answers)
        return answers

    async def _answer(self, ask: Ask, seed: int | None) -> list[Completion]:
        # an explicit seed is part of the key, a derived one follows from the number
        key = content_hash(ask.key(), seed)
        number = self._asked[key] = self._asked.get(key, -1) + 1
        known = self._known.pop((key, number), None)
        if known is not None:
            return known
        if seed is None:
            # 31 bits, which every server accepts: a model gives the same answers locally and behind an endpoint
            drawn = int(content_hash("call", self._task.seed, key, number)[:8], 16) >> 1
            ask = msgspec.structs.replace(ask, seed=drawn)
        if self._on_ask is not None:
            self._on_ask(1)
        try:
            answers = await self._policy.complete(ask)
        finally:
            if self._on_ask is not None:
                self._on_ask(-1)
        if self._calls is not None:
            self._calls.add(self._task, key, number, answers)
        if self._on_answer is not None:
            self._on_answer(answers)
        return answers


# The local policy: a checkpoint loaded once, requests of all tasks answered in batches


class LocalPolicy:
    """Answers from a local engine. Token ids and log-probabilities are recorded exactly as sampled."""

    def __init__(self, engine: Engine, *, name: str | int | None = None) -> None:
        self.name: str | int = engine.name if name is None else name
        self.engine = engine
        self._batcher = Batcher(engine)
        self._call_format = engine.call_format

    @classmethod
    def load(cls, config: PolicyConfig, folder: Path) -> "LocalPolicy":
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # it would break the live table
        engine = Engine.load(
            folder,
            device=config.device,
            dtype=config.dtype,
            max_batch_tokens=config.max_batch_tokens,
            tools_as_text=config.tools_as_text,
        )
        if config.num_threads is not None:
            import torch

            torch.set_num_threads(config.num_threads)
        return cls(engine, name=config.model_version)

    @property
    def tokens_in_flight(self) -> int:
        """Tokens of answers that are not finished."""
        return self._batcher.tokens_in_flight

    async def complete(self, ask: Ask) -> list[Completion]:
        try:
            prompt = self.engine.prompt_ids(ask.messages, ask.tools, variables=ask.chat_template_kwargs)
            sampling = Sampling(
                temperature=ask.temperature,
                top_p=ask.top_p,
                max_tokens=ask.max_tokens,
                n=ask.n,
                seed=ask.seed,
                stop=ask.stop,
                # special tokens delimit tool calls in many templates, so they stay in the text that is parsed
                skip_special_tokens=not ask.tools,
            )
            result = await self._batcher.submit(Request(prompt, sampling))
        except GenerateError as error:
            raise PolicyError("refused", str(error)) from error
        prompt_ids = prompt.tolist()
        return [
            Completion(
                message=self._message(choice.text, ask),
                finish_reason=choice.finish_reason,
                model=self.engine.name,
                prompt_ids=prompt_ids,
                token_ids=choice.tokens.tolist(),
                logprobs=choice.logprobs.tolist(),
                num_prompt_tokens=len(prompt_ids),
                num_tokens=len(choice.tokens),
            )
            for choice in result.choices
        ]

    async def close(self) -> None:
        await self._batcher.close()

    def _message(self, text: str, ask: Ask) -> Message:
        if not ask.tools or self._call_format is None:
            return Message("assistant", text)
        rest, calls = split_calls(self._call_format, text)  # the text around the calls, and the calls
        numbered = tuple(
            ToolCall(call.name, call.arguments, f"call_{number}", call.type) for number, call in enumerate(calls)
        )
        # with calls an empty text is None, as the chat APIs return it
        return Message("assistant", rest or None if numbered else rest, tool_calls=numbered)


def local_folder(config: PolicyConfig) -> Path:
    if config.model is None:
        raise ConfigError("policy: expected model (a folder), or base_url and model (an endpoint)")
    return find_model(config.model)

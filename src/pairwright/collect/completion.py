"""What is asked of a policy and what it answers; prompts and answers in the forms that people have them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from pairwright.errors import PairwrightError, RecordError
from pairwright.records.canonical import content_hash
from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord
from pairwright.sources.shapes.chat_messages import message_from_chat

Prompt = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the model, complete: equal asks with equal seeds may be answered from a record."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...] = ()
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0

    def key(self) -> str:
        """Equal for equal questions, whatever their seed."""
        return content_hash(
            msgspec.to_builtins(self.messages), list(self.tools), self.n, self.temperature, self.top_p, self.max_tokens,
            self.stop,
        )  # fmt: skip


class Completion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer. Token ids and log-probabilities are there where the model or its server gives them."""

    message: Message
    finish_reason: str | None = None
    model: str | None = None
    response_id: str | None = None
    prompt_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    token_texts: list[str] | None = None  # what the log-probabilities belong to where there are no ids
    num_prompt_tokens: int = 0
    num_tokens: int = 0

    @property
    def text(self) -> str:
        return self.message.text


class Policy(Protocol):
    """A model that answers. `name` is the version that is recorded with what it does."""

    @property
    def name(self) -> str | int: ...

    async def complete(self, ask: Ask) -> list[Completion]:
        """As many answers as were asked for, or PolicyError."""
        ...

    async def close(self) -> None: ...


def as_messages(value: Prompt, where: str, *, role: str) -> tuple[Message, ...]:
    """Messages of text (one message of `role`), of a message, or of chat messages in OpenAI's form."""
    if isinstance(value, str):
        return (Message(role, value),)
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


# Why a run failed: one short kind for counting, one message for reading.

FailureKind = Literal[
    "timeout", "connection", "rate_limited", "server_error", "refused", "bad_response", "scorer", "record", "workflow"
]


class CollectError(PairwrightError):
    """A collection that cannot start or go on."""


class PolicyError(CollectError):
    """The policy gave no answer, after the retries that make sense for the kind of failure."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        self.kind: FailureKind = kind
        super().__init__(message)


class ScorerError(CollectError):
    """The scorer gave no score."""


def one_line(error: BaseException, limit: int = 500) -> str:
    """An exception in one line, for ledgers and tables."""
    text = " ".join(str(error).split())
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return shown if len(shown) <= limit else f"{shown[:limit]}…"

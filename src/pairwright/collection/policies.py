"""The policy interface: `Ask` (a request), `Completion` (an answer), `Policy`; prompts as messages.

Prompts and answers may be text, messages, or chat dicts; `as_messages` normalizes them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message, content_hash
from pairwright.sources.fields import BadRecord
from pairwright.sources.shapes.chat_messages import message_from_chat

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
        """Return a hash of the request without its seed."""
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

    def facts(self) -> Json:
        """Return fields of `info`; log-probabilities only if there are no token ids to store them with."""
        facts: Json = {"finish_reason": self.finish_reason, "response_id": self.response_id}
        if self.logprobs is not None and self.token_texts is not None:
            facts["logprobs"] = {"tokens": self.token_texts, "logprobs": self.logprobs}
        return {key: value for key, value in facts.items() if value is not None}


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

"""Requests and results of the engine (Sampling, Request, Choice, Result, Piece), encoding of chat prompts, and
text that is streamed token by token."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from pairwright.errors import PairwrightError
from pairwright.generate.template_variables import KEY, explain_variables
from pairwright.records.messages import Json, Message, to_template_chat
from pairwright.records.tool_texts import to_chat_tool, write_tools_as_text

Finish = Literal["stop", "length", "cancelled"]
Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


class GenerateError(PairwrightError, ValueError):
    """A model that cannot be loaded, or a request that it cannot answer."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling settings. `temperature` 0 takes the most likely token.

    Token t of choice c depends only on (seed, c, t) and the model's probabilities, not on the rest of the batch nor on
    the order of requests.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    max_tokens: int | None = None  # None: to the end of the model's context
    n: int = 1
    seed: int = 0
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0 <= self.temperature < math.inf, "at least 0")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1")
        _check("top_k", self.top_k, self.top_k >= 0, "at least 0 (0: all)")
        _check("max_tokens", self.max_tokens, self.max_tokens is None or self.max_tokens >= 1, "at least 1, or None")
        _check("n", self.n, 1 <= self.n <= 4096, "1 to 4096")
        _check("seed", self.seed, 0 <= self.seed < 2**64, "0 to 2**64 - 1")
        _check("stop", self.stop, "" not in self.stop, "non-empty texts")
        _check("top_logprobs", self.top_logprobs, 0 <= self.top_logprobs <= 100, "0 to 100")


@dataclass(frozen=True)
class Request:
    """A prompt as token ids, and its sampling settings."""

    prompt: Sequence[int] | Ids
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, eq=False)
class Choice:
    """One continuation: all sampled tokens, including the stop token, and their text without it.

    `logprobs` are the model's own (temperature 1, before top_p and top_k). `stop` is the token id or text that ended
    it. `top_logprobs` has the most likely (id, log-probability) of each position, if requested.
    """

    index: int
    tokens: Ids
    logprobs: Floats
    text: str
    finish_reason: Finish
    stop: int | str | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Result:
    num_prompt_tokens: int
    choices: tuple[Choice, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)


@dataclass(frozen=True)
class Piece:
    """An increment of one choice during generation: one token, and the text that is now final (may be empty)."""

    request: int  # position in the list passed to `generate`
    choice: int
    token: int
    logprob: float
    text: str
    finish_reason: Finish | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


def _check(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise GenerateError(f"{name}: got {value!r}, expected {expected}")


# Messages to token ids, through the model's chat template in transformers' sandbox

_MAX_KNOWN_BYTES = 64 * 2**20  # of prompts that are remembered with their ids
Render = Callable[[list[Json], list[Json] | None, Json | None], str]  # chat, tools, variables of the template


class ChatEncoder:
    """Encodes prompts with one tokenizer. Results are cached, because agents repeat the same prompts."""

    def __init__(self, tokenizer: Any, *, tools_as_text: bool = False) -> None:
        self._tokenizer = tokenizer
        self._tools_as_text = tools_as_text
        self._form: tuple[str, str | None] | None = None  # form of calls that the template accepts, once known
        self._known: dict[bytes, Ids] = {}
        self._num_known_bytes = 0
        self.render: Render = self._apply_template

    def ids(self, messages: Sequence[Message], tools: Sequence[Json] = (), *, variables: Json | None = None) -> Ids:
        """Encode a conversation with the generation prompt; `variables` go to the template (enable_thinking)."""
        key = msgspec.json.encode((messages, tools, variables))
        ids = self._known.get(key)
        if ids is None:
            ids = self.text_ids(self.text(messages, tools, variables=variables))
            self._num_known_bytes += len(key) + ids.nbytes
            if self._num_known_bytes > _MAX_KNOWN_BYTES:
                self._known.clear()
                self._num_known_bytes = len(key) + ids.nbytes
            self._known[key] = ids
        return ids

    def text_ids(self, text: str) -> Ids:
        """Encode text unchanged: control tokens in it are parsed, none are added."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:  # a slow tokenizer, in Python
            return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
        if backend.truncation is not None or backend.padding is not None:  # state left by another call
            backend.no_truncation()
            backend.no_padding()
        return np.array(backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def text(self, messages: Sequence[Message], tools: Sequence[Json] = (), *, variables: Json | None = None) -> str:
        if not self._tokenizer.chat_template:
            raise GenerateError("the model has no chat template: ask for a completion of text instead of a chat")
        if variables:  # checked before they become keyword arguments of apply_chat_template
            template = self._tokenizer.chat_template
            problem = explain_variables(variables, template.values() if isinstance(template, dict) else [template])
            if problem is not None:
                raise GenerateError(f"{KEY}: {problem}")
        if self._tools_as_text:
            messages, tools = write_tools_as_text(messages, tools).messages, ()
        if not any(message.tool_calls for message in messages):
            return self._render(messages, tools, "object", "", variables)
        # templates differ in how they take arguments and empty content: try all forms, then reuse the first that works
        forms = [self._form] if self._form else list(itertools.product(("object", "text"), (None, "")))
        for number, (arguments, empty) in enumerate(forms):
            try:
                text = self._render(messages, tools, arguments, empty, variables)
            except GenerateError:
                if number == len(forms) - 1:
                    raise
                continue
            self._form = (arguments, empty)
            return text
        raise AssertionError("the last form returned or raised")

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Json], arguments: str, empty: str | None, more: Json | None
    ) -> str:
        chat = to_template_chat(messages, arguments=arguments, empty=empty)
        return self.render(chat, [to_chat_tool(tool) for tool in tools] or None, more)

    def _apply_template(self, chat: list[Json], tools: list[Json] | None, variables: Json | None) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                chat, tools=tools, tokenize=False, add_generation_prompt=True, **(variables or {})
            )
        except Exception as error:  # a template may raise anything to reject a conversation
            raise GenerateError(
                f"the chat template refuses this conversation: {type(error).__name__}: {error}"
            ) from None
        return text


# Incremental text of a growing list of tokens: text that may still change is held back.


_REPLACEMENT = "�"  # decoders write it for an incomplete UTF-8 sequence


class TextStream:
    """`add` a token and get the text that is now final; `stop_text` is the stop text once it has occurred."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, stop
        self._ids: list[int] = []
        # Tokens [start:end] are decoded again as left context, because a token's text may depend on the one before it
        # (leading spaces, multi-byte characters). The text of all tokens before `end` has been returned.
        self._start = self._end = 0
        self._pending = ""
        self.stop_text: str | None = None

    def add(self, token: int) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[self._start : self._end])
        text = self._decode(self._ids[self._start :])
        if text.endswith(_REPLACEMENT) or len(text) <= len(before):
            return ""
        self._start, self._end = self._end, len(self._ids)
        return self._give(text[len(before) :])

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        if self.stop_text is not None:
            return ""
        before = self._decode(self._ids[self._start : self._end])
        rest = self._give(self._decode(self._ids[self._start :])[len(before) :])
        if self.stop_text is not None:
            return rest
        rest, self._pending = rest + self._pending, ""
        return rest

    def _give(self, more: str) -> str:
        text = self._pending + more
        matches = [(text.index(stop), stop) for stop in self._stop if stop in text]
        if matches:
            at, self.stop_text = min(matches)
            self._pending = ""
            return text[:at]
        # hold back the longest end of the text that may be the beginning of a stop text
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a proper prefix of the stop text."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)

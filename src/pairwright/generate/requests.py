"""Requests and results of the engine: Sampling, Request, Choice, Result, Piece."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pairwright.errors import PairwrightError

Finish = Literal["stop", "length", "cancelled"]
Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


class GenerateError(PairwrightError, ValueError):
    """A model that cannot be loaded, or a request that it cannot answer."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling settings. `temperature` 0 takes the most likely token.

    Token t of choice c depends only on (seed, c, t) and the model's probabilities, not on the rest of the batch or
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

"""The policy of an OpenAI-compatible endpoint: requests, rate limits, retries, and the errors that end a run.

Retried: failed or broken connections, timeouts, 408, 409, 429, 5xx, malformed responses. Not retried: permanent
refusals (other 4xx, exhausted quota). The API key is read from an environment variable and never appears in a message
or a record.
"""

import asyncio
import contextlib
import email.utils
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairwright.collection.chat_completions import completions_of_chat
from pairwright.collection.policies import Ask, Completion
from pairwright.collection.run_failures import FailureKind, PolicyError, one_line
from pairwright.config import PolicyConfig
from pairwright.engines.listening import raise_file_limit
from pairwright.errors import ConfigError
from pairwright.generate.llama_server import LlamaServer
from pairwright.records.messages import Json, to_chat_message

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# The first wait before a request is repeated; it doubles each time, with jitter.
_RETRY_SECONDS = 0.5
# The longest wait. If an endpoint requests more, the run fails.
_MAX_RETRY_SECONDS = 60.0
_NO_KEY = "none"  # the SDK requires a key; local servers ignore it
_REQUESTS_PER_CLIENT = 32


class EndpointPolicy:
    """Requests answers from an endpoint. `retries` counts repeated requests by kind of failure."""

    def __init__(self, config: PolicyConfig) -> None:
        if not config.base_url or not config.model:
            raise ConfigError("policy: an endpoint needs base_url and model")
        self.name: str | int = config.model if config.model_version is None else config.model_version
        self.retries: dict[str, int] = {}
        self.takes_extra = True
        self._config = config
        self._clients = ClientPool(config)
        self._limit = RateLimit(config.requests_per_minute, config.tokens_per_minute)
        self._slots: Any = asyncio.Semaphore(config.max_in_flight) if config.max_in_flight else contextlib.nullcontext()

    async def complete(self, ask: Ask) -> list[Completion]:
        """Return `ask.n` answers; sends further requests if the endpoint returns fewer per request."""
        answers: list[Completion] = []
        while len(answers) < ask.n:
            num_choices = min(ask.n - len(answers), self._config.max_choices_per_request or ask.n)
            answers += await self._request(ask, num_choices, (ask.seed + len(answers)) % 2**31)
        return answers[: ask.n]

    async def close(self) -> None:
        await self._clients.close()

    async def _request(self, ask: Ask, num_choices: int, seed: int) -> list[Completion]:
        config = self._config
        body = request_body(ask, config, num_choices, seed)
        for attempt in range(config.max_retries + 1):
            await self._limit.wait()
            async with self._slots:
                try:
                    async with self._clients.acquire() as client:
                        # post() sends the body unchanged; validation in the SDK's typed method takes 5 ms
                        answers = completions_of_chat(await client.post("/chat/completions", body=body, cast_to=object))
                    self._limit.spend(sum(item.num_tokens for item in answers) + answers[0].num_prompt_tokens)
                    return answers
                except Exception as error:  # boundary of the SDK: classified by _failure, or raised again
                    failure, asked = _failure(error)
            is_over = attempt == config.max_retries or failure.kind == "refused"
            if is_over or (asked is not None and asked > _MAX_RETRY_SECONDS):
                raise failure
            self.retries[failure.kind] = self.retries.get(failure.kind, 0) + 1
            await asyncio.sleep(backoff(attempt, first=_RETRY_SECONDS, longest=_MAX_RETRY_SECONDS, asked=asked))
        raise AssertionError("the last attempt returned or raised")


class GgufPolicy(EndpointPolicy):
    """Answers from a GGUF file. The file determines the data types: `device` and `dtype` are not used."""

    def __init__(self, config: PolicyConfig, file: Path) -> None:
        if config.tools_as_text != "off":
            raise ConfigError(f"tools_as_text: llama.cpp renders chats with the template of {file}: not available")
        self._server = LlamaServer(file, threads=config.num_threads)
        # one answer per request: the server computes the shared prompt only once anyway
        served = {"base_url": self._server.url, "max_choices_per_request": 1, "model_version": config.model_version}
        super().__init__(config.model_copy(update=served))

    async def close(self) -> None:
        await super().close()
        self._server.close()


def request_body(ask: Ask, config: PolicyConfig, num_choices: int, seed: int) -> Json:
    body: Json = {
        **ask.extra,
        "model": config.model,
        "messages": [to_chat_message(message, missing_id="") for message in ask.messages],
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "n": num_choices,
    }
    if ask.tools:
        body["tools"] = list(ask.tools)
    if ask.chat_template_kwargs:
        body["chat_template_kwargs"] = ask.chat_template_kwargs
    if ask.max_tokens is not None:
        body["max_tokens"] = ask.max_tokens
    if ask.stop:
        body["stop"] = list(ask.stop)
    if config.send_seed:
        body["seed"] = seed
    if config.logprobs:
        body["logprobs"] = True
    if config.return_token_ids:
        body["return_token_ids"] = True
    return {**body, **config.extra_body}


def _failure(error: Exception) -> tuple[PolicyError, float | None]:
    """Convert an exception to PolicyError; returns it and the wait that the endpoint requests, in seconds."""
    import openai

    if isinstance(error, PolicyError):
        return error, None
    if isinstance(error, openai.APIStatusError):
        status, headers = error.status_code, error.response.headers
        kind: FailureKind = "refused"
        # an exhausted quota is also a 429, but retrying does not help
        if status == 429 and error.code != "insufficient_quota":
            kind = "rate_limited"
        elif status >= 500:
            kind = "server_error"
        elif status in (408, 409) or headers.get("x-should-retry") == "true":
            kind = "connection"
        if headers.get("x-should-retry") == "false":
            kind = "refused"
        return PolicyError(kind, f"the endpoint answered {status}: {one_line(error)}"), retry_after(headers)
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        return PolicyError("connection", f"{one_line(error)} ({one_line(cause)})"), None
    if isinstance(error, openai.OpenAIError | ValueError):
        return PolicyError("bad_response", f"the endpoint's answer cannot be read: {one_line(error)}"), None
    raise error


class ClientPool:
    """`async with pool.acquire() as client` for one request. All clients share the key, address and settings."""

    def __init__(self, config: PolicyConfig) -> None:
        try:
            import openai  # noqa: F401
        except ImportError:
            raise ConfigError(
                "policy: an endpoint needs the openai package: pip install 'pairwright[collect]'"
            ) from None
        self._config = config
        self._key = _NO_KEY
        if config.api_key_env is not None:
            self._key = os.environ.get(config.api_key_env, "")
            if not self._key:
                raise ConfigError(f"policy.api_key_env: the environment has no {config.api_key_env}")
        raise_file_limit(65_536)  # each connection needs a file, and the usual soft limit is 1,024
        self._tls = ssl.create_default_context()  # shared: loading the CA certificates takes milliseconds
        self._in_flight: dict[AsyncOpenAI, int] = {}  # requests of each client

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator["AsyncOpenAI"]:
        client = next((client for client, num in self._in_flight.items() if num < _REQUESTS_PER_CLIENT), None)
        if client is None:
            client = self._client()
        self._in_flight[client] = self._in_flight.get(client, 0) + 1
        try:
            yield client
        finally:
            self._in_flight[client] -= 1

    async def close(self) -> None:
        for client in self._in_flight:
            await client.close()

    def _client(self) -> "AsyncOpenAI":
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        config = self._config
        return AsyncOpenAI(
            base_url=config.base_url,
            api_key=self._key,
            max_retries=0,
            timeout=config.timeout_seconds,
            http_client=DefaultAsyncHttpxClient(verify=self._tls, timeout=config.timeout_seconds),
        )


class RateLimit:
    """Rate limiter: `wait` before a request, `spend` its tokens after it. None: no limit."""

    def __init__(self, requests_per_minute: float | None = None, tokens_per_minute: float | None = None) -> None:
        self._interval = 60 / requests_per_minute if requests_per_minute else 0.0
        self._seconds_per_token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._next = 0.0  # the earliest start of the next request
        self._paid_until = 0.0  # when the tokens spent so far fit the limit

    async def wait(self) -> None:
        if not self._interval and not self._seconds_per_token:
            return
        now = time.monotonic()
        start = max(now, self._next, self._paid_until - 60)  # allows a burst of one minute's tokens
        self._next = start + self._interval
        if start > now:
            await asyncio.sleep(start - now)

    def spend(self, num_tokens: int) -> None:
        """Account for the tokens of an answer. Their number is known only afterwards, so later requests wait."""
        self._paid_until = max(self._paid_until, time.monotonic()) + num_tokens * self._seconds_per_token


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait according to the response headers: retry-after-ms, or retry-after as seconds or as a date.

    >>> retry_after({"retry-after-ms": "1500"}), retry_after({"retry-after": "2"}), retry_after({})
    (1.5, 2.0, None)
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * scale)
        except (KeyError, ValueError):
            continue
    try:
        when = email.utils.parsedate_to_datetime(headers["retry-after"])
    except (KeyError, ValueError, TypeError):
        return None
    return max(0.0, when.timestamp() - time.time())


def backoff(attempt: int, *, first: float, longest: float, asked: float | None) -> float:
    """Seconds before the next attempt: exponential with jitter, never shorter than what the endpoint `asked` for."""
    own: float = min(longest, first * 2**attempt) * random.uniform(0.5, 1.0)
    return own if asked is None else max(own, asked * random.uniform(1.0, 1.1))

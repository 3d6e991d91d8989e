"""A policy at an OpenAI-compatible endpoint: SDK clients, rate limits, retries, and decoding of chat completions.

Retried: failed or broken connections, timeouts, 408, 409, 429, 5xx, malformed responses. Not retried: permanent
refusals (other 4xx, exhausted quota). The API key is read from an environment variable and never appears in a message
or a record.
"""

import asyncio
import contextlib
import email.utils
import os
import random
import resource
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pairwright.collect.policies import Ask, Completion, FailureKind, PolicyError, one_line
from pairwright.config import PolicyConfig
from pairwright.errors import ConfigError, PairwrightError
from pairwright.records.messages import Json, to_chat_message
from pairwright.sources.shapes.chat_messages import message_from_chat

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# SDK clients of one endpoint: a new one for every few dozen requests in flight

_NO_KEY = "none"  # the SDK requires a key; local servers ignore it
_REQUESTS_PER_CLIENT = 32


@dataclass
class _Slot:
    client: "AsyncOpenAI"
    in_flight: int = 0


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
        _allow_many_connections()
        self._tls = ssl.create_default_context()  # shared: loading the CA certificates takes milliseconds
        self._slots: list[_Slot] = []

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator["AsyncOpenAI"]:
        slot = next((slot for slot in self._slots if slot.in_flight < _REQUESTS_PER_CLIENT), None)
        if slot is None:
            slot = _Slot(self._client())
            self._slots.append(slot)
        slot.in_flight += 1
        try:
            yield slot.client
        finally:
            slot.in_flight -= 1

    async def close(self) -> None:
        for slot in self._slots:
            await slot.client.close()

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


def _allow_many_connections() -> None:
    """Raise the limit of open files: each connection needs one, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft < hard):
        wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


# Rate limits and retry delays, shared by all requests of one endpoint


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
    """Seconds to wait according to the response headers: retry-after-ms, or retry-after as seconds or as a date."""
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


# Chat completion responses to Completions: messages, finish reasons, token ids, log-probabilities

_ID_PREFIX = "token_id:"  # vLLM's return_tokens_as_token_ids writes ids as token texts


def completions_of_chat(response: Any) -> list[Completion]:
    """The choices of a decoded response, in order; PolicyError if there are none."""
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(choices, list) or not choices:
        raise PolicyError("bad_response", f"the endpoint's answer has no choices: {str(response)[:200]}")
    return [_completion(response, choice, f"choices[{number}]") for number, choice in enumerate(choices)]


def _completion(response: Json, choice: Any, where: str) -> Completion:
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise PolicyError("bad_response", f"{where} of the endpoint's answer has no message")
    # servers write unset fields as null or []
    fields = {key: item for key, item in choice["message"].items() if item is not None and item != []}
    try:
        message = message_from_chat({"role": "assistant", **fields}, f"{where}.message")
    except PairwrightError as error:
        raise PolicyError("bad_response", f"the endpoint's answer cannot be read: {error}") from None
    texts, logprobs = token_logprobs(choice.get("logprobs"))
    token_ids = ids_of(choice.get("token_ids")) or _ids_of_texts(texts)
    usage = response.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    choices = response["choices"]
    # usage counts all choices together: without ids or log-probabilities each gets an equal share
    num_tokens = len(token_ids or logprobs or ()) or _share(usage.get("completion_tokens"), len(choices))
    return Completion(
        message=message,
        finish_reason=_text(choice.get("finish_reason")),
        model=_text(response.get("model")),
        response_id=_text(response.get("id")),
        prompt_ids=ids_of(choice.get("prompt_token_ids")) or ids_of(response.get("prompt_token_ids")),
        token_ids=token_ids,
        logprobs=logprobs,
        token_texts=None if token_ids is not None and len(token_ids) == len(texts or ()) else texts,
        num_prompt_tokens=_share(usage.get("prompt_tokens"), 1),
        num_tokens=num_tokens,
    )


def token_logprobs(value: Any) -> tuple[list[str] | None, list[float] | None]:
    """Texts and log-probabilities of `logprobs.content`; None if there are none, or if any token lacks one."""
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list) or not content:
        return None, None
    texts, logprobs = [], []
    for item in content:
        logprob = item.get("logprob") if isinstance(item, dict) else None
        if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not isinstance(item.get("token"), str):
            return None, None
        texts.append(item["token"])
        logprobs.append(float(logprob))
    return texts, logprobs


def ids_of(value: Any) -> list[int] | None:
    good = isinstance(value, list) and value and all(type(item) is int and 0 <= item < 2**31 for item in value)
    return value if good else None


def _ids_of_texts(texts: list[str] | None) -> list[int] | None:
    if not texts or not all(text.startswith(_ID_PREFIX) and text[len(_ID_PREFIX) :].isdecimal() for text in texts):
        return None
    return ids_of([int(text[len(_ID_PREFIX) :]) for text in texts])


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _share(value: Any, count: int) -> int:
    return value // count if type(value) is int and value > 0 else 0


# The policy


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
        """Return `ask.n` answers; an endpoint that returns fewer per request is asked again for the rest."""
        answers: list[Completion] = []
        while len(answers) < ask.n:
            num_choices = min(ask.n - len(answers), self._config.max_choices_per_request or ask.n)
            answers += await self._request(ask, num_choices, (ask.seed + len(answers)) % 2**31)
        return answers[: ask.n]

    async def close(self) -> None:
        await self._clients.close()

    async def _request(self, ask: Ask, num_choices: int, seed: int) -> list[Completion]:
        config = self._config
        body = _body(ask, config, num_choices, seed)
        for attempt in range(config.max_retries + 1):
            await self._limit.wait()
            kind: FailureKind
            asked: float | None = None
            async with self._slots:
                try:
                    async with self._clients.acquire() as client:
                        # post() sends the body unchanged: the SDK's typed method takes 5 ms to validate it
                        answers = completions_of_chat(await client.post("/chat/completions", body=body, cast_to=object))
                    self._limit.spend(sum(item.num_tokens for item in answers) + answers[0].num_prompt_tokens)
                    return answers
                except asyncio.CancelledError:
                    raise
                except Exception as error:  # boundary of the SDK: classified by _failure, or raised again
                    failure, asked = _failure(error)
            kind = failure.kind
            last = attempt == config.max_retries
            if last or kind == "refused" or (asked is not None and asked > config.max_retry_seconds):
                raise failure
            self.retries[kind] = self.retries.get(kind, 0) + 1
            await asyncio.sleep(
                backoff(attempt, first=config.retry_seconds, longest=config.max_retry_seconds, asked=asked)
            )
        raise AssertionError("the last attempt returned or raised")


def _body(ask: Ask, config: PolicyConfig, num_choices: int, seed: int) -> Json:
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
    """Classify an exception as PolicyError, with the seconds that the endpoint asks to wait."""
    import openai

    if isinstance(error, PolicyError):
        return error, None
    if isinstance(error, openai.APIStatusError):
        status, headers = error.status_code, error.response.headers
        kind: FailureKind = "refused"
        # an exhausted quota is a 429, too, but waiting does not help
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

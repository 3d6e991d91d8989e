"""A policy at an OpenAI-compatible endpoint, through the `openai` SDK, with retries that make sense.

Retried: connections that fail or break off, timeouts, 408, 409, 429, 5xx, answers that are no answers. Not retried:
what the endpoint refuses for a reason that stays (4xx, no more quota). The key is read from the environment by name
and appears in no message and no record.
"""

import asyncio
import contextlib
from typing import Any

from pairwright.collect.answers import completions_of_chat
from pairwright.collect.clients import ClientPool
from pairwright.collect.completion import Ask, Completion
from pairwright.collect.failures import FailureKind, PolicyError, one_line
from pairwright.collect.limits import RateLimit, backoff, retry_after
from pairwright.config import PolicyConfig
from pairwright.errors import ConfigError
from pairwright.messages import Json, to_chat_message


class EndpointPolicy:
    """Asks an endpoint. Counts what it had to repeat, by kind."""

    def __init__(self, config: PolicyConfig) -> None:
        if not config.base_url or not config.model:
            raise ConfigError("policy: an endpoint needs base_url and model")
        self.name: str | int = config.model if config.model_version is None else config.model_version
        self.retries: dict[str, int] = {}
        self._config = config
        self._clients = ClientPool(config)
        self._limit = RateLimit(config.requests_per_minute, config.tokens_per_minute)
        self._slots: Any = asyncio.Semaphore(config.max_in_flight) if config.max_in_flight else contextlib.nullcontext()

    async def complete(self, ask: Ask) -> list[Completion]:
        """As many answers as asked for; an endpoint that gives fewer at once is asked again for the rest."""
        found: list[Completion] = []
        while len(found) < ask.n:
            wanted = min(ask.n - len(found), self._config.max_choices_per_request or ask.n)
            found += await self._request(ask, wanted, (ask.seed + len(found)) % 2**31)
        return found[: ask.n]

    async def close(self) -> None:
        await self._clients.close()

    async def _request(self, ask: Ask, wanted: int, seed: int) -> list[Completion]:
        config = self._config
        body = _body(ask, config, wanted, seed)
        for attempt in range(config.max_retries + 1):
            await self._limit.wait()
            kind: FailureKind
            asked: float | None = None
            async with self._slots:
                try:
                    async with self._clients.one() as client:
                        # the body as it is: the SDK's typed method takes 5 ms to look it through
                        found = completions_of_chat(await client.post("/chat/completions", body=body, cast_to=object))
                    self._limit.spend(sum(item.num_tokens for item in found) + found[0].num_prompt_tokens)
                    return found
                except asyncio.CancelledError:
                    raise
                except Exception as error:  # the SDK's boundary: every failure is given a kind, or raised again
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


def _body(ask: Ask, config: PolicyConfig, wanted: int, seed: int) -> Json:
    body: Json = {
        "model": config.model,
        "messages": [to_chat_message(message, missing_id="") for message in ask.messages],
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "n": wanted,
    }
    if ask.tools:
        body["tools"] = list(ask.tools)
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
    """What went wrong as a kind, and how long the endpoint asks to wait."""
    import openai

    if isinstance(error, PolicyError):
        return error, None
    if isinstance(error, openai.APIStatusError):
        status, headers = error.status_code, error.response.headers
        kind: FailureKind = "refused"
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

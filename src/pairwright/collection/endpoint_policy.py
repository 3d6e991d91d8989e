"""The policy of an OpenAI-compatible endpoint: requests, retries, and the errors that end a run.

Retried: failed or broken connections, timeouts, 408, 409, 429, 5xx, malformed responses. Not retried: permanent
refusals (other 4xx, exhausted quota).
"""

import asyncio
import contextlib
from typing import Any

from pairwright.collection.chat_completions import completions_of_chat
from pairwright.collection.policies import Ask, Completion
from pairwright.collection.rate_limits import RateLimit, backoff, retry_after
from pairwright.collection.run_failures import FailureKind, PolicyError, one_line
from pairwright.collection.sdk_clients import ClientPool
from pairwright.config import PolicyConfig
from pairwright.errors import ConfigError
from pairwright.records.messages import Json, to_chat_message

# The first wait before a request is repeated; it doubles each time, with jitter.
_RETRY_SECONDS = 0.5
# The longest wait. If an endpoint requests more, the run fails.
_MAX_RETRY_SECONDS = 60.0


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


def request_body(ask: Ask, config: PolicyConfig, num_choices: int, seed: int) -> Json:
    """Return the body of a request to `/v1/chat/completions`."""
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

"""Rate limits and retry delays, shared by all requests of one endpoint."""

import asyncio
import email.utils
import random
import time
from collections.abc import Mapping


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

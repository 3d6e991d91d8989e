"""HTTP client of training services.

Uses httpx instead of the vendor's SDK. The SDK retries POST requests after a lost response, which can start a job
twice, and accepts responses without required fields such as the job id. This client retries only requests that are safe
to repeat. The authorization header is sent only if a token is configured.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from pairwright.jobs.job import ServiceError, Unreachable
from pairwright.records.messages import Json

if TYPE_CHECKING:  # loaded only for services: local jobs do not need it
    import httpx

_PAUSES = (0.5, 1.0)  # seconds between attempts
Answer = TypeVar("Answer")
# Status codes of temporary failures; all others are refusals.
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
# At most 100,000 rows, so that a service that repeats a page does not cause an endless loop.
_PAGE_SIZE = 100
_MAX_PAGES = 1000


# httpx logs every request at INFO. A job is polled for hours: its GET requests are demoted to DEBUG.
_IS_POLLING: ContextVar[bool] = ContextVar("is_polling", default=False)


def _demote_polling(record: logging.LogRecord) -> bool:
    if _IS_POLLING.get() and record.levelno == logging.INFO:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
    return True


logging.getLogger("httpx").addFilter(_demote_polling)


class ServiceClient:
    """HTTP client of a service: `tokens` by host; `token_keys` names what to check if one is refused."""

    def __init__(self, host: str, tokens: dict[str, str | None], *, token_keys: str, timeout_seconds: float) -> None:
        import httpx

        self.host = host
        self._tokens = tokens
        self._token_keys = token_keys
        timeout = httpx.Timeout(timeout_seconds, connect=min(10, timeout_seconds))
        self._client = httpx.Client(timeout=timeout, follow_redirects=False)

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _rows(self, path: str) -> Iterator[Json]:
        """Yield all rows of a paginated list."""
        for page in range(1, _MAX_PAGES + 1):
            answer = self._got(path, params={"page": page, "page_size": _PAGE_SIZE})
            rows = answer.get("data") or []
            yield from (row for row in rows if isinstance(row, dict))
            pagination = answer.get("pagination")
            total = pagination.get("total_pages") if isinstance(pagination, dict) else None
            # Without a total, pages are read until one is not full.
            if not rows or (page >= total if isinstance(total, int) else len(rows) < _PAGE_SIZE):
                return

    def _got(self, path: str, **options: Any) -> Json:
        """Send a GET request, with retries."""
        return _retry(lambda: self._sent("GET", path, **options))

    def _sent(self, method: str, path: str, **options: Any) -> Json:
        response = self._request(method, self.host, path, **options)
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Unreachable(f"{method} {self.host}{path}: expected a JSON object, got {response.text[:200]!r}")
        return value

    def _created(self, host: str, path: str, *, there: tuple[int, ...] = (409,), **options: Any) -> bool:
        """Send a create request, with retries. Returns False on a status in `there` (already exists)."""
        try:
            _retry(lambda: self._request("POST", host, path, **options))
        except ServiceError as error:
            if error.status in there:
                return False
            raise
        return True

    def _request(self, method: str, host: str, path: str, **options: Any) -> "httpx.Response":
        """Send a request. Raises Unreachable for transport errors and retryable statuses, else ServiceError."""
        import httpx

        token = self._tokens[host]
        headers = {**options.pop("headers", {}), **({"authorization": f"Bearer {token}"} if token else {})}
        where = f"{method} {host}{path}"
        polling = _IS_POLLING.set(method == "GET")
        try:
            response = self._client.request(method, host + path, headers=headers, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise Unreachable(f"{where}: {type(error).__name__}: {error}") from error
        finally:
            _IS_POLLING.reset(polling)
        if response.status_code in _AGAIN:
            raise Unreachable(f"{where}: {response.status_code}: {_words(response)}")
        if response.status_code in (401, 403):
            message = f"{where}: {response.status_code}: {_words(response)}: check {self._token_keys}"
            raise ServiceError(message, status=response.status_code)
        if not response.is_success:
            raise ServiceError(f"{where}: {response.status_code}: {_words(response)}", status=response.status_code)
        return response


def _retry(send: Callable[[], Answer]) -> Answer:
    """Send a request that is safe to repeat, up to three times with growing pauses."""
    for pause in _PAUSES:
        try:
            return send()
        except Unreachable:
            time.sleep(pause)
    return send()


def require_field(value: Json, field: str, what: str) -> Json:
    if not isinstance(value.get(field), str) or not value[field]:
        raise ServiceError(f"the service answered without the {field} of {what}: {str(value)[:200]}", status=200)
    return value


def as_number(value: Any) -> float | None:
    """Return a JSON number as float; None for anything else, including booleans."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _words(response: "httpx.Response") -> str:
    """Extract the error message from a response, without the JSON around it."""
    try:
        value = response.json()
    except ValueError:
        return response.text[:500]
    return str(innermost(value))[:1000]


def innermost(value: Any) -> Any:
    """Return the innermost message of an error, as in {"detail": {"error": {"message": ...}}}."""
    while isinstance(value, dict):
        inner = next((value[key] for key in ("detail", "error", "message", "reason") if value.get(key)), None)
        if inner is None:
            break
        value = inner
    return value

"""HTTP clients of training services, and that for the NeMo Customizer API.

Uses httpx instead of the vendor's SDK. The SDK retries POST requests after a lost response, which can start a job
twice, and accepts responses without required fields such as the job id. This client retries only requests that are safe
to repeat. The authorization header is sent only if a token is configured.
"""

import logging
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pairwright.config.backend_config import NemoCustomizerConfig
from pairwright.errors import ConfigError
from pairwright.jobs.job import ServiceError, Unreachable
from pairwright.records.messages import Json

if TYPE_CHECKING:  # loaded when a service is spoken to: jobs on this machine need none of it
    import httpx

_TRIES = 3
_PAUSE_SECONDS = 0.5
# Status codes of failures that may pass; all others are refusals.
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
# 100,000 rows at most, so that a service that repeats a page cannot keep us here forever.
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
    """Requests to a service: `tokens` are by host, `token_keys` say what to check where one is refused."""

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
            # A service that says no total is read until a page is not full.
            if not rows or (page >= total if isinstance(total, int) else len(rows) < _PAGE_SIZE):
                return

    def _got(self, path: str, **options: Any) -> Json:
        """Send a GET request, with retries."""
        for attempt in range(_TRIES):
            try:
                return self._sent("GET", path, **options)
            except Unreachable:
                if attempt + 1 == _TRIES:
                    raise
                # Exponential backoff: 0.5 s, then 1 s.
                time.sleep(_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("unreachable")

    def _sent(self, method: str, path: str, **options: Any) -> Json:
        response = self._request(method, self.host, path, **options)
        try:
            value = response.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Unreachable(f"{method} {self.host}{path}: expected a JSON object, got {response.text[:200]!r}")
        return value

    def _created(self, method: str, host: str, path: str, *, there: tuple[int, ...], **options: Any) -> bool:
        """Send a create request, with retries. Returns False on a status in `there` (already exists)."""
        for attempt in range(_TRIES):
            try:
                self._request(method, host, path, **options)
                return True
            except ServiceError as error:
                if error.status in there:
                    return False
                raise
            except Unreachable:
                if attempt + 1 == _TRIES:
                    raise
                time.sleep(_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("unreachable")

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
            raise ServiceError(
                f"{where}: {response.status_code}: {_words(response)}: check {self._token_keys}",
                status=response.status_code,
            )
        if not response.is_success:
            raise ServiceError(f"{where}: {response.status_code}: {_words(response)}", status=response.status_code)
        return response


class CustomizerApi(ServiceClient):
    """Client for the entity host and the data store of one service."""

    def __init__(self, config: NemoCustomizerConfig) -> None:
        """Open an HTTP client for the configured hosts and tokens. Raises ConfigError without `entity_host`."""
        if config.entity_host is None:
            raise ConfigError("backend.nemo_customizer.entity_host: not set; give the address of the service")
        import httpx

        self.entity_host = config.entity_host
        self.datastore_host = config.datastore_host or config.entity_host
        self.hf_token = config.hf_token.get_secret_value() if config.hf_token else None
        token = config.api_token.get_secret_value() if config.api_token else None
        # One address for both takes one token.
        if token is None and httpx.URL(self.entity_host).netloc == httpx.URL(self.datastore_host).netloc:
            token = self.hf_token
        super().__init__(
            self.entity_host,
            {self.entity_host: token, self.datastore_host: self.hf_token or token},
            token_keys="backend.nemo_customizer.hf_token and api_token, and that they may use the namespace",
            timeout_seconds=config.request_timeout_seconds,
        )

    def __enter__(self) -> "CustomizerApi":
        return self

    def create_namespace(self, namespace: str) -> bool:
        """Create a namespace in the entity store and the data store. Returns False if it existed in both."""
        entity = self._created(
            "POST",
            self.entity_host,
            "/v1/namespaces",
            json={"id": namespace, "description": "Made by pairwright"},
            there=(409,),
        )
        # For a namespace that exists, data stores answer 409 or 422.
        store = self._created(
            "POST", self.datastore_host, "/v1/datastore/namespaces", data={"namespace": namespace}, there=(409, 422)
        )
        return entity or store

    def create_dataset(self, namespace: str, name: str) -> bool:
        """Register a dataset. Returns False if it existed."""
        body = {
            "name": name,
            "namespace": namespace,
            "files_url": f"hf://datasets/{namespace}/{name}",
            "description": "Preference pairs, written by pairwright",
        }
        return self._created("POST", self.entity_host, "/v1/datasets", json=body, there=(409,))

    def create_job(self, body: Json) -> Json:
        return require_field(self._sent("POST", "/v1/customization/jobs", json=body), "id", "a job")

    def find_job(self, namespace: str, name: str) -> Json | None:
        """Find a job by name; None if there is none."""
        matches = (row for row in self._rows("/v1/customization/jobs") if row.get("name") == name)
        return next((row for row in matches if row.get("namespace") in (None, namespace)), None)

    def job(self, job_id: str) -> Json:
        return self._got(f"/v1/customization/jobs/{quote(job_id, safe='')}")

    def job_status(self, job_id: str) -> Json:
        return self._got(f"/v1/customization/jobs/{quote(job_id, safe='')}/status")

    def job_logs(self, job_id: str) -> Json:
        return self._got(f"/v1/customization/jobs/{quote(job_id, safe='')}/container-logs")

    def cancel_job(self, job_id: str) -> Json:
        return self._sent("POST", f"/v1/customization/jobs/{quote(job_id, safe='')}/cancel")

    def configs(self) -> list[Json]:
        return list(self._rows("/v1/customization/configs"))

    def create_deployment_config(self, body: Json) -> bool:
        return self._created("POST", self.entity_host, "/v1/deployment/configs", json=body, there=(409,))

    def create_deployment(self, body: Json) -> bool:
        return self._created("POST", self.entity_host, "/v1/deployment/model-deployments", json=body, there=(409,))

    def find_deployment(self, namespace: str, name: str) -> Json | None:
        rows = self._rows("/v1/deployment/model-deployments")
        return next((row for row in rows if (row.get("namespace"), row.get("name")) == (namespace, name)), None)


def require_field(value: Json, field: str, what: str) -> Json:
    if not isinstance(value.get(field), str) or not value[field]:
        raise ServiceError(f"the service answered without the {field} of {what}: {str(value)[:200]}", status=200)
    return value


def _words(response: "httpx.Response") -> str:
    """Extract the error message from a response, without the JSON around it."""
    try:
        value = response.json()
    except ValueError:
        return response.text[:500]
    # Errors may be nested, as in {"detail": {"error": {"message": ...}}}.
    while isinstance(value, dict):
        inner = next((value[key] for key in ("detail", "error", "message") if value.get(key)), None)
        if inner is None:
            break
        value = inner
    return str(value)[:1000]

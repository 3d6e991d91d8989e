"""Training on a service over HTTP: submit, status, cancel and logs, the same for every dialect.

The job reference is written before anything is sent, and contains a name that is unique to the run. After a lost
response or a crash the job is found by that name, so it is neither created twice nor lost. A `Dialect` has the
differences between services: an HTTP client that knows the paths, names and states of one service.

The client is httpx instead of the vendor's SDK, which retries POST requests after a lost response (this can start a job
twice), and accepts responses without required fields such as the job id. Here only requests that are safe to repeat are
retried.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import quote

from pairwright.config import Config
from pairwright.config.backend_config import NemoPlatformConfig
from pairwright.config.customizer_config import NemoCustomizerConfig
from pairwright.config.train_config import NO_ANCHOR
from pairwright.errors import ConfigError
from pairwright.jobs.dataset import Dataset
from pairwright.jobs.job import (
    FINAL,
    Answer,
    Backend,
    BackendError,
    Job,
    JobRequest,
    JobState,
    Say,
    ServiceError,
    Status,
    Unreachable,
    WaitLimits,
    change_job,
    find_interrupted,
    new_job,
    write_job,
)
from pairwright.jobs.translation import has_curriculum_order
from pairwright.records.messages import Json

if TYPE_CHECKING:  # loaded only for services: local jobs do not need it
    import httpx

Settings = NemoCustomizerConfig | NemoPlatformConfig
_PAUSES = (0.5, 1.0)  # seconds between attempts
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


class Dialect(ABC):
    """Client of one service. A job's `details` have the data by which the dialect finds it."""

    backend: ClassVar[str]
    title: ClassVar[str]
    # Settings that later commands read from the details of a job instead of the configuration.
    kept: ClassVar[tuple[str, ...]]
    # The service's states -> ours.
    states: ClassVar[Mapping[str, JobState]]
    # Field of the service's job documents that identifies a job, and the key of `details` under which it is written.
    id_field: ClassVar[str]
    id_key: ClassVar[str]
    # What to check if a token is refused.
    token_keys: ClassVar[str]

    settings: Settings
    jobs_path: str

    @classmethod
    def settings_of(cls, config: Config) -> Settings:
        settings: Settings = getattr(config.backend, cls.backend.replace("-", "_"))
        return settings

    @classmethod
    def for_job(cls, job: Job, config: Config) -> Self:
        """Return a client for an existing job: addresses and names of its submission, tokens of the configuration."""
        return cls(cls.settings_of(config).model_copy(update={name: job.details[name] for name in cls.kept}))

    def __init__(self, settings: Settings, timeout_seconds: float = 60) -> None:
        """Open an HTTP client. Raises ConfigError if no address is set."""
        import httpx

        self.settings = settings
        self._tokens = self.tokens_by_host()
        self.host = next(iter(self._tokens))
        timeout = httpx.Timeout(timeout_seconds, connect=min(10, timeout_seconds))
        self._client = httpx.Client(timeout=timeout, follow_redirects=False)

    @abstractmethod
    def tokens_by_host(self) -> dict[str, str | None]:
        """Return the tokens by address, the main address first. Raises ConfigError if no address is set."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @abstractmethod
    def reference(self, job_id: str, model: str) -> Json:
        """Return the details of a new job, including the unique name that `find_job` looks for."""

    @abstractmethod
    def export(self, pairs: Path, folder: Path, *, seed: int) -> Dataset:
        """Write the files of a job; `folder` is the run folder."""

    @abstractmethod
    def upload(self, job: Job, dataset: Dataset, say: Say) -> Json:
        """Upload the files. Returns further details of the job."""

    @abstractmethod
    def create_job(self, job: Job, *, seed: int) -> Json:
        """Create the job and return its document."""

    @abstractmethod
    def find_job(self, details: Json) -> Json | None:
        """Find a job by the unique name in its details; None if there is none."""

    @abstractmethod
    def new_log_lines(self, job_id: str, position: Any) -> tuple[list[str], Any]:
        """Return the log lines after `position` (None: the start) and the position after them."""

    @abstractmethod
    def to_status(self, state: JobState, answer: Json) -> Status:
        """Convert a status document."""

    def job_path(self, job_id: str, what: str) -> str:
        return f"{self.jobs_path}/{quote(job_id, safe='')}/{what}"

    def job_status(self, job_id: str) -> Json:
        """Return the status document of a job."""
        return self._got(self.job_path(job_id, "status"))

    def cancel_job(self, job_id: str) -> Json:
        """Ask the service to cancel a job. Returns a document with its `status`."""
        return self._sent("POST", self.job_path(job_id, "cancel"))

    def new_details(self, answer: Json) -> Json:
        """Return the details that the document of a created job adds."""
        return {self.id_key: answer[self.id_field]}

    def record_status(self, folder: Path, job: Job, state: JobState, answer: Json) -> None:  # noqa: B027
        """Write further data of a status document, such as metrics. Does nothing by default."""

    def state_of(self, job_id: str, answer: Json) -> JobState:
        """Return the state in a status document. Raises Unreachable for an unknown state."""
        name = str(answer.get("status", "")).lower()
        if name not in self.states:
            raise Unreachable(f"{job_id}: the service says its status is {answer.get('status')!r}")
        return self.states[name]

    def find_id(self, folder: Path, job: Job) -> tuple[Job, str]:
        """Return the job and its id on the service; looks the id up if a crash prevented writing it."""
        if not job.details.get(self.id_key):
            answer = self.find_job(job.details)
            if answer is None:
                raise BackendError(
                    f"{job.id}: was never created at {self.host}: submitting it was interrupted. Submit it again "
                    f"with the same command"
                )
            job = self.write_created(folder, job, answer)
        return job, str(job.details[self.id_key])

    def write_created(self, folder: Path, job: Job, answer: Json) -> Job:
        """Write the job reference of a job that the service has created."""
        details = {**job.details, **self.new_details(answer)}
        return write_job(folder, change_job(job, state=JobState.PENDING, details=details))

    @classmethod
    def submit(cls, folder: Path, request: JobRequest, config: Config, say: Say) -> Job:
        """Export and upload the pairs, then create the job. Continues an interrupted submission under its names."""
        if request.pairs is None:
            raise ConfigError(f"the {cls.backend} backend trains on pairs: give --pairs DIR")
        if config.train.where is not None:
            raise ConfigError(f"train.where: {cls.backend} takes the pairs as they are: filter them with pairs.where")
        has_curriculum_order(request.pairs, trainer=cls.title)
        # Opened first, so that a missing address is reported before anything is written.
        with cls(cls.settings_of(config)) as api:
            job = find_interrupted(folder, cls.backend) or new_job(
                cls.backend, model=request.model, pairs=request.pairs
            )
            # The name is unique to this run, so a job that has it was created by an earlier attempt.
            if job.details and (existing := api.find_job(job.details)) is not None:
                say(f"job {existing[api.id_field]} was created before, when submitting it was interrupted")
                return api.write_created(folder, job, existing)
            job = write_job(folder, change_job(job, details=api.reference(job.id, request.model)))
            dataset = api.export(request.pairs, folder, seed=config.seed)
            say(f"exported {dataset} to {dataset.training}")
            if not api.settings.has_anchor:
                say(f"warning: {NO_ANCHOR}")
            job = write_job(folder, change_job(job, details={**job.details, "files": dataset.as_json()}))
            job = write_job(folder, change_job(job, details={**job.details, **api.upload(job, dataset, say)}))
            try:
                answer: Json | None = api.create_job(job, seed=config.seed)
            # The response was lost: look the job up instead of creating it a second time.
            except Unreachable as error:
                answer = api.find_job(job.details)
                if answer is None:
                    again = f"no job named {job.id} was created. Try again with: pairwright jobs submit"
                    raise Unreachable(f"{error}; {again}") from error
            assert answer is not None
            job = api.write_created(folder, job, answer)
            say(f"job {job.details[api.id_key]} makes {job.details['output_model'] or 'a model'}")
        return job

    @classmethod
    def status(cls, folder: Path, job: Job, config: Config) -> Status:
        with cls.for_job(job, config) as api:
            job, job_id = api.find_id(folder, job)
            answer = api.job_status(job_id)
            state = api.state_of(job_id, answer)
            api.record_status(folder, job, state, answer)
            return api.to_status(state, answer)

    @classmethod
    def cancel(cls, folder: Path, job: Job, config: Config) -> Job:
        with cls.for_job(job, config) as api:
            job, job_id = api.find_id(folder, job)
            try:
                answer = api.cancel_job(job_id)
            except ServiceError as error:
                if error.status != 409:  # 409: it had ended already
                    raise
                answer = api.job_status(job_id)
        state = cls.states.get(str(answer.get("status", "")).lower())
        # A stale response such as `running` does not revert the state `cancelling`.
        return write_job(folder, change_job(job, state=state if state in FINAL else JobState.CANCELLING))

    @classmethod
    def logs(cls, folder: Path, job: Job, config: Config, follow: bool) -> Iterator[str]:
        """Yield the log lines of the service; with `follow`, until the job ends."""
        position: Any = None
        with cls.for_job(job, config) as api:
            job, job_id = api.find_id(folder, job)
            while True:
                # The state is read before the log, so that the last lines of an ended job are not missed.
                state = cls.states.get(str(api.job_status(job_id).get("status", "")).lower())
                lines, position = api.new_log_lines(job_id, position)
                yield from lines
                if not follow or state in FINAL:
                    return
                time.sleep(api.settings.poll_interval_seconds)

    @classmethod
    def wait_limits(cls, config: Config) -> WaitLimits:
        settings = cls.settings_of(config)
        return WaitLimits(
            poll_interval_seconds=settings.poll_interval_seconds,
            timeout_seconds=settings.training_timeout_seconds,
            max_failures=settings.max_status_failures if isinstance(settings, NemoCustomizerConfig) else 10,
        )

    @classmethod
    @abstractmethod
    def deploy(cls, folder: Path, job: Job, config: Config, say: Say) -> Json:
        """Deploy the model of a completed job. Repeating it reuses the existing deployment."""

    @classmethod
    def as_backend(cls) -> Backend:
        return Backend(
            name=cls.backend,
            submit=cls.submit,
            status=cls.status,
            cancel=cls.cancel,
            deploy=cls.deploy,
            logs=cls.logs,
            wait_limits=cls.wait_limits,
        )

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
        if response.is_success:
            return response
        message = f"{where}: {response.status_code}: {_words(response)}"
        if response.status_code in _AGAIN:
            raise Unreachable(message)
        if response.status_code in (401, 403):
            message += f": check {self.token_keys}"
        raise ServiceError(message, status=response.status_code)


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

"""The FastAPI application: routes, error handlers, and the supervisor thread."""

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pairwright import __version__
from pairwright.service.access import Authentication
from pairwright.service.api import deployment_routes, entity_routes, job_routes, model_routes
from pairwright.service.api.request_limits import Limits
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context
from pairwright.service.hub import hub_routes, large_files, model_repositories
from pairwright.service.openai_api import file_routes, fine_tuning_routes
from pairwright.service.page import page_routes
from pairwright.service.run.deployments import Deployments
from pairwright.service.run.queue import JobQueue

logger = logging.getLogger("pairwright.service")
_CODES = {404: "unknown_route", 405: "wrong_method", 400: "bad_request", 422: "bad_request"}


def create_app(context: Context, *, supervise: bool = True) -> FastAPI:
    """Create the application. With `supervise=False` it serves requests, but starts no jobs or deployments."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        supervisor = Supervisor(context) if supervise else None
        app.state.supervisor = supervisor
        limits = httpx.Limits(max_connections=200)
        # trust_env=False: model servers are on loopback, never behind a proxy.
        async with httpx.AsyncClient(timeout=httpx.Timeout(600, connect=5), limits=limits, trust_env=False) as client:
            app.state.client = client
            if supervisor is not None:
                supervisor.start()
            try:
                yield
            finally:
                if supervisor is not None:
                    supervisor.stop()

    app = FastAPI(
        title="pairwright",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        description="Fine-tuning jobs over HTTP, in the protocol of NeMo Customizer.",
    )
    app.state.context = context
    app.state.requests = Counter[tuple[str, int]]()
    app.state.supervisor = None
    own = (page_routes, entity_routes, job_routes, deployment_routes, model_routes, file_routes, fine_tuning_routes)
    # The hub's routes are last: hub_routes has a catch-all route.
    for module in (*own, large_files, model_repositories, hub_routes):
        app.include_router(module.router)
    database_errors = (sa.exc.IntegrityError, sa.exc.OperationalError)
    for kind in (Refusal, RequestValidationError, HTTPException, ClientDisconnect, OSError, *database_errors):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(Exception, _own_fault)
    app.add_middleware(Authentication, context=context)
    # The middleware added last is the outermost: it also counts refusals of `Limits`.
    app.add_middleware(Limits, settings=context.settings)
    app.add_middleware(_Counted, counts=app.state.requests)
    return app


class Supervisor:
    """Background thread that brings jobs and deployments into the state of the database, until the service stops.

    Runs a pass on every tick, or when woken. An error in a pass (full disk, database unavailable) is logged.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._queue = JobQueue(context)
        self._deployments = Deployments(context)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self.last_pass_at = time.monotonic()
        self.failed_passes = 0

    def start(self) -> None:
        self._queue.recover()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._context.wake.set()
        self._thread.join()
        self._queue.stop()
        self._deployments.stop()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for step in (self._queue.tick, self._deployments.tick):
                try:
                    step()
                except Exception:  # thread boundary: the next pass retries after any error
                    self.failed_passes += 1
                    logger.exception("a pass over jobs and deployments failed; trying again")
            self.last_pass_at = time.monotonic()
            self._context.wake.wait(self._context.settings.tick_seconds)
            self._context.wake.clear()


class _Counted:
    """ASGI middleware that counts responses by method and status."""

    def __init__(self, app: ASGIApp, counts: Counter[tuple[str, int]]) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Unknown methods share one key, so that clients cannot grow the counter without bound.
                method = scope["method"] if scope["method"] in _METHODS else "OTHER"
                self._counts[method, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


async def _answer_error(request: Request, error: Exception) -> Response:
    return _refusal_of(request, error).response(request.url.path)


async def _own_fault(request: Request, error: Exception) -> Response:
    """Handle unexpected errors: generic 500, details in the log."""
    message = f"{type(error).__name__}: a mistake of the service; its log has more"
    return Refusal(500, "internal_error", message).response(request.url.path)


def _refusal_of(request: Request, error: Exception) -> Refusal:
    """Translate an error to a refusal. Raises other errors of the operating system than a full disk again."""
    match error:
        case Refusal():
            return error
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            code = _CODES.get(error.status_code, "refused")
            message = f"{request.method} {request.url.path[:200]}: {error.detail}"
            return Refusal(error.status_code, code, message, headers=dict(error.headers or {}))
        case ClientDisconnect():
            return Refusal(400, "client_left", "the connection ended before the body did; nothing was kept")
        case sa.exc.IntegrityError():
            return Refusal(409, "already_exists", "the same name was taken at the same moment by another request")
        # SQLite reports a full disk only in the message.
        case sa.exc.OperationalError() if "full" not in str(error.orig).lower():
            message = "the service's database does not answer; try again"
            return Refusal(503, "database_away", message, headers={"retry-after": "2"})
        case OSError() if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise error
    return Refusal(507, "disk_full", "the service's disk is full: nothing of this request was kept")


def _invalid(error: RequestValidationError) -> Refusal:
    """Translate validation errors: 422 with the field of each problem, and a separate code for unknown keys."""
    details: list[dict[str, Any]] = []
    for problem in error.errors():
        # loc[0] is `body` or `query`; branches of a union are not part of the field's name.
        field = ".".join(str(part) for part in problem["loc"][1:] if part not in ("str", "DatasetReference"))
        is_unknown = problem["type"] == "extra_forbidden"
        message = "unknown key" if is_unknown else str(problem["msg"])
        details.append({"field": field or str(problem["loc"][0]), "message": message})
    unknown = [detail["field"] for detail in details if detail["message"] == "unknown key"]
    code = "bad_request" if not unknown else "unknown_key"
    if unknown and unknown[0].startswith("hyperparameters."):
        code = "unknown_hyperparameter"
    message = "; ".join(f"{detail['field']}: {detail['message']}" for detail in details[:10])
    return Refusal(422, code, message, details=details[:50])

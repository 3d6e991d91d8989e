"""The recording proxy: forwards every request to an upstream, streams the response unchanged, and records it.

    POST /v1/chat/completions, /v1/responses   forwarded and recorded; also below /session/NAME/
    POST /feedback                             rewards by response id or session (feedback.py)
    GET  /pairwright/status                    counts of recorded exchanges, and of unrecorded ones by reason
    anything else                              forwarded

The last bytes of a response are sent once its record is durable, all others as they arrive. Memory is bounded: a
response that is too large to record is forwarded and counted.
"""

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pairwright.collection.proxy.event_streams import final_response
from pairwright.collection.proxy.exchange import ENCODINGS, Exchanges, NotRecorded, Place
from pairwright.collection.proxy.feedback import FeedbackLog, parse_feedback
from pairwright.collection.run_failures import one_line
from pairwright.engines.listening import is_foreign, read_body
from pairwright.errors import ConfigError
from pairwright.store.table import Table

_log = logging.getLogger(__name__)
MAX_REQUEST_BYTES = 64 * 2**20
MAX_RESPONSE_BYTES = 32 * 2**20
MAX_HELD_BYTES = 256 * 2**20
_APPLY_SECONDS = 60.0  # interval at which feedback is written to the table
# /session/NAME/rest: groups (session name, path to forward)
_SESSION = re.compile(r"^/session/([^/]+)(/.*)$")
# Endings of recorded paths, and the kind of exchange that Exchanges knows
_RECORDED = {"/chat/completions": "chat", "/responses": "responses"}
# hop-by-hop headers, and headers that are set per connection
_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "trailers",
    "transfer-encoding", "upgrade", "host", "proxy-connection",
}  # fmt: skip


@dataclass
class Counts:
    requests: int = 0
    experiences: int = 0
    feedback: int = 0
    upstream_errors: Counter[int] = field(default_factory=Counter)
    not_recorded: Counter[str] = field(default_factory=Counter)


class Proxy:
    """State of a proxy. A single thread does all writes to the table.

    If `is_local`, the proxy listens on loopback and refuses feedback under another host name (DNS rebinding).
    """

    def __init__(
        self,
        upstream: str,
        table: Path,
        *,
        batch: int | str = "record",
        timeout_seconds: float = 600.0,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        is_local: bool = True,
    ) -> None:
        self.upstream = upstream.rstrip("/")
        if not self.upstream.startswith(("http://", "https://")):
            raise ConfigError(f"--upstream: got {upstream!r}, expected http://... or https://...")
        self.counts = Counts()
        self._is_local = is_local
        self.table = Table(table)
        self._feedback = FeedbackLog(self.table)
        self._exchanges = Exchanges(batch)
        self._timeout, self._max_response_bytes = timeout_seconds, max_response_bytes
        self._held = 0  # bytes of all responses that are buffered for recording
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="record")
        # tasks are referenced here until they end: asyncio keeps only weak references
        self._tasks: set[asyncio.Task[None]] = set()

    def app(self) -> Starlette:
        routes = [
            Route("/feedback", self._take_feedback, methods=["POST"]),
            Route("/pairwright/status", self._status, methods=["GET"]),
            Route("/{path:path}", self._pass, methods=["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        # clients limit the number of connections; the proxy must not queue their requests
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        async with httpx.AsyncClient(timeout=self._timeout, limits=limits, follow_redirects=False) as self._client:
            # feedback that arrived before a crash is applied first
            await self._in_thread(self._feedback.apply)
            applying = asyncio.create_task(self._apply_now_and_then())
            try:
                yield
            finally:
                applying.cancel()
                if self._tasks:
                    await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._in_thread(self._feedback.apply)
                await self._in_thread(self.table.close)
                self._thread.shutdown()

    async def _pass(self, request: Request) -> Response:
        self.counts.requests += 1
        session, path = split_path(request.url.path)
        try:
            body = await read_body(request, MAX_REQUEST_BYTES)
        except ClientDisconnect:
            # 499: the conventional status for a closed request; no client receives it
            return Response(status_code=499)
        if body is None:
            return _error(413, f"the request has more than {MAX_REQUEST_BYTES:,} bytes")
        url = upstream_url(self.upstream, path) + (f"?{request.url.query}" if request.url.query else "")
        outgoing = self._client.build_request(
            request.method, url, headers=_filter_headers(request.headers), content=body
        )
        try:
            answer = await self._client.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            self.counts.upstream_errors[502] += 1
            return _error(502, f"the upstream cannot be reached: {one_line(error)}")
        if answer.status_code >= 400:
            self.counts.upstream_errors[answer.status_code] += 1
        kind = next((kind for end, kind in _RECORDED.items() if path.endswith(end)), None)
        is_recorded = kind is not None and request.method == "POST" and answer.status_code < 300
        place = Place.of(request.headers, session)
        exchange = _Exchange(kind or "", place, body, answer.headers) if is_recorded else None
        headers = [(name, value) for name, value in answer.headers.multi_items() if name.lower() not in _HOP]
        # raw bytes are forwarded, so content-encoding and content-length of the upstream stay valid
        response = StreamingResponse(self._stream(answer, exchange), status_code=answer.status_code)
        response.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return response

    async def _stream(self, answer: httpx.Response, exchange: "_Exchange | None") -> AsyncIterator[bytes]:
        """Stream the upstream's bytes; a copy is buffered for the record while memory allows."""
        copy: bytearray | None = None if exchange is None else bytearray()
        try:
            async for chunk in answer.aiter_raw():
                if copy is not None:
                    # this response, or all buffered ones together, are too large: forward without a record
                    if len(copy) + len(chunk) > self._max_response_bytes or self._held > MAX_HELD_BYTES:
                        self._held -= len(copy)
                        self._not_recorded("too large")
                        copy = exchange = None
                    else:
                        copy += chunk
                        self._held += len(chunk)
                        # record before sending the last chunk: a client with a full answer can rely on the record
                        if exchange is not None and exchange.is_whole(copy, chunk):
                            recorded, exchange = exchange, None
                            await asyncio.shield(self._start(self._record(recorded, bytes(copy))))
                yield chunk
        except httpx.HTTPError:
            self.counts.upstream_errors[502] += 1
            raise
        finally:
            # also when the client disconnects: a complete response is recorded anyway
            if copy is not None:
                self._held -= len(copy)
            self._start(answer.aclose())
            if exchange is not None and copy is not None:
                await asyncio.shield(self._start(self._record(exchange, bytes(copy))))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that continues when the client disconnects and its request handler is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _record(self, exchange: "_Exchange", response: bytes) -> None:
        try:
            experiences = self._exchanges.experiences(
                exchange.kind, exchange.place, exchange.request, response, exchange.headers
            )
            await self._in_thread(lambda: self.table.append([self._feedback.add_reward(item) for item in experiences]))
        except NotRecorded as error:
            self._not_recorded(str(error))
        except Exception as error:  # a full disk, or a bug: the client gets its answer anyway
            self._not_recorded(f"not written: {one_line(error)}")
            _log.error("an exchange was not recorded: %s", one_line(error))
        else:
            self.counts.experiences += len(experiences)

    def _not_recorded(self, reason: str) -> None:
        """Count a reason; after 100 distinct ones, new reasons count as "other" to bound memory."""
        known = reason if len(self.counts.not_recorded) < 100 or reason in self.counts.not_recorded else "other"
        self.counts.not_recorded[known] += 1

    async def _take_feedback(self, request: Request) -> Response:
        # Browsers let any web page send plain text to other origins, but not JSON.
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            return _error(415, f"feedback: got content-type {media_type[:100]!r}, expected application/json")
        host = request.headers.get("host", "") if self._is_local else "localhost"
        if is_foreign(host, request.headers.get("origin")):
            return _error(403, "feedback: it comes from a web page of another host, or under another host name")
        body = await read_body(request, MAX_REQUEST_BYTES)
        if body is None:
            return _error(413, f"the request has more than {MAX_REQUEST_BYTES:,} bytes")
        try:
            items = parse_feedback(body)
        except ConfigError as error:
            return _error(422, str(error))
        await self._in_thread(lambda: self._feedback.add(items))
        self.counts.feedback += len(items)
        return JSONResponse({"accepted": len(items)})

    async def _status(self, request: Request) -> Response:
        return JSONResponse(vars(self.counts))

    async def _apply_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_APPLY_SECONDS)
            await self._in_thread(self._feedback.apply)

    async def _in_thread(self, function: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, function)


@dataclass(frozen=True)
class _Exchange:
    kind: str
    place: Place
    request: bytes
    headers: Mapping[str, str]

    def is_whole(self, response: bytearray, chunk: bytes) -> bool:
        """Return whether this chunk completes the response, as far as known before the upstream closes it."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return self.headers.get("content-length") == str(len(response))
        if self.kind == "chat":
            # the marker may be split between chunks, so the end of the whole response is tested
            return bytes(response[-32:]).rstrip().endswith(b"data: [DONE]")
        # parsing is expensive: first look for the name of the event in the last chunk
        may_be = b"response.completed" in chunk or b"response.incomplete" in chunk
        return may_be and response.endswith(b"\n\n") and final_response(bytes(response)) is not None


def split_path(path: str) -> tuple[str | None, str]:
    """Split a path into its session, if any, and the path to forward.

    >>> split_path("/session/monday/v1/models"), split_path("/v1/models")
    (('monday', '/v1/models'), (None, '/v1/models'))
    """
    match = _SESSION.match(path)
    return (match[1], match[2]) if match else (None, path)


def upstream_url(upstream: str, path: str) -> str:
    """Return the upstream URL of a path; the upstream's own path (such as /v1) is not repeated.

    >>> upstream_url("http://host/v1", "/v1/models"), upstream_url("http://host", "/v1/models")
    ('http://host/v1/models', 'http://host/v1/models')
    """
    prefix = urlsplit(upstream).path
    return upstream.removesuffix(prefix) + path if path.startswith(f"{prefix}/") else upstream + path


def _filter_headers(headers: Any) -> list[tuple[bytes, bytes]]:
    """Return the client's headers without hop-by-hop headers and `x-pairwright-*`."""
    # only encodings that we can decode for the record; if none is left, ask for an uncompressed response
    codings = [item.strip() for value in headers.getlist("accept-encoding") for item in value.split(",")]
    accepted = ", ".join(item for item in codings if item.split(";")[0].strip() in ENCODINGS) or "identity"
    left_out = {*_HOP, "accept-encoding"}
    kept = [
        (name, value)
        for name, value in headers.raw
        if (text := name.decode("latin-1").lower()) not in left_out and not text.startswith("x-pairwright-")
    ]
    return [*kept, (b"accept-encoding", accepted.encode("latin-1"))]


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse(
        {"error": {"message": message, "type": "pairwright_proxy", "code": None, "param": None}}, status_code=status
    )

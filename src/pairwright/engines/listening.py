"""Sockets and HTTP serving, shared by the recording proxy, the job service and the model server.

The socket is bound before anything is loaded or announced: a port in use is an error at once, and clients that connect
early wait for the server instead of being refused. Connections are bounded whichever HTTP parser uvicorn takes: the
head of a request in bytes and seconds, idle connections in seconds, and all of them in number.
"""

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from pairwright.errors import PairwrightError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_HEAD_BYTES = 65_536
HEAD_SECONDS = 15.0  # from the first byte of a request to the end of its headers
MAX_CONNECTIONS = 1000
# Descriptors that connections may not take: files, the database, connections to other servers.
_RESERVED_FILES = 256
_LOG_SECONDS = 60.0  # between two lines about connections that cannot be accepted
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
logger = logging.getLogger("pairwright.listening")


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # restarting a server must not fail because old connections are still in TIME_WAIT
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PairwrightError(
            f"{host}:{port}: {error.strerror or error}; choose another with --port, or 0 for a free one"
        ) from None
    return listener


def free_port() -> int:
    """A port of the loopback interface that is free at the moment."""
    with listen("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def url_of(listener: socket.socket) -> str:
    # IPv6 addresses have four parts (host, port, flow, scope); the host needs brackets in a URL
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_foreign(host: str, origin: str | None) -> bool:
    """Whether the Host or Origin header of a request names another host than loopback.

    Host is compared against DNS rebinding, Origin against requests that a web page sends from a local browser.

    >>> is_foreign("127.0.0.1:8000", None), is_foreign("localhost", "http://evil.example"), is_foreign("[::1]:8", None)
    (False, True, False)
    """
    return _host(host) not in LOOPBACK or (origin is not None and _host(_netloc(origin)) not in LOOPBACK)


def serve_app(app: Any, listener: socket.socket, *, http: str = "auto", **options: Any) -> None:
    """Serve an ASGI application until a signal ends it.

    Args:
        app: the ASGI application.
        listener: a listening socket.
        http: the HTTP parser: h11, httptools, or auto for httptools where it is installed.
        options: passed to uvicorn.
    """
    import uvicorn

    config = uvicorn.Config(
        _limit_head(app),
        http=_bounded(http, _connection_limit()),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        # How often asyncio accepts in one go, and so how often an accept may fail in one go.
        backlog=64,
        **{"timeout_keep_alive": 30, **options},
    )

    class Server(uvicorn.Server):
        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(_AcceptErrors().handle)
            await super().serve(sockets)

    Server(config).run(sockets=[listener])


def _limit_head(app: Any) -> Any:
    """Wrap an ASGI application: a head that is too large is refused, also where it came in one piece."""

    async def limited(scope: Any, receive: Any, send: Any) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in scope.get("headers", ()))
        if size + len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") <= MAX_HEAD_BYTES:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 431, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b""})

    return limited


def _host(netloc: str) -> str:
    # An IPv6 address stands in brackets, as in [::1]:8000.
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0]
    return netloc.partition(":")[0].lower()


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _connection_limit() -> int:
    """Raise the limit of open files as far as allowed, and return how many of them may be connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(8, min(MAX_CONNECTIONS, soft - _RESERVED_FILES))


def _bounded(http: str, max_connections: int) -> Any:
    """Return uvicorn's protocol class for an HTTP parser, with bounded connections.

    Private state of uvicorn's protocols is not needed but for `cycle`, the request that is being answered.
    """
    # Connections without a request, the longest without one first; a dict keeps the order.
    waiting: dict[Any, None] = {}
    everything: set[Any] = set()
    base = _protocol(http)

    class Bounded(base):  # type: ignore[misc, valid-type]
        """An HTTP connection whose head is bounded in bytes and time."""

        def connection_made(self, transport: Any) -> None:
            self._head_bytes, self._head_timer = 0, None
            super().connection_made(transport)
            everything.add(self)
            self._wait()
            # The connection that has been idle longest gives way to the new one.
            if len(everything) > max_connections:
                oldest = next(iter(waiting))
                del waiting[oldest]
                everything.discard(oldest)
                oldest.transport.abort()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_waiting()
            everything.discard(self)
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            if self._is_idle():
                self._head_bytes += len(data)
                self._wait()
            super().data_received(data)
            if not self._is_idle():
                self._stop_waiting()
            elif self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # From here on uvicorn's own limit for idle connections holds, until the next byte.
            if self._is_idle() and not self.transport.is_closing():
                waiting[self] = None

        def _is_idle(self) -> bool:
            return self.cycle is None or bool(self.cycle.response_complete)

        def _wait(self) -> None:
            waiting.setdefault(self)
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

        def _stop_waiting(self) -> None:
            waiting.pop(self, None)
            self._head_bytes = 0
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _give_up(self) -> None:
            if self._is_idle():
                self.transport.abort()

    return Bounded


def _protocol(http: str) -> type:
    if http != "h11":
        try:
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

            return HttpToolsProtocol
        except ImportError:
            if http == "httptools":
                raise
    from uvicorn.protocols.http.h11_impl import H11Protocol

    return H11Protocol


class _AcceptErrors:
    """Exception handler of the event loop: connections that cannot be accepted are logged once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0
        self._num_left_out = 0

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "accept" not in str(context.get("message", "")):
            loop.default_exception_handler(context)
            return
        if self._clock() < self._next:
            self._num_left_out += 1
            return
        self._next = self._clock() + _LOG_SECONDS
        logger.error(
            "connections cannot be accepted: %s (%d times before)", context.get("exception"), self._num_left_out
        )
        self._num_left_out = 0

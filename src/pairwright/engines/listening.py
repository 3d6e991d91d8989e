"""Sockets and bounded HTTP for `serve jobs`, `serve model`, `view`, the recording proxy and the endpoint of agents.

The socket is bound before anything is loaded or announced: a port in use fails immediately, and clients that connect
early wait for the server instead of being refused. All HTTP parsers of uvicorn get the same limits: bytes and seconds
of a request head, seconds of an idle connection, seconds without reading by a client, and the number of connections, of
which one address may have half unless it is a proxy.
"""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pairwright.errors import PairwrightError

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_HEAD_BYTES = 65_536
HEAD_SECONDS = 15.0  # from the first byte of a request to the end of its headers
WRITE_SECONDS = 30.0  # time for a client to read `MIN_WRITE_BYTES` of a pending response, or all that is left
MIN_WRITE_BYTES = 16_384
MAX_CONNECTIONS = 1000
# Descriptors reserved for files, the database, and connections to other servers.
_RESERVED_FILES = 256
_LOG_SECONDS = 60.0  # between two log lines about connections that cannot be accepted
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n"
logger = logging.getLogger("pairwright.listening")


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 selects a free port."""
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
    """Return a currently free port of the loopback interface."""
    with listen("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def url_of(listener: socket.socket) -> str:
    # IPv6 addresses have four parts (host, port, flow, scope); the host needs brackets in a URL
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_foreign(host: str, origin: str | None) -> bool:
    """Return whether the Host or Origin header of a request names a host other than loopback.

    The Host check prevents DNS rebinding, the Origin check requests of web pages in a local browser.

    >>> is_foreign("127.0.0.1:8000", None), is_foreign("localhost", "http://evil.example"), is_foreign("[::1]:8", None)
    (False, True, False)
    """
    return _host(host) not in LOOPBACK or (origin is not None and _host(_netloc(origin)) not in LOOPBACK)


async def read_body(request: "Request", most: int) -> bytes | None:
    """Return the body of a request, or None if it has more than `most` bytes."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            return None
    return bytes(body)


async def wait_for_disconnect(request: "Request") -> None:
    """Wait until the client of a request disconnects. The body must have been read already."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def serve_app(app: Any, listener: socket.socket, **options: Any) -> None:
    """Serve an ASGI application until a signal stops it; options are those of `bounded_server`."""
    bounded_server(app, **options).run(sockets=[listener])


def bounded_server(app: Any, *, http: str = "auto", **options: Any) -> "uvicorn.Server":
    """Return a uvicorn server with bounded connections. The parser `http` is h11, httptools, or auto for the faster."""
    import uvicorn

    config = uvicorn.Config(
        _checked_head(app),
        http=_bounded(http, _connection_limit()),
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        # Maximum accepts (and accept failures) per event loop iteration.
        backlog=64,
        **{"timeout_keep_alive": 30, "timeout_graceful_shutdown": 5, **options},
    )

    class Server(uvicorn.Server):
        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(_AcceptErrors().handle)
            await super().serve(sockets)

    return Server(config)


def _checked_head(app: Any) -> Any:
    """Wrap an ASGI application: refuse heads that are too large, or have Content-Length and Transfer-Encoding."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        headers = scope.get("headers", ())
        size = sum(len(name) + len(value) + 4 for name, value in headers)
        size += len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        # With both headers, a proxy and this server may disagree on where the body ends (request smuggling).
        has_two_lengths = {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}
        if size <= MAX_HEAD_BYTES and not has_two_lengths:
            await app(scope, receive, send)
            return
        status = 400 if has_two_lengths else 431
        await send({"type": "http.response.start", "status": status, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b""})

    return checked


def _proxies() -> Callable[[str], bool]:
    """Return a predicate for addresses of proxies, whose connections come from many clients.

    These are loopback, and the addresses and networks in FORWARDED_ALLOW_IPS, uvicorn's setting for proxies.
    """
    names = [name.strip() for name in os.environ.get("FORWARDED_ALLOW_IPS", "").split(",")]
    networks = [ip_network("127.0.0.0/8"), ip_network("::1")]
    for name in names:
        with contextlib.suppress(ValueError):  # "*", or a name that uvicorn compares literally
            networks.append(ip_network(name, strict=False))

    def is_proxy(address: str) -> bool:
        if "*" in names or address in names:
            return True
        try:
            parsed = ip_address(address)
        except ValueError:
            return True  # a Unix socket
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in networks)

    return is_proxy


def _host(netloc: str) -> str:
    # An IPv6 address is in brackets, as in [::1]:8000.
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0]
    return netloc.partition(":")[0].lower()


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _connection_limit() -> int:
    """Return the number of file descriptors that connections may use."""
    num_files = raise_file_limit(MAX_CONNECTIONS + _RESERVED_FILES)
    return max(8, min(MAX_CONNECTIONS, num_files - _RESERVED_FILES))


def raise_file_limit(wanted: int) -> int:
    """Raise the limit of open files to `wanted`, or as far as allowed. Returns the limit, at most `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def _bounded(http: str, max_connections: int) -> Any:
    """Return uvicorn's protocol class for an HTTP parser, with bounded connections.

    The only private state of uvicorn's protocols that it uses is `cycle`, the current request.
    """
    # Connections without a request, longest idle first; a dict keeps the order. `stalled` are those whose client does
    # not read the response.
    waiting: dict[Any, None] = {}
    stalled: dict[Any, None] = {}
    everything: dict[Any, str] = {}  # all connections, with their addresses
    is_proxy, base = _proxies(), _protocol(http)

    def make_room(address: str | None) -> bool:
        """Close an idle or else a stalled connection (of an address, or of any); False if all are active."""
        for connections in (waiting, stalled):
            for connection in connections:
                if address in (None, everything[connection]):
                    connection.drop()
                    return True
        return False

    class Bounded(base):  # type: ignore[misc, valid-type]
        """An HTTP connection with bounded heads and responses."""

        def connection_made(self, transport: Any) -> None:
            self._head_bytes, self._head_timer = 0, None
            self._unread_bytes, self._write_timer = 0, None
            super().connection_made(transport)
            # Any unsent byte pauses the response, and starts the timer of `_check_reading`.
            transport.set_write_buffer_limits(high=0)
            address = str((transport.get_extra_info("peername") or ("",))[0])
            share = max_connections if is_proxy(address) else max_connections // 2
            has_room = list(everything.values()).count(address) < share or make_room(address)
            if not has_room or (len(everything) >= max_connections and not make_room(None)):
                transport.write(_BUSY)
                self.drop(transport.close)
                return
            everything[self] = address
            self._wait()

        def connection_lost(self, error: Exception | None) -> None:
            self._forget()
            super().connection_lost(error)

        def drop(self, end: Callable[[], None] | None = None) -> None:
            self._forget()
            (end or self.transport.abort)()

        def pause_writing(self) -> None:
            super().pause_writing()
            stalled.setdefault(self)
            self._unread_bytes = self.transport.get_write_buffer_size()
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._check_reading)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_write_timer()

        def _check_reading(self) -> None:
            """Close a connection whose client reads too slowly, even if it is closing and has unsent bytes."""
            unread = self.transport.get_write_buffer_size()
            if unread > self._unread_bytes - MIN_WRITE_BYTES:
                self.drop()
                return
            self._unread_bytes = unread
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._check_reading)

        def _stop_write_timer(self) -> None:
            stalled.pop(self, None)
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _forget(self) -> None:
            self._stop_waiting()
            self._stop_write_timer()
            everything.pop(self, None)

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
            # From here on uvicorn's own limit for idle connections applies, until the next byte.
            if self._is_idle() and self in everything and not self.transport.is_closing():
                waiting[self] = None

        def _is_idle(self) -> bool:
            return self.cycle is None or bool(self.cycle.response_complete)

        def _wait(self) -> None:
            if self not in everything:
                return
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
    """Exception handler of the event loop: failed accepts are logged at most once a minute."""

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
            "connections cannot be accepted: %s (%d earlier not logged)", context.get("exception"), self._num_left_out
        )
        self._num_left_out = 0

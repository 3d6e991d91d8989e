"""Sockets and HTTP serving, shared by the recording proxy, the job service and the model server.

The socket is bound before anything is loaded or announced: a port in use is an error at once, and clients that connect
early wait for the server instead of being refused.
"""

import socket
from typing import Any

from pairwright.errors import PairwrightError


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


def serve_app(app: Any, listener: socket.socket, **options: Any) -> None:
    """Serve an ASGI application until a signal ends it; `options` are passed to uvicorn."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        # limit of the headers of a request, in bytes
        h11_max_incomplete_event_size=65_536,
        **options,
    )
    uvicorn.Server(config).run(sockets=[listener])

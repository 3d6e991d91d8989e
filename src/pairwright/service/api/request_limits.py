"""Limits of a request: the length of its URL, the size of its body, and the time to send it."""

import asyncio
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pairwright.service.api_errors import Refusal
from pairwright.service.settings import Settings

# Bytes of path and query.
MAX_TARGET = 8_000
SLOWEST_BYTES_PER_SECOND = 4096


class Limits:
    """ASGI middleware that refuses requests above the limits."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit(scope)
        try:
            _check_head(scope, limit)
        except Refusal as refusal:
            await refusal.response(scope["path"])(scope, receive, send)
            return
        body = _Body(receive, limit, self._settings.read_timeout_seconds)
        answered = False

        async def watched(message: Message) -> None:
            nonlocal answered
            # Once the body is refused, the route's own response is dropped.
            if body.refusal is None or answered:
                answered = answered or message["type"] == "http.response.start"
                await send(message)

        try:
            await self._app(scope, body.receive, watched)
        except Refusal as refusal:
            if refusal is not body.refusal:
                raise
        if body.refusal is not None and not answered:
            await body.refusal.response(scope["path"])(scope, receive, send)

    def _limit(self, scope: Scope) -> int:
        # Commits carry files; chat requests may carry long conversations; all other bodies are small documents.
        if (
            scope["path"] == "/v1/files"
            or scope["path"].startswith("/v1/hf/lfs/")
            or (scope["path"].startswith("/v1/hf/api/") and "/commit/" in scope["path"])
        ):
            return self._settings.max_upload_bytes
        if scope["path"].startswith(("/v1/hf/api/", "/deployments/", "/v1/chat/", "/v1/completions")):
            return max(16 * 2**20, self._settings.max_body_bytes)
        return self._settings.max_body_bytes


class _Body:
    """Request body with a size limit and a read timeout."""

    def __init__(self, receive: Receive, limit: int, timeout_seconds: float) -> None:
        self._receive = receive
        self._limit = limit
        self._timeout_seconds = timeout_seconds
        self._seen = 0
        self._done = False
        self._deadline = time.monotonic() + 2 * timeout_seconds
        self.refusal: Refusal | None = None

    async def receive(self) -> Message:
        if self._done:  # the body is complete: the next message is the disconnect
            return await self._receive()
        try:
            # The body has a deadline, extended by each byte, so that a slow trickle cannot hold a connection forever.
            rest = self._deadline + self._seen / SLOWEST_BYTES_PER_SECOND - time.monotonic()
            message = await asyncio.wait_for(self._receive(), max(0.0, min(self._timeout_seconds, rest)))
        except TimeoutError:
            words = f"the body came too slowly, or nothing came for {self._timeout_seconds:g} seconds"
            raise self._refused(Refusal(408, "slow_body", words)) from None
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._done = not message.get("more_body", False)
            if self._seen > self._limit:
                raise self._refused(_too_large(self._limit))
        else:
            self._done = True
        return message

    def _refused(self, refusal: Refusal) -> Refusal:
        """Store the refusal, since a framework in between may replace the exception."""
        self._done = True
        refusal.headers["connection"] = "close"
        self.refusal = refusal
        return refusal


def _check_head(scope: Scope, limit: int) -> None:
    """Raise for a URL that is too long or invalid, a declared body size above the limit, or a compressed body."""
    headers = Headers(scope=scope)
    if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MAX_TARGET:
        raise Refusal(414, "long_url", f"the URL is longer than {MAX_TARGET} bytes")
    claimed = headers.get("content-length", "0")
    # A declared length above the limit is refused before reading; a wrong one is detected while reading.
    if not claimed.isdigit() or int(claimed) > limit:
        raise _too_large(limit)
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity"):
        raise Refusal(415, "compressed_body", f"content-encoding {encoding[:40]!r}: send the body uncompressed")
    if b"\0" in (scope.get("raw_path") or b"") or "\0" in scope["path"]:
        raise Refusal(400, "bad_url", "the URL contains a null character")


def _too_large(limit: int) -> Refusal:
    message = f"the body is larger than {limit:,} bytes, the limit here"
    return Refusal(413, "body_too_large", message, headers={"connection": "close"})

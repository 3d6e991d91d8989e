"""Limits on what a request may send, before any route sees it.

A body larger than its limit is refused by its header where it says so, else when the limit is passed; a compressed
body is never unpacked but refused; a client that stops sending is answered 408 instead of being waited for.
"""

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pairwright.service.refusals import Refusal
from pairwright.service.settings import Settings

MAX_TARGET = 8_000


class Limits:
    """ASGI middleware."""

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
            await refusal.response()(scope, receive, send)
            return
        body = _Body(receive, limit, self._settings.read_timeout_seconds)
        answered = False

        async def watched(message: Message) -> None:
            nonlocal answered
            if body.refusal is None or answered:
                answered = answered or message["type"] == "http.response.start"
                await send(message)

        try:
            await self._app(scope, body.receive, watched)
        except Refusal as refusal:
            if refusal is not body.refusal:
                raise
        # whatever the route made of a body that was refused, the refusal is the answer
        if body.refusal is not None and not answered:
            await body.refusal.response()(scope, receive, send)

    def _limit(self, scope: Scope) -> int:
        if scope["path"].startswith("/v1/hf/api/") and "/commit/" in scope["path"]:
            return self._settings.max_upload_bytes
        if scope["path"].startswith(("/v1/hf/api/", "/deployments/", "/v1/chat/", "/v1/completions")):
            return max(16 * 2**20, self._settings.max_body_bytes)
        return self._settings.max_body_bytes


class _Body:
    """The body of one request, counted and timed as it comes in."""

    def __init__(self, receive: Receive, limit: int, timeout_seconds: float) -> None:
        self._receive = receive
        self._limit = limit
        self._timeout_seconds = timeout_seconds
        self._seen = 0
        self._done = False
        self.refusal: Refusal | None = None

    async def receive(self) -> Message:
        if self._done:  # waiting for the end of the connection
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._timeout_seconds)
        except TimeoutError:
            raise self._refused(
                408, "slow_body", f"no more of the body for {self._timeout_seconds:g} seconds"
            ) from None
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._done = not message.get("more_body", False)
            if self._seen > self._limit:
                raise self._refused(413, "body_too_large", _too_large(self._limit).message)
        else:
            self._done = True
        return message

    def _refused(self, status: int, code: str, message: str) -> Refusal:
        """Noted, since a framework between here and the route may turn the exception into another."""
        self._done = True
        self.refusal = Refusal(status, code, message, headers={"connection": "close"})
        return self.refusal


def _check_head(scope: Scope, limit: int) -> None:
    headers: dict[str, Any] = {name.decode("latin-1").lower(): value for name, value in scope["headers"]}
    if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > MAX_TARGET:
        raise Refusal(414, "long_url", f"the URL is longer than {MAX_TARGET} bytes")
    claimed = headers.get("content-length", b"0")
    if not claimed.isdigit() or int(claimed) > limit:
        raise _too_large(limit)
    encoding = headers.get("content-encoding", b"identity").decode("latin-1").lower()
    if encoding not in ("", "identity"):
        raise Refusal(415, "compressed_body", f"content-encoding {encoding[:40]!r}: send the body as it is, unpacked")
    if b"\0" in (scope.get("raw_path") or b"") or "\0" in scope["path"]:
        raise Refusal(400, "bad_url", "the URL holds a null character")


def _too_large(limit: int) -> Refusal:
    message = f"the body is larger than {limit:,} bytes, the limit here"
    return Refusal(413, "body_too_large", message, headers={"connection": "close"})

"""Authentication. If tokens exist, all routes need one, except the page, the health checks and the API description.

The token is checked before the body is read. It is sent as `Authorization: Bearer TOKEN`, or as the password of HTTP
Basic, for clients that can only put it into the address (`http://x:TOKEN@host`). Without tokens the service binds to
loopback, and accepts only requests whose Host and Origin (if sent) are loopback, so that a web page open in a local
browser cannot submit jobs.
"""

import base64
import binascii
from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pairwright.engines.listening import LOOPBACK, is_foreign
from pairwright.errors import ConfigError
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context
from pairwright.service.rows.api_tokens import EVERYBODY, Caller, caller_of, count_tokens
from pairwright.service.rows.names import check_name

_OPEN = frozenset({"/", "/docs", "/openapi.json", "/health", "/health/ready", "/v1/health/live", "/v1/health/ready"})


def check_binding(host: str, num_tokens: int) -> None:
    """Raise if the service would bind to a non-loopback host without any token."""
    if not num_tokens and host not in LOOPBACK:
        raise ConfigError(
            f"--host {host}: without a token the service binds to loopback only: make one with "
            "pairwright serve token create --data DIR --name NAME --scope '*', or use --host 127.0.0.1"
        )


class Authentication:
    """ASGI middleware that finds the caller of a request before its body is read."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]):
            try:
                caller = await run_in_threadpool(authenticate, Headers(scope=scope), self._context)
            except Refusal as refusal:
                # The body was not read, so the connection cannot be reused.
                refusal.headers["connection"] = "close"
                await refusal.response(scope["path"])(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Return whether a path needs no token; the addresses of large files are signed instead."""
    return path in _OPEN or path.startswith(("/page/", "/v1/hf/lfs/"))


def authenticate(headers: Headers, context: Context) -> Caller:
    """Return the caller of a request. Raises a 401 or 403 refusal."""
    # Looked up for each request: creating the first token locks the service immediately.
    if not context.needs_token and not count_tokens(context.database):
        if is_foreign(headers.get("host", ""), headers.get("origin")):
            raise Refusal(
                403, "foreign_host", "without tokens the service answers only to 127.0.0.1, localhost and [::1]"
            )
        return EVERYBODY
    token = _token(headers.get("authorization", ""))
    if not token:
        raise _refuse_unauthorized("no token: send 'Authorization: Bearer TOKEN', or the token as password")
    caller_row = caller_of(context.database, token)
    if caller_row is None:
        raise _refuse_unauthorized("this token is not known: it was revoked, or belongs to another service")
    return caller_row


async def caller(request: Request) -> Caller:
    value = request.scope["state"]["caller"]
    assert isinstance(value, Caller)
    return value


def _token(header: str) -> str:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return ""
    # In `http://TOKEN@host` the token is the user name, without a password.
    return password or user


def _refuse_unauthorized(message: str) -> Refusal:
    # Without this message, hub clients interpret a 401 as a missing repository.
    headers = {"www-authenticate": "Bearer", "x-error-message": "Invalid credentials in Authorization header"}
    return Refusal(401, "bad_token", message, headers=headers)


CallerIs = Annotated[Caller, Depends(caller)]


async def _readable(namespace: str, caller: CallerIs) -> str:
    caller.check(check_name(namespace, "namespace"), write=False)
    return namespace


async def _writable(namespace: str, caller: CallerIs) -> str:
    caller.check(check_name(namespace, "namespace"), write=True)
    return namespace


async def _valid_name(name: str) -> str:
    return check_name(name, "name")


# Path parameters: a namespace that the caller may read or write, and a valid name.
Readable = Annotated[str, Depends(_readable)]
Writable = Annotated[str, Depends(_writable)]
ValidName = Annotated[str, Depends(_valid_name)]

"""Authentication. If tokens exist, all routes need one, except the page, the health check and the API description.

Without tokens the service binds to loopback, and accepts only requests whose Host and Origin (if sent) are loopback, so
that a web page open in a local browser cannot submit jobs.
"""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request

from pairwright.errors import ConfigError
from pairwright.service.api_errors import Refusal
from pairwright.service.rows.api_tokens import EVERYBODY, Caller, caller_of, count_tokens
from pairwright.service.settings import Context, context_of

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_binding(host: str, num_tokens: int) -> None:
    """Raise if the service would bind to a non-loopback host without any token."""
    if not num_tokens and host not in LOOPBACK:
        raise ConfigError(
            f"--host {host}: without a token the service binds to loopback only: make one with "
            "pairwright serve token create --data DIR --name NAME --scope '*', or use --host 127.0.0.1"
        )


def caller(request: Request, context: Annotated[Context, Depends(context_of)]) -> Caller:
    """Authenticate a request and return its caller. Raises a 401 or 403 refusal."""
    header = request.headers.get("authorization")
    # Looked up each time: the first token that is created locks the service at once.
    if not context.needs_token and not count_tokens(context.database):
        _check_addressed_to_loopback(request)
        return EVERYBODY
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _refuse_unauthorized("no token: send 'Authorization: Bearer TOKEN'")
    caller_row = caller_of(context.database, token.strip())
    if caller_row is None:
        raise _refuse_unauthorized("this token is not known: it was revoked, or belongs to another service")
    return caller_row


def _refuse_unauthorized(message: str) -> Refusal:
    # hub clients take a bare 401 for a missing repository unless the message says this
    headers = {"www-authenticate": "Bearer", "x-error-message": "Invalid credentials in Authorization header"}
    return Refusal(401, "bad_token", message, headers=headers)


def _check_addressed_to_loopback(request: Request) -> None:
    host = _host(request.headers.get("host", ""))
    origin = request.headers.get("origin")
    # The Host header stops DNS rebinding, the Origin header cross-site requests from a browser.
    if host not in LOOPBACK or (origin is not None and _host(urlsplit(origin).netloc) not in LOOPBACK):
        raise Refusal(403, "foreign_host", "without tokens the service answers only to 127.0.0.1, localhost and [::1]")


def _host(netloc: str) -> str:
    # An IPv6 address stands in brackets, as in [::1]:8000.
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0]
    return netloc.partition(":")[0].lower()


CallerIs = Annotated[Caller, Depends(caller)]

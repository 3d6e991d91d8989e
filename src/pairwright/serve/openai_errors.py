"""Errors in the format of OpenAI: {"error": {"message", "type", "param", "code"}} with a matching HTTP status."""

import logging
from collections.abc import Sequence
from typing import Any

import pydantic
from starlette.responses import JSONResponse

from pairwright.errors import PairwrightError
from pairwright.records.messages import Json

_log = logging.getLogger(__name__)


class Refused(Exception):
    """An error response in OpenAI's format."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        self.status = status
        self.body: Json = {"error": {"message": message, "type": kind, "param": param, "code": code}}
        self.headers = {} if retry_after_seconds is None else {"retry-after": str(retry_after_seconds)}
        super().__init__(message)

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, status_code=self.status, headers=self.headers)


def invalid(error: pydantic.ValidationError) -> Refused:
    """Convert the first validation error of a request to a response that names the parameter by its path."""
    problem: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = dot_location(problem["loc"])
    # Unknown parameters have a separate code, so that clients can leave them out.
    if problem["type"] == "extra_forbidden":
        return Refused(f"unknown parameter {param!r}", param=param, code="unknown_parameter")
    return Refused(f"{param}: {problem['msg']}" if param else str(problem["msg"]), param=param or None)


def broken(error: Exception) -> Refused:
    """Log an unexpected error, and convert it to a 500 response: the message of a PairwrightError, else the type."""
    _log.error("a request failed", exc_info=error)
    words = str(error) if isinstance(error, PairwrightError) else f"{type(error).__name__}; see the server's log"
    return Refused(f"the model could not answer: {words}", status=500, kind="server_error", code="server_error")


def refuse_unsupported(param: str, why: str) -> Refused:
    return Refused(f"{param}: {why}", param=param, code="unsupported_parameter")


def dot_location(location: Sequence[int | str]) -> str:
    """Format a location as `messages[0].content`, without the names of union members that pydantic inserts."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        # Names of union members such as `list[str]` are not identifiers.
        elif part.isidentifier() and part != "str":
            text += f".{part}" if text else part
    return text

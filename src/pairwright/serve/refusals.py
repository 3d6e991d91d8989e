"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}} and the status that fits."""

import logging
from collections.abc import Sequence
from typing import Any

import pydantic
from starlette.responses import JSONResponse

from pairwright.errors import PairwrightError
from pairwright.messages import Json

_log = logging.getLogger(__name__)


class Refused(Exception):
    """A request that is not answered."""

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
    """The first thing that is wrong with a request, by its path."""
    problem: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = dotted(problem["loc"])
    if problem["type"] == "extra_forbidden":
        return Refused(f"unknown parameter {param!r}", param=param, code="unknown_parameter")
    return Refused(f"{param}: {problem['msg']}" if param else str(problem["msg"]), param=param or None)


def broken(error: Exception) -> Refused:
    """What went wrong on our side: the error's kind for the client, all of it for the log."""
    _log.error("a request failed", exc_info=error)
    words = str(error) if isinstance(error, PairwrightError) else f"{type(error).__name__}; see the server's log"
    return Refused(f"the model could not answer: {words}", status=500, kind="server_error", code="server_error")


def unsupported(param: str, why: str) -> Refused:
    return Refused(f"{param}: {why}", param=param, code="unsupported_parameter")


def dotted(location: Sequence[int | str]) -> str:
    """messages[0].content; the names of union members that pydantic puts in between are left out."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part != "str":
            text += f".{part}" if text else part
    return text

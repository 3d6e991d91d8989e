"""A request that is refused: one exception, one JSON form.

    {"error": "what, where, what was expected, the way out", "code": "unknown_config", "details": [...]}

`code` is for programs and never changes its meaning. A refusal that a repeat cannot change says so to clients that
retry by themselves (`x-should-retry: false`). Names and text of the request are shown with `!r`.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pairwright.errors import PairwrightError


class Refusal(PairwrightError):
    """The answer to a request that cannot be carried out."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: list[dict[str, Any]] | None = None,
        extra: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.extra = extra or {}
        self.headers = headers or {}

    def response(self) -> Response:
        body: dict[str, Any] = {"error": self.message, "code": self.code, **self.extra}
        if self.details is not None:
            body["details"] = self.details
        # Hub clients show these headers rather than the body.
        headers = {"x-error-message": header_text(self.message), "x-error-code": self.code, **self.headers}
        # Read by SDKs that Stainless generates, which otherwise repeat a 409 themselves.
        if self.status == 409 or self.status == 507:
            headers["x-should-retry"] = "false"
        return JSONResponse(body, self.status, headers)


def header_text(text: str, limit: int = 300) -> str:
    """Text as a header may carry it: printable ASCII on one line."""
    return "".join(character if " " <= character <= "~" else "?" for character in text[:limit])


def not_found(what: str, name: str, *, hint: str = "") -> Refusal:
    return Refusal(404, f"{what.replace(' ', '_')}_not_found", f"no {what} {name!r}{hint and '; ' + hint}")


def already_there(what: str, name: str, *, extra: dict[str, Any] | None = None) -> Refusal:
    return Refusal(409, f"{what.replace(' ', '_')}_exists", f"there is already a {what} {name!r}", extra=extra)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """The handler of Refusal."""
    assert isinstance(error, Refusal)
    return error.response()

"""Errors of the API: one exception and one JSON format.

    {"error": "what, where, what was expected, the way out", "code": "unknown_config", "details": [...]}

Routes of OpenAI's API have its format, `{"error": {"message", "type", "param", "code"}}`.

`code` is stable and meant for programs. Errors that a retry cannot fix, but that clients would retry automatically,
set `x-should-retry: false`. Names and text from the request are formatted with `!r`.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pairwright.errors import PairwrightError

OPENAI_PATHS = ("/v1/files", "/v1/fine_tuning/", "/v1/models", "/v1/chat/", "/v1/completions")


class Refusal(PairwrightError):
    """An error response: HTTP status, code and message."""

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

    def response(self, path: str = "") -> Response:
        """Build the response; its format is that of the API which the path belongs to."""
        if path.startswith(OPENAI_PATHS):
            kind = "invalid_request_error" if self.status < 500 else "server_error"
            param = self.details[0].get("field") if self.details else None
            problem = {"message": self.message, "type": kind, "param": param, "code": self.code}
            body: dict[str, Any] = {"error": problem, "code": self.code}
        else:
            body = {"error": self.message, "code": self.code, **self.extra}
        if self.details is not None:
            body["details"] = self.details
        # Hub clients show these headers rather than the body.
        headers = {"x-error-message": header_text(self.message), "x-error-code": self.code, **self.headers}
        # Read by SDKs that Stainless generates, which otherwise repeat a 409 themselves.
        if self.status == 409 or self.status == 507:
            headers["x-should-retry"] = "false"
        return JSONResponse(body, self.status, headers)


def header_text(text: str) -> str:
    """Convert text for use in a header: printable ASCII on one line, truncated."""
    return "".join(character if " " <= character <= "~" else "?" for character in text[:300])


def not_found(what: str, name: str, *, hint: str = "") -> Refusal:
    return Refusal(404, f"{what.replace(' ', '_')}_not_found", f"no {what} {name!r}{hint and '; ' + hint}")


def already_there(what: str, name: str, *, extra: dict[str, Any] | None = None) -> Refusal:
    return Refusal(409, f"{what.replace(' ', '_')}_exists", f"there is already a {what} {name!r}", extra=extra)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """Exception handler for Refusal."""
    assert isinstance(error, Refusal)
    return error.response(request.url.path)

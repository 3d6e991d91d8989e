"""Request schemas of the endpoints, and errors in OpenAI's format. Unknown or unsupported parameters are refused.

Parameters that do not affect the response (`user`, `metadata`, `store`, ...) are accepted and ignored.
"""

import logging
from collections.abc import Sequence
from typing import Annotated, Any, cast

import pydantic
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from starlette.responses import JSONResponse

from pairwright.errors import PairwrightError
from pairwright.records.messages import Json

# Errors in OpenAI's format: {"error": {"message", "type", "param", "code"}} with a matching HTTP status

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
    """Convert the first validation error of a request, with the path of the parameter."""
    problem: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = dot_location(problem["loc"])
    # An unknown parameter has a code of its own, so that a client can leave it out.
    if problem["type"] == "extra_forbidden":
        return Refused(f"unknown parameter {param!r}", param=param, code="unknown_parameter")
    return Refused(f"{param}: {problem['msg']}" if param else str(problem["msg"]), param=param or None)


def broken(error: Exception) -> Refused:
    """Convert an unexpected error to a 500 response, and log it with its traceback.

    The client gets the message of a PairwrightError, else only the type of the error.
    """
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
        # Names of union members such as `list[str]` are no identifiers.
        elif part.isidentifier() and part != "str":
            text += f".{part}" if text else part
    return text


# Request schemas

MAX_CHOICES = 128
# strict: true and 1.0 are no token ids.
Ids = list[Annotated[int, Field(ge=0, strict=True)]]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    model: str
    temperature: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    # Signed or unsigned, as clients draw them.
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: list[Annotated[str, Field(min_length=1)]] = []
    stream: bool | None = None
    stream_options: Json | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Json | None = None
    return_token_ids: bool | None = None
    """Beyond OpenAI, as vLLM has it: the token ids of prompt and choices."""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Json | None = None

    # One text is a list of one.
    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else [] if value is None else value

    def refuse_what_we_cannot(self) -> None:
        # Zero and empty change nothing, so they are accepted.
        for name in ("frequency_penalty", "presence_penalty", "logit_bias"):
            if getattr(self, name):
                raise refuse_unsupported(name, "is not supported here; leave it out")
        if self.stream_options is not None and not self.stream:
            raise refuse_unsupported("stream_options", "only with stream: true")
        if len(self.stop) > 16:
            raise refuse_unsupported("stop", "at most 16 texts")

    @property
    def wants_usage_in_stream(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))


class ChatAsked(_Asked):
    """POST /v1/chat/completions."""

    messages: list[Json] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[Json] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: Json | None = None
    chat_template_kwargs: Json | None = None
    """Beyond OpenAI, as vLLM has it: variables of the template, such as enable_thinking."""
    store: bool | None = None
    service_tier: str | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatAsked":
        # The old and the new name of one limit.
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    def refuse_what_we_cannot(self) -> None:
        super().refuse_what_we_cannot()
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise refuse_unsupported("response_format", "only {'type': 'text'} is supported here")
        if self.tool_choice not in (None, "auto", "none"):
            raise refuse_unsupported("tool_choice", "only 'auto' and 'none' are supported: nothing forces a call here")
        if self.parallel_tool_calls is False:
            raise refuse_unsupported("parallel_tool_calls", "false is not supported: nothing limits the calls here")

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionAsked(_Asked):
    """POST /v1/completions."""

    prompt: str | Ids | list[str] | list[Ids]
    # OpenAI's default for this endpoint.
    max_tokens: int | None = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    def refuse_what_we_cannot(self) -> None:
        super().refuse_what_we_cannot()
        for name in ("echo", "suffix"):
            if getattr(self, name):
                raise refuse_unsupported(name, "is not supported here; leave it out")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise refuse_unsupported("best_of", "is not supported here; ask for n choices")

    @property
    def prompts(self) -> list[str] | list[Ids]:
        """All prompts; one text or one list of ids is a list of one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("list[str] | list[Ids]", self.prompt)

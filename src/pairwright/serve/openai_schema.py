"""Request schemas of the endpoints. Unknown or unsupported parameters are refused.

Parameters that do not affect the response (`user`, `metadata`, `store`, ...) are accepted and ignored.
"""

from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pairwright.records.messages import Json
from pairwright.serve.openai_errors import refuse_unsupported

MAX_CHOICES = 128
# strict: true and 1.0 are not token ids.
Ids = list[Annotated[int, Field(ge=0, strict=True)]]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    model: str
    temperature: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    # Signed or unsigned, since clients use both.
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    stop: list[Annotated[str, Field(min_length=1)]] = []
    stream: bool | None = None
    stream_options: Json | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Json | None = None
    return_token_ids: bool | None = None
    """An extension of vLLM: return the token ids of the prompt and the choices."""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: Json | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else [] if value is None else value

    def refuse_what_we_cannot(self) -> None:
        # Zero and empty have no effect, so they are accepted.
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
    """An extension of vLLM: variables of the chat template, such as enable_thinking."""
    store: bool | None = None
    service_tier: str | None = None

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatAsked":
        # OpenAI renamed max_tokens to max_completion_tokens; both set the same limit.
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
        """All prompts; a single text or list of ids becomes a list of one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("list[str] | list[Ids]", self.prompt)

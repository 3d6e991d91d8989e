"""`policy` and judges: a model at an OpenAI-compatible endpoint, or loaded in this process."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pairwright.config.sections import Count, Section, TemplateVariables, ToolsAsText

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ModelConfig(Section):
    """A model to query: an OpenAI-compatible endpoint, or a folder that is loaded in this process."""

    model: str | None = None
    """Name of the model at the endpoint; without base_url, the folder of a local checkpoint."""
    base_url: str | None = None
    """The endpoint, e.g. http://127.0.0.1:8001/v1; null: the model is loaded in this process."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null: no key is sent."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Sampling temperature; 0 takes the most likely token."""
    max_tokens: Count | None = 512
    """Most tokens of an answer; null: up to the end of the context, or the endpoint's own limit."""
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    """Variables of the chat template, such as {"enable_thinking": false}: sent to an endpoint (as vLLM and `pairwright
    serve model` take them), or rendered by the local model; recorded with each experience."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More keys of the request's body."""
    send_seed: bool = True
    """Send the seed of each question; some endpoints refuse it."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = 8
    """Number of times to repeat a failed request."""
    timeout_seconds: Positive = 300.0
    """Longest time for one request, in seconds."""
    device: str | None = None
    """Local model: cuda, mps or cpu; null: a CUDA GPU, else Apple's GPU (mps), else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Local model: precision; auto is float32 on a CPU and the checkpoint's own elsewhere."""

    @model_validator(mode="after")
    def _no_second_place(self) -> Self:
        if "chat_template_kwargs" in self.extra_body:
            raise ValueError("extra_body: chat_template_kwargs has a key of its own, beside extra_body")
        return self


class JudgeConfig(ModelConfig):
    """A model that judges or writes hints."""

    def as_policy(self) -> "PolicyConfig":
        """The same model as a policy; all other options have their defaults."""
        return PolicyConfig.model_validate(self.model_dump(exclude_unset=True))


class PolicyConfig(ModelConfig):
    """The model that answers: an OpenAI-compatible endpoint, or a folder that is loaded once and answers in batches."""

    model_version: str | int | None = None
    """Model version in the records; by default the model's name."""
    # sampling; part of the identity of a collection
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: draw from the likeliest tokens whose probabilities add up to this."""
    num_candidates: Annotated[int, Field(ge=1, le=4096)] = 1
    """Answers per question if the workflow does not set a number."""
    stop: tuple[str, ...] = ()
    """Stop strings: texts that end an answer."""
    tools_as_text: ToolsAsText = "off"
    """Local model whose chat template has no tool role: write tools, calls and results as text
    (docs/reference/tokens.md)."""
    # requests to an endpoint
    logprobs: bool = False
    """Ask the endpoint for log-probabilities; a local model always records them."""
    return_token_ids: bool = False
    """Ask the endpoint for token ids (vLLM and `pairwright serve model` return them)."""
    max_choices_per_request: Count | None = None
    """Most answers per request; more candidates take several requests."""
    # limits of an endpoint
    max_in_flight: Count | None = None
    """Most requests at once; null: as many as there are running tasks."""
    requests_per_minute: Positive | None = None
    """Rate limit."""
    tokens_per_minute: Positive | None = None
    """Rate limit of tokens, counted when answers arrive."""
    # the local model
    max_batch_tokens: Count = 16_384
    """Local model: most prompt tokens per forward pass."""
    num_threads: Count | None = None
    """Local model: number of torch threads; null: torch's default."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.base_url is not None and self.tools_as_text != "off":
            raise ValueError("tools_as_text: the endpoint renders chats: pairwright serve model --tools-as-text hermes")
        return self

"""`policy`: the model that answers, at an OpenAI-compatible endpoint or in this process."""

from typing import Annotated, Any, Literal

from pydantic import Field

from pairwright.config.section import Section

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class PolicyConfig(Section):
    """The model that answers: an OpenAI-compatible endpoint, or a folder loaded once and asked in batches."""

    model: str | None = None
    """Name of the model at the endpoint; without base_url the folder of a local checkpoint."""
    base_url: str | None = None
    """The endpoint, e.g. http://127.0.0.1:8001/v1; null: the model is loaded here."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; null: none is sent."""
    model_version: str | int | None = None
    """What is recorded as the version of the model; by default its name."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Sampling temperature; 0 takes the most likely token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    max_tokens: Count | None = None
    """Most tokens of an answer; null: to the end of the context, or what the endpoint allows."""
    num_candidates: Annotated[int, Field(ge=1, le=4096)] = 1
    """Answers to each question where the workflow does not say how many."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer."""
    logprobs: bool = False
    """Ask the endpoint for log-probabilities; a local model always records them."""
    return_token_ids: bool = False
    """Ask the endpoint for token ids, as vLLM and `pairwright serve model` give them."""
    send_seed: bool = True
    """Send the seed of each question; some endpoints refuse it."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More keys of the request's body."""
    max_choices_per_request: Count | None = None
    """Most answers asked for in one request; more candidates are several requests."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = 8
    """Times that a failed request is repeated."""
    retry_seconds: Positive = 0.5
    """First wait before repeating; it doubles each time, with jitter, and retry-after counts if it is longer."""
    max_retry_seconds: Positive = 60.0
    """Longest wait before repeating; an endpoint that asks for more than this fails the run."""
    timeout_seconds: Positive = 300.0
    """Longest time for one request."""
    max_in_flight: Count | None = None
    """Most requests at once; null: as many as tasks run."""
    requests_per_minute: Positive | None = None
    """Rate limit."""
    tokens_per_minute: Positive | None = None
    """Rate limit of tokens, counted when answers come."""
    device: str | None = None
    """Local model: cpu, cuda, ...; null: a GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Local model: precision; auto is float32 on a CPU and the checkpoint's own elsewhere."""
    max_batch_tokens: Count = 16_384
    """Local model: prompt tokens that go through the model at once."""
    num_threads: Count | None = None
    """Local model: threads of torch; null: what torch chooses."""

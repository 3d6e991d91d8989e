"""`Section`, the base of every part of the configuration, and the sections of the stages that need little.

`engine`, `loop`, `sources`, `tokens` and `evaluate` are here; `policy`, `collect`, `teach`, `pairs`, `train` and
`backend` have files of their own. A section is the only declaration of its options: type, default, bounds and
description. Classes named `*Terms` hold what functions of a later package take as options, too.
"""

import json
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)


class Section(BaseModel):
    """A part of the configuration. The line below a field is its documentation."""

    # hide_input_in_errors: values may be secrets from the environment; attribute docstrings become help and schema
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


def _parse_object(value: Any) -> Any:
    """An option of the command line has its object as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('expected a JSON object such as {"enable_thinking": false}') from None


TemplateVariables = Annotated[dict[str, Any], BeforeValidator(_parse_object)]  # of chat templates, by name


# Of a service: an address without a slash at its end, and a token; an empty variable of the environment is not a token.
ServiceUrl = Annotated[str | None, AfterValidator(lambda url: url.rstrip("/") if url else None)]
ServiceToken = Annotated[SecretStr | None, BeforeValidator(lambda token: None if token == "" else token)]


class EngineConfig(Section):
    """Processes of this machine, or a Ray cluster. `engine: ray` is short for `engine: {name: ray}`."""

    name: Literal["embedded", "ray"] = "embedded"
    """embedded: processes of this machine. ray: tasks of a Ray cluster; needs the extra `ray`."""
    address: str | None = None
    """ray: the cluster, as `auto`, `HOST:PORT` or `ray://HOST:PORT`; by default one is started for the command."""
    workers: Annotated[int, Field(ge=1)] | None = None
    """How many work at once; by default one a core (training: one a GPU, or one a node)."""
    max_retries: Annotated[int, Field(ge=0)] = 3
    """How often a piece is done again after the worker that had it has died."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _address_needs_ray(self) -> "EngineConfig":
        if self.address is not None and self.name != "ray":
            raise ValueError("address: only the engine ray has one")
        return self


class LoopConfig(Section):
    """Rounds of collect, pairs, train; then the proof, and deployment."""

    rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Rounds; each has the model of the one before as policy."""
    reference: Literal["initial", "previous"] = "initial"
    """The reference of a round: the model that the first round started from, or the one that this round starts from."""
    accumulate: bool = True
    """Build pairs from the experience of all rounds so far, not of the last alone."""
    evaluate: Literal["last", "each", "never"] = "last"
    """Compare with the first model after the last round, after each, or not at all."""
    deploy: bool = False
    """Deploy the model through the backend when the gate opens."""


class SourcesConfig(Section):
    """What is read into the experience table."""

    paths: tuple[str, ...] = ()
    """Files, folders and globs."""
    format: str = "auto"
    """A format's name (docs/reference/sources/index.md), or auto: detected by the content of each file."""
    reward: str | None = None
    """The reward: a name, a path such as metadata.reward, or an expression: '0.7*correct + 0.3*style'."""
    map: str | dict[str, str] | None = None
    """Fields of your own data: prompt=a.text,completion=b.text,reward=c.score (docs/how-to/own-data.md)."""
    task: str | None = None
    """What names the task: prompt, a field's name or path, several with commas, file, folder, or row//4."""
    run: str | None = None
    """What names the run: a field's name or path, file, folder, or row%4."""
    step: str | None = None
    """What names the step: a field's name or path with an integer."""
    compaction_prompt: str | None = None
    """Codex: file with the request that compactions sent, which is not in its logs; each summary becomes a step of its
    own, trained after that request. Without it, summaries are context."""
    redact: bool = False
    """Replace API keys, tokens and private keys by placeholders."""
    on_bad_record: Literal["quarantine", "fail"] = "quarantine"
    """Keep bad records aside and go on, or end with exit code 1 when there are any."""


ToolsAsText = Literal["off", "hermes"]
TURN_RULES = ("all", "accepted", "last", "after-error", "calls", "text")  # of tokens.train_turns
# Error kinds that mark a wrong decision of the model: the tool refused the call. Other kinds (a test that fails before
# its fix, code that raises, a file that is looked for) often follow the right step; docs/how-to/turn-credit.md has the
# counts of 100 labelled error sites.
CREDIT_KINDS = (
    "unknown_tool", "tool_not_found", "invalid_json", "missing_argument", "invalid_arguments", "tool_error",
)  # fmt: skip


class CreditConfig(Section):
    """Verdicts (ok, failed, unknown) and values of generated turns; used where train_turns or train.credit ask."""

    sources: tuple[Literal["votes", "function", "rewards", "errors"], ...] = ("votes", "function", "rewards", "errors")
    """Where credit comes from; the first source that knows a verdict, or a value, decides it."""
    function: str | None = None
    """Function credit(run, turn) as path/file.py:function or module:function; it returns None, True, False, ok, failed,
    unknown, a number, or (verdict, number)."""
    kinds: tuple[str, ...] = CREDIT_KINDS
    """Kinds of error sites that fail the turn whose call they belong to; turns with other kinds stay unknown."""
    threshold: float = Field(default=0.0, allow_inf_nan=False)
    """A turn with a value above this is ok, below it failed, at it unknown."""
    chosen: Literal["accepted", "all"] = "accepted"
    """train_turns accepted: which turns of chosen sides are trained: those that did not fail, or all."""
    rejected: Literal["failed", "all"] = "all"
    """train_turns accepted: which turns of rejected sides are trained: those that failed (a side without one is
    refused), or all."""
    store: bool = False
    """Store credit with the sequences although train_turns does not read it; train.credit needs it."""


class TokensConfig(Section):
    """Messages to sequences."""

    max_length: int | None = Field(default=None, ge=1)
    """Tokens of an experience's sequence; longer ones are cut."""
    max_pair_length: int | None = Field(default=None, ge=1)
    """Tokens of a pair's side; by default max_length."""
    truncation: Literal["keep_start", "keep_end", "drop"] = "keep_end"
    """What to keep of what is longer; the two sides of a pair are cut alike, no trained turn is cut through."""
    keep_first: int = Field(default=0, ge=0)
    """Tokens at the start that are never cut, such as a BOS token or the system prompt."""
    missing_reasoning: Literal["refuse", "close"] = "refuse"
    """A turn without reasoning after a prompt that opens a thought: refuse the conversation, or close the thought at
    once; the tokens that close it are not trained, and are counted as added."""
    allow_dropped: bool = False
    """Train turns of which the chat template does not render everything that the model generated (tool calls,
    reasoning, text beside calls). By default they are refused."""
    allow_images: bool = False
    """Train on the tokens alone where messages have images, audio, video or files, or where multi_modal_inputs were
    recorded. By default such records are refused: no channel uses them."""
    tokenizer: str | None = None
    """A model's folder, with tokenizer.json, or a Hub id; training takes the one of the model unless
    this names another."""
    chat_template: str | None = None
    """A file with a chat template (Jinja) to use instead of the tokenizer's own, or the name of one of its own (such as
    tool_use); a trained model is saved with it."""
    chat_template_kwargs: TemplateVariables = Field(default={})
    """Variables of the chat template, such as {"enable_thinking": false}; one that it does not read is an error. Those
    of a record (info.chat_template_kwargs) override them."""
    clock: str | None = None
    """The time, such as 2025-07-01T12:00:00, for chat templates that print a date, where a record has none of its own
    (info.time, info.created_at); by default when the experience table was made."""
    grammar: str | None = None
    """A YAML file with declared rows: how a family of models writes thoughts, and what ends its turns, where the chat
    template does not show it."""
    record_kwargs: Literal["use", "ignore"] = "use"
    """Variables of the chat template that a record was sampled with: use them, and refuse the record where the template
    does not read them; or ignore them."""
    train_turns: str = "all"
    """Which generated turns are trained, the others being context: all, accepted (those that did not fail, by
    tokens.credit), last, after-error (the next turn after a failure), calls, text (turns without calls), or a function
    of (messages, index) as module:function or path/file.py:function. In pairs, both sides are compared by their
    selected turns."""
    credit: CreditConfig = CreditConfig()
    tools_as_text: ToolsAsText = "off"
    """For a chat template without a tool role: calls, results and schemas become text in the tags of Hermes
    (<tool_call>, <tool_response>, <tools> in the system prompt); policy.tools_as_text asks the model so."""
    boundaries: Literal["whole", "split"] = "split"
    """Encode a conversation as a whole, as apply_chat_template does, or apart where a token would merge across a turn's
    start. Pairs are always split after the prompt."""
    control_tokens: Literal["keep", "escape", "refuse"] = "keep"
    """Control tokens in user, tool or system text: keep them, encode them as text, or refuse the conversation."""
    require_stop: bool = True
    """Refuse turns that no stop token follows."""
    verify: Literal["quick", "all"] = "quick"
    """Render the prompts of four turns of a conversation and compare them, or of every turn."""
    recorded: Literal["use", "ignore"] = "use"
    """Token ids that were recorded when the model sampled: they are the sequence, and a record whose ids do not fit its
    messages or this tokenizer is refused; or ignore them and encode the messages."""
    experience: tuple[str, ...] = ()
    """Experience tables that pairs were built from, where their recorded ids are; by default those that the pairs'
    lineage.json names."""
    workers: int | None = Field(default=None, ge=1)
    """Processes; by default one a core."""

    @field_validator("clock", mode="before")
    @classmethod
    def _spell_time(cls, value: Any) -> Any:
        # YAML reads a time without quotes as a date or datetime.
        return value.isoformat() if isinstance(value, date) else value

    @field_validator("train_turns")
    @classmethod
    def _check_rule(cls, rule: str) -> str:
        if rule not in TURN_RULES and ":" not in rule:
            raise ValueError(f"expected one of {', '.join(TURN_RULES)}, module:function or path/file.py:function")
        return rule

    @property
    def uses_credit(self) -> bool:
        """Whether sequences need the credit of turns."""
        return self.train_turns == "accepted" or self.credit.store

    @property
    def pair_length(self) -> int | None:
        """The longest side of a pair."""
        return self.max_length if self.max_pair_length is None else self.max_pair_length

    def content(self) -> dict[str, Any]:
        """The options that decide what a sequence is: part of every cache key. Paths (the content of
        tokenizer, template and grammar is in the key) and workers are not."""
        return self.model_dump(mode="json", exclude={"tokenizer", "chat_template", "grammar", "experience", "workers"})


Confidence = Annotated[float, Field(gt=0.5, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class MetricConfig(Section):
    """A number of each run."""

    name: str
    """Its name: reward, a component of it, or a metric that the workflow records."""
    better: Literal["higher", "lower"] = "higher"
    """Which direction is better."""


class GateConfig(Section):
    """What the first metric must show; without it exit code 2, and nothing is deployed."""

    min_improvement: Finite = 0.0
    """The confidence interval of the improvement must lie at or above this, and above zero unless this is negative."""
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Non-inferiority: the interval must lie above minus this, and may include zero; in place of min_improvement."""
    confidence: Confidence = 0.95
    """Confidence of that interval."""
    min_tasks: Annotated[int, Field(ge=2)] = 10
    """With fewer tasks the gate stays closed."""

    @model_validator(mode="after")
    def _one_bound(self) -> "GateConfig":
        if self.margin is not None and self.min_improvement:
            raise ValueError("margin: leave out min_improvement: a model is better by something, or not worse by much")
        return self


class CompareTerms(Section):
    """How the scores of two models are compared; `evaluate.CompareOptions` has the same options and a seed."""

    confidence: Confidence = 0.95
    """Confidence of the intervals."""
    num_resamples: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    """Bootstrap resamples; tasks are drawn, with the run's seed."""
    method: Literal["bca", "percentile"] = "bca"
    """Bias-corrected and accelerated, or plain percentiles."""
    missing: Literal["refuse", "leave_out"] | Finite = "refuse"
    """Where one model has no score: refuse, leave_out (of both, counted), or the score that it gets."""
    tie: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Differences of a task up to this size are draws."""
    success: Finite | None = None
    """A run counts as solved from this score on (McNemar); by default at 1, where scores are all 0 or 1."""


class EvaluateConfig(CompareTerms):
    """How the new model is compared with the old one."""

    workflow: str | None = None
    """The async function that plays a held-out task and records its score; null: the one of `collect`."""
    dataset: str | None = None
    """The held-out tasks, in any form that `collect.dataset` takes."""
    split: str | None = None
    """Split of a Hugging Face dataset that has several."""
    num_tasks: Annotated[int, Field(ge=1)] | None = None
    """Only the first tasks of the dataset."""
    num_runs: Annotated[int, Field(ge=1)] = 1
    """Runs of each task; run 3 of both models has the same seed."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Sampling temperature; null: the one of `policy`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Local models: precision of both; in less than float32 a greedy answer depends on what else is in its batch."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of an answer in the exam; null: as many as `policy` allows."""
    metrics: tuple[MetricConfig, ...] = ()
    """What is compared, the one that counts first; by default the reward. NAME, or NAME:lower where lower is better."""
    reduce: Literal["refuse", "mean", "last", "sum", "max", "min"] = "refuse"
    """What counts where a run has several scores."""
    gate: GateConfig | None = None
    """What must be shown before deployment; null: nothing."""

    @field_validator("metrics", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(_metric(item) if isinstance(item, str) else item for item in value)
        return value


def _metric(text: str) -> dict[str, str]:
    """NAME, NAME:higher or NAME:lower."""
    # rpartition: a metric's name may contain colons
    name, colon, direction = text.rpartition(":")
    return {"name": name, "better": direction} if colon and direction in ("higher", "lower") else {"name": text}

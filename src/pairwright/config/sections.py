"""`Section`, the base class of every part of the configuration, and the sections of the smaller stages.

`engine`, `loop`, `sources`, `tokens` and `evaluate` are here; `policy`, `collect`, `teach`, `pairs`, `train` and
`backend` have files of their own. A section is the only declaration of its options: type, default, bounds and
description. Classes named `*Terms` are also the options of functions in later packages.
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
    """A part of the configuration. The docstring below a field is its documentation."""

    # hide_input_in_errors: values may be secrets from the environment; attribute docstrings become help and schema
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def _parse_object(value: Any) -> Any:
    """Parse an object that a command-line option gives as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('expected a JSON object such as {"enable_thinking": false}') from None


TemplateVariables = Annotated[dict[str, Any], BeforeValidator(_parse_object)]  # of chat templates, by name


# Address of a service without a trailing slash, and its token; an empty environment variable counts as no token.
ServiceUrl = Annotated[str | None, AfterValidator(lambda url: url.rstrip("/") if url else None)]
ServiceToken = Annotated[SecretStr | None, BeforeValidator(lambda token: None if token == "" else token)]


class EngineConfig(Section):
    """Processes of this machine, or a Ray cluster. `engine: ray` is short for `engine: {name: ray}`."""

    name: Literal["embedded", "ray"] = "embedded"
    """embedded: processes of this machine. ray: tasks of a Ray cluster; needs the extra `ray`."""
    address: str | None = None
    """ray: the cluster, as `auto`, `HOST:PORT` or `ray://HOST:PORT`; by default one is started for the command."""
    workers: Count | None = None
    """Number of workers; by default one per core (training: one per GPU, or one per node)."""

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
    """Rounds of collect, pairs and train; then evaluation and deployment."""

    rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of rounds; the policy of each is the model of the previous round."""
    reference: Literal["initial", "previous"] = "initial"
    """Reference model of a round: the model at the start of the first round, or at the start of this round."""
    evaluate: Literal["last", "each", "never"] = "last"
    """When to compare with the first model: after the last round, after each round, or never."""
    deploy: bool = False
    """Deploy the model through the backend when the gate opens."""


class SourcesConfig(Section):
    """Traces to read into the experience table."""

    paths: tuple[str, ...] = ()
    """Files, folders and globs."""
    format: str = "auto"
    """A format's name (docs/reference/sources/index.md), or auto: detected by the content of each file."""
    reward: str | None = None
    """The reward: a name, a path such as metadata.reward, or an expression: '0.7*correct + 0.3*style'."""
    map: str | dict[str, str] | None = None
    """Fields of your own data: prompt=a.text,completion=b.text,reward=c.score (docs/how-to/own-data.md)."""
    task: str | None = None
    """Identity of the task: prompt, a field's name or path, several with commas, file, folder, or row//4."""
    run: str | None = None
    """Identity of the run: a field's name or path, file, folder, or row%4."""
    step: str | None = None
    """Identity of the step: the name or path of an integer field."""
    compaction_prompt: str | None = None
    """Codex: file with the request that a compaction sends, which its logs do not contain. Each summary becomes a step
    of its own with this request as prompt. Without the file, summaries are context."""
    redact: bool = False
    """Replace API keys, tokens and private keys by placeholders."""


ToolsAsText = Literal["off", "hermes"]
TURN_RULES = ("all", "accepted", "last", "after-error", "calls", "text")  # values of tokens.train_turns
# Error kinds that mark a wrong decision of the model: the tool refused the call. Other kinds (a test that fails before
# its fix, code that raises, a file that is looked for) often follow the right step; docs/how-to/turn-credit.md has the
# counts of 100 labelled error sites.
CREDIT_KINDS = (
    "unknown_tool", "tool_not_found", "invalid_json", "missing_argument", "invalid_arguments", "tool_error",
)  # fmt: skip


class CreditConfig(Section):
    """Verdicts (ok, failed, unknown) and values of generated turns, for train_turns and train.credit."""

    sources: tuple[Literal["votes", "function", "rewards", "errors"], ...] = ("votes", "function", "rewards", "errors")
    """Sources of credit, in order; the first source with a verdict decides the verdict, and likewise the value."""
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
    """Store credit with the sequences even if train_turns does not use it; train.credit needs it."""


class TokensConfig(Section):
    """Messages to sequences."""

    max_length: int | None = Field(default=None, ge=1)
    """Most tokens of an experience's sequence; longer ones are cut."""
    max_pair_length: int | None = Field(default=None, ge=1)
    """Most tokens of one side of a pair; by default max_length."""
    truncation: Literal["keep_start", "keep_end", "drop"] = "keep_end"
    """Which part of a longer sequence to keep; both sides of a pair are cut alike, and never inside a trained turn."""
    keep_first: int = Field(default=0, ge=0)
    """Tokens at the start that are never cut, such as a BOS token or the system prompt."""
    missing_reasoning: Literal["refuse", "close"] = "refuse"
    """A turn without reasoning after a prompt that opens a thought: refuse the conversation, or close the thought with
    added tokens, which are counted and not trained."""
    allow_dropped: bool = False
    """Train turns of which the chat template does not render everything that the model generated (tool calls,
    reasoning, text beside calls). By default they are refused."""
    allow_images: bool = False
    """Train on the tokens alone where messages have images, audio, video or files, or where multi_modal_inputs were
    recorded. By default such records are refused: no channel uses them."""
    tokenizer: str | None = None
    """A model's folder with tokenizer.json, or a Hub id; training uses the tokenizer of the model by default."""
    chat_template: str | None = None
    """Chat template to use instead of the tokenizer's default: a Jinja file, or the name of another template of the
    tokenizer (such as tool_use); a trained model is saved with it."""
    chat_template_kwargs: TemplateVariables = Field(default={})
    """Variables of the chat template, such as {"enable_thinking": false}; one that it does not read is an error. Those
    of a record (info.chat_template_kwargs) override them."""
    clock: str | None = None
    """Time for chat templates that print a date, such as 2025-07-01T12:00:00, if a record has no time of its own
    (info.time, info.created_at); by default the creation time of the experience table."""
    grammar: str | None = None
    """A YAML file that declares how a family of models writes thoughts and ends turns, if its chat template does not
    show it."""
    record_kwargs: Literal["use", "ignore"] = "use"
    """Chat template variables that a record was sampled with: use them (and refuse the record if the template does not
    read them), or ignore them."""
    train_turns: str = "all"
    """Which generated turns are trained; the others are context. all, accepted (turns that did not fail, by
    tokens.credit), last, after-error (the next turn after a failure), calls, text (turns without calls), or a function
    of (messages, index) as module:function or path/file.py:function. In pairs, both sides are compared by their
    selected turns."""
    credit: CreditConfig = CreditConfig()
    tools_as_text: ToolsAsText = "off"
    """For a chat template without a tool role: calls, results and schemas become text in the tags of Hermes
    (<tool_call>, <tool_response>, <tools> in the system prompt); policy.tools_as_text does the same for sampling."""
    boundaries: Literal["whole", "split"] = "split"
    """Encode a conversation as a whole, as apply_chat_template does, or split it where a token would merge across the
    start of a turn. Pairs are always split after the prompt."""
    control_tokens: Literal["keep", "escape", "refuse"] = "keep"
    """Control tokens in user, tool or system text: keep them, encode them as text, or refuse the conversation."""
    require_stop: bool = True
    """Refuse turns that no stop token follows."""
    verify: Literal["quick", "all"] = "quick"
    """Check the prefix property by rendering the prompts of four turns of a conversation, or of every turn."""
    recorded: Literal["use", "ignore"] = "use"
    """Recorded ids (token ids stored at sampling): use them as the sequence, and refuse a record whose ids do not fit
    its messages or this tokenizer; or ignore them and encode the messages."""
    experience: tuple[str, ...] = ()
    """Experience tables with the recorded ids of pairs; by default the tables that the pairs' lineage.json names."""
    workers: int | None = Field(default=None, ge=1)
    """Number of processes; by default one per core."""

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
        return self.max_length if self.max_pair_length is None else self.max_pair_length

    def content(self) -> dict[str, Any]:
        """Return the options that determine a sequence, for cache keys. Workers and paths are left out: keys have the
        content of tokenizer, template and grammar instead."""
        return self.model_dump(mode="json", exclude={"tokenizer", "chat_template", "grammar", "experience", "workers"})


Confidence = Annotated[float, Field(gt=0.5, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class MetricConfig(Section):
    """A number that is recorded for each run."""

    name: str
    """Its name: reward, a component of it, or a metric that the workflow records."""
    better: Literal["higher", "lower"] = "higher"
    """Which direction is better."""


class GateConfig(Section):
    """What the first metric must show; otherwise the exit code is 2 and nothing is deployed."""

    min_improvement: Finite = 0.0
    """Lower bound for the confidence interval of the improvement; the interval must also be above zero, unless this is
    negative."""
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Non-inferiority margin, instead of min_improvement: the interval must lie above minus this; it may include 0."""
    confidence: Confidence = 0.95
    """Confidence of that interval."""
    min_tasks: Annotated[int, Field(ge=2)] = 10
    """Smallest number of tasks; with fewer the gate stays closed."""

    @model_validator(mode="after")
    def _one_bound(self) -> "GateConfig":
        if self.margin is not None and self.min_improvement:
            raise ValueError("margin: leave out min_improvement: the gate tests improvement or non-inferiority")
        return self


class CompareTerms(Section):
    """How the scores of two models are compared; `evaluate.CompareOptions` has the same options and a seed."""

    confidence: Confidence = 0.95
    """Confidence of the intervals."""
    missing: Literal["refuse", "leave_out"] | Finite = "refuse"
    """If one model has no score for a run: refuse, leave_out (drop and count the run of both), or the score to use."""
    tie: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Differences of a task up to this size are draws."""
    success: Finite | None = None
    """Score from which a run counts as solved (McNemar's test); by default 1, if all scores are 0 or 1."""


class EvaluateConfig(CompareTerms):
    """How the new model is compared with the old one."""

    workflow: str | None = None
    """The async function that plays a held-out task and records its score; null: the one of `collect`."""
    dataset: str | None = None
    """The held-out tasks, in any form that `collect.dataset` takes."""
    split: str | None = None
    """Split of a Hugging Face dataset that has several."""
    num_tasks: Count | None = None
    """Only the first tasks of the dataset."""
    num_runs: Count = 1
    """Runs of each task; run 3 of both models has the same seed."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Sampling temperature; null: the one of `policy`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Local models: precision of both. Below float32, a greedy answer depends on the other requests in its batch."""
    max_tokens: Count | None = None
    """Most tokens of an answer in the exam; null: the limit of `policy`."""
    metrics: tuple[MetricConfig, ...] = ()
    """Metrics to compare: NAME, or NAME:lower if lower is better; the first decides the gate. By default the reward."""
    reduce: Literal["refuse", "mean", "last", "sum", "max", "min"] = "refuse"
    """Which score counts if a run has several."""
    gate: GateConfig | None = None
    """Conditions for deployment; null: none."""

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

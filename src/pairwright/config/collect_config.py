"""`policy`, `collect` and `teach`: the model that answers, the tasks it is run on, how runs are scored, teachers."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pairwright.config.sections import Section, TemplateVariables, ToolsAsText

# `policy`: the model that answers, at an OpenAI-compatible endpoint or in this process.

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class ModelConfig(Section):
    """A model that is asked: an OpenAI-compatible endpoint, or a folder that is loaded here."""

    model: str | None = None
    """Name of the model at the endpoint; without base_url the folder of a local checkpoint."""
    base_url: str | None = None
    """The endpoint, e.g. http://127.0.0.1:8001/v1; null: the model is loaded here."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; null: none is sent."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Sampling temperature; 0 takes the most likely token."""
    max_tokens: Count | None = 512
    """Most tokens of an answer; null: to the end of the context, or what the endpoint allows."""
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    """Variables of the chat template, such as {"enable_thinking": false}: sent to an endpoint (as vLLM and `pairwright
    serve model` take them), or rendered by the local model; recorded with each experience."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """More keys of the request's body."""
    send_seed: bool = True
    """Send the seed of each question; some endpoints refuse it."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = 8
    """Times that a failed request is repeated."""
    timeout_seconds: Positive = 300.0
    """Longest time for one request."""
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
        """The same model as a policy, whose other options have their defaults."""
        return PolicyConfig.model_validate(self.model_dump(exclude_unset=True))


class PolicyConfig(ModelConfig):
    """The model that answers: an OpenAI-compatible endpoint, or a folder loaded once and asked in batches."""

    model_version: str | int | None = None
    """What is recorded as the version of the model; by default its name."""
    # sampling; part of the identity of a collection
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    num_candidates: Annotated[int, Field(ge=1, le=4096)] = 1
    """Answers to each question where the workflow does not say how many."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer."""
    tools_as_text: ToolsAsText = "off"
    """Local model whose chat template has no tool role: tools, calls and results as text (docs/reference/tokens.md)."""
    # what is asked of an endpoint
    logprobs: bool = False
    """Ask the endpoint for log-probabilities; a local model always records them."""
    return_token_ids: bool = False
    """Ask the endpoint for token ids, as vLLM and `pairwright serve model` give them."""
    max_choices_per_request: Count | None = None
    """Most answers asked for in one request; more candidates are several requests."""
    # limits of an endpoint
    max_in_flight: Count | None = None
    """Most requests at once; null: as many as tasks run."""
    requests_per_minute: Positive | None = None
    """Rate limit."""
    tokens_per_minute: Positive | None = None
    """Rate limit of tokens, counted when answers come."""
    # the local model
    max_batch_tokens: Count = 16_384
    """Local model: prompt tokens that go through the model at once."""
    num_threads: Count | None = None
    """Local model: threads of torch; null: what torch chooses."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.base_url is not None and self.tools_as_text != "off":
            raise ValueError("tools_as_text: the endpoint renders chats: pairwright serve model --tools-as-text hermes")
        return self


# `collect` and `teach`: tasks, the workflow that is run on them, its scorer, and the teachers of a table.


class JudgeTerms(Section):
    """A model that judges runs: by which rubric, on which scale, one by one or compared."""

    judge: JudgeConfig = JudgeConfig()
    """judge: the model that judges."""
    mode: Literal["absolute", "relative", "pairwise"] = "absolute"
    """judge: a score for each candidate by itself, a ranking of all candidates of a step, or two at a time, each two in
    both orders (where the orders disagree, it is a tie)."""
    rubric: str = "How well does the response do what was asked?"
    """judge: what to judge by."""
    criteria: dict[str, str] = Field(default_factory=dict)
    """judge: absolute: several criteria, each with its own question; by default the rubric alone."""
    lowest: float = 0.0
    """judge: the lowest score that it may give; it becomes reward 0."""
    highest: float = 10.0
    """judge: the highest score that it may give; it becomes reward 1."""
    votes: Annotated[int, Field(ge=1, le=100)] = 1
    """judge: times that it is asked; the mean counts. Rankings show the candidates in another order each time."""
    max_result_characters: Annotated[int, Field(ge=100)] = 4000
    """judge: longer tool results are cut in the middle; the cut is marked and counted."""
    prompt_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """judge: price of a million tokens of prompts, for the cost."""
    completion_price: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """judge: price of a million tokens of answers."""

    @model_validator(mode="after")
    def _has_a_scale(self) -> "JudgeTerms":
        if not self.lowest < self.highest:
            raise ValueError("lowest must be below highest")
        if self.criteria and self.mode != "absolute":
            raise ValueError(f"criteria: mode {self.mode} compares by the rubric alone")
        if {"reason", "score"} & self.criteria.keys():
            raise ValueError("criteria: `score` and `reason` are taken: choose other names")
        return self


class ScorerConfig(JudgeTerms):
    """Who scores what the workflow leaves unscored."""

    kind: Literal["none", "function", "evaluator", "command", "judge"] = "none"
    """none; a function of each candidate; an evaluator of each finished run; a command; a judge model."""
    function: str | None = None
    """function, evaluator: module:function, path/file.py:function, or an entry point's name. A function of one argument
    is a scorer `score(run)`, and so is the name of a built-in criterion (docs/how-to/score.md)."""
    command: tuple[str, ...] = ()
    """command: program and arguments, run without a shell; the case is JSON on its standard input."""
    result: Literal["exit_code", "json"] = "exit_code"
    """command: 0 is 1.0 and any other exit code 0.0; or a number or {"score": ...} on its standard output."""
    scope: Literal["candidate", "run"] = "candidate"
    """command: run for each candidate, or once for the finished run."""
    timeout_seconds: Positive = 60.0
    """command: longest time for one case."""
    max_concurrency: Count = 8
    """command: most processes at once."""

    @model_validator(mode="after")
    def _whole(self) -> "ScorerConfig":
        # options of other kinds are ignored; those of the chosen kind must be there
        if self.kind in ("function", "evaluator") and not self.function:
            raise ValueError(f"kind {self.kind} needs `function`")
        if self.kind == "command" and not self.command:
            raise ValueError("kind command needs `command`")
        if self.kind == "judge" and not self.judge.model:
            raise ValueError("kind judge needs `judge.model`")
        return self


class ScoreConfig(Section):
    """Scorers of existing runs; `pairs.score` names the one whose scores become rewards."""

    scorers: tuple[str, ...] = ()
    """Scorers: programs (all built-in criteria), one criterion such as no_loop or number:answer:0.01, file.py:FUNCTION,
    command:PROGRAM, or a judge's rubric.yaml. NAME=SCORER names its scores."""
    judge: JudgeConfig = JudgeConfig(temperature=0.0)
    """The judge of rubrics that name none."""
    max_requests: Count | None = None
    """Most requests to judges; runs beyond it stay unscored, and the same command goes on."""
    max_concurrency: Count = 32
    """Requests to a judge at once."""


class TeachConfig(Section):
    """Who is asked for an action at every decision of a student's table."""

    teachers: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Name of a teacher: its endpoint or folder. The name is its version in the records and its folder's name."""
    max_concurrency: Count = 64
    """States at once; one teacher is asked after the other."""


class CollectConfig(Section):
    """What is collected."""

    workflow: str | None = None
    """The async function that plays a task: module:function, path/file.py:function, or an entry point's name."""
    dataset: str | None = None
    """Tasks: a JSON, JSON lines, CSV or Parquet file, or a Hugging Face dataset on disk."""
    split: str | None = None
    """Split of a Hugging Face dataset that has several."""
    id_field: str = "id"
    """Column that names a task; without it a task is named by its content."""
    num_tasks: Count | None = None
    """Without a dataset: tasks 0 to num_tasks - 1. With one: only its first tasks."""
    num_runs: Count = 1
    """Runs of each task."""
    max_concurrency: Count = 64
    """Runs at once."""
    task_timeout_seconds: Positive | None = None
    """Longest time of one run; a run that takes longer has failed."""
    continue_on_collection_error: bool = True
    """Go on when a run fails, and report it at the end; false: stop at the first."""
    batch: int | str = 0
    """Number or name of this collection round in the ids of its experiences."""
    scorer: ScorerConfig = ScorerConfig()
    """Who scores what the workflow leaves unscored."""

"""`collect` and `teach`: tasks, the workflow that plays them, its scorer, and the teachers of a table."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pairwright.config.model_config import JudgeConfig, PolicyConfig, Positive
from pairwright.config.sections import Count, Section


class JudgeTerms(Section):
    """A model that judges runs: by which rubric, on which scale, one by one or compared."""

    judge: JudgeConfig = JudgeConfig()
    """judge: the model that judges."""
    mode: Literal["absolute", "relative", "pairwise"] = "absolute"
    """judge: absolute scores each candidate by itself, relative ranks all candidates of a step, pairwise compares two
    at a time in both orders (a tie if the orders disagree)."""
    rubric: str = "How well does the response do what was asked?"
    """judge: the question that decides the score."""
    criteria: dict[str, str] = Field(default_factory=dict)
    """judge: absolute: several criteria, each with its own question; by default the rubric alone."""
    answers: tuple[str, ...] = ()
    """judge: absolute: ask for one of these words instead of a number, worst first, such as [no, yes]; any other answer
    is a failure. For models that are too small for JSON."""
    lowest: float = 0.0
    """judge: lowest possible score; it becomes reward 0."""
    highest: float = 10.0
    """judge: highest possible score; it becomes reward 1."""
    votes: Annotated[int, Field(ge=1, le=100)] = 1
    """judge: number of times to ask; the mean counts. Rankings show the candidates in a different order each time."""
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
        if self.answers and (self.mode != "absolute" or self.criteria):
            raise ValueError("answers: one word is asked for by mode absolute and the rubric alone")
        if self.answers and len({word.strip().casefold() for word in self.answers} - {""}) != max(2, len(self.answers)):
            raise ValueError("answers: expected two or more different words, the worst first")
        return self


class ScorerConfig(JudgeTerms):
    """Scores the candidates that the workflow leaves unscored."""

    kind: Literal["none", "function", "evaluator", "command", "judge"] = "none"
    """none; function: called for each candidate; evaluator: called for each finished run; command; judge: a model."""
    function: str | None = None
    """function, evaluator: module:function, path/file.py:function, or an entry point's name. A function of one argument
    is a scorer `score(run)`, and so is the name of a built-in criterion (docs/how-to/score.md)."""
    command: tuple[str, ...] = ()
    """command: program and arguments, run without a shell; the case is JSON on its standard input."""
    result: Literal["exit_code", "json"] = "exit_code"
    """command: exit code (0 scores 1.0, any other 0.0), or a number or {"score": ...} on its standard output."""
    scope: Literal["candidate", "run"] = "candidate"
    """command: run for each candidate, or once for the finished run."""
    timeout_seconds: Positive = 60.0
    """command: longest time for one case."""
    max_concurrency: Count = 8
    """command: most processes at once."""

    @model_validator(mode="after")
    def _whole(self) -> "ScorerConfig":
        # options of other kinds are ignored; those of the chosen kind are required
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
    """Judge for rubrics that do not name one."""
    max_requests: Count | None = None
    """Most requests to judges; further runs stay unscored until the same command is run again."""
    max_concurrency: Count = 32
    """Requests to a judge at once."""


class TeachConfig(Section):
    """Teachers that are asked for an action at every decision of a student's table."""

    teachers: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Teachers by name, each an endpoint or a folder. The name is the model version in the records and the name of the
    teacher's folder."""
    max_concurrency: Count = 64
    """States asked at once; teachers are asked one after the other."""


class CollectConfig(Section):
    """What is collected."""

    workflow: str | None = None
    """The async function that plays a task: module:function, path/file.py:function, or an entry point's name."""
    dataset: str | None = None
    """Tasks: a JSON, JSON lines, CSV or Parquet file, or a Hugging Face dataset on disk."""
    split: str | None = None
    """Split of a Hugging Face dataset that has several."""
    id_field: str = "id"
    """Column with the id of a task; without it, the id is a hash of the task's content."""
    num_tasks: Count | None = None
    """Without a dataset: tasks 0 to num_tasks - 1. With one: only its first tasks."""
    num_runs: Count = 1
    """Number of runs per task."""
    max_concurrency: Count = 64
    """Number of runs at a time."""
    task_timeout_seconds: Positive | None = None
    """Longest time of one run, in seconds; a run that takes longer fails."""
    continue_on_collection_error: bool = True
    """Continue when a run fails, and report it at the end; false: stop at the first failure."""
    batch: int | str = 0
    """Number or name of this collection round in the ids of its experiences."""
    scorer: ScorerConfig = ScorerConfig()
    """Scores the candidates that the workflow leaves unscored."""

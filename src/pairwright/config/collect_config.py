"""`collect` and `teach`: tasks, the workflow that is run on them, its scorer, and the teachers of a table."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pairwright.config.model_config import Count, JudgeConfig, PolicyConfig, Positive
from pairwright.config.sections import Section


class ScorerConfig(Section):
    """Who scores what the workflow leaves unscored."""

    kind: Literal["none", "function", "evaluator", "command", "judge"] = "none"
    """none; a function of each candidate; an evaluator of each finished run; a command; a judge model."""
    function: str | None = None
    """function, evaluator: module:function, path/file.py:function, or an entry point's name."""
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
    judge: JudgeConfig = JudgeConfig()
    """judge: the model that judges."""
    mode: Literal["absolute", "relative"] = "absolute"
    """judge: a score for each candidate by itself, or a ranking of the candidates of a step."""
    rubric: str = "How well does the response do what was asked?"
    """judge: what to judge by."""
    lowest: float = 0.0
    """judge: the lowest score that it may give; it becomes reward 0."""
    highest: float = 10.0
    """judge: the highest score that it may give; it becomes reward 1."""
    votes: Annotated[int, Field(ge=1, le=100)] = 1
    """judge: times that it is asked; the mean counts. Rankings show the candidates in another order each time."""

    @model_validator(mode="after")
    def _whole(self) -> "ScorerConfig":
        # options of other kinds are ignored; those of the chosen kind must be there
        if self.kind in ("function", "evaluator") and not self.function:
            raise ValueError(f"kind {self.kind} needs `function`")
        if self.kind == "command" and not self.command:
            raise ValueError("kind command needs `command`")
        if self.kind == "judge" and not self.judge.model:
            raise ValueError("kind judge needs `judge.model`")
        if not self.lowest < self.highest:
            raise ValueError("lowest must be below highest")
        return self


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

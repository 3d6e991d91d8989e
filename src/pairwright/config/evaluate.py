"""`evaluate`: how the new model is compared with the old one, and what it must show before it is deployed."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pairwright.config.section import Section

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
    confidence: Confidence = 0.95
    """Confidence of that interval."""
    min_tasks: Annotated[int, Field(ge=2)] = 10
    """With fewer tasks the gate stays closed."""


class EvaluateConfig(Section):
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
    metrics: tuple[MetricConfig, ...] = ()
    """What is compared, the one that counts first; by default the reward. NAME, or NAME:lower where lower is better."""
    confidence: Confidence = 0.95
    """Confidence of the intervals."""
    num_resamples: Annotated[int, Field(ge=100, le=1_000_000)] = 10_000
    """Bootstrap resamples; tasks are drawn, with the run's seed."""
    method: Literal["bca", "percentile"] = "bca"
    """Bias-corrected and accelerated, or plain percentiles."""
    missing: Literal["refuse", "leave_out"] | Finite = "refuse"
    """Where one model has no score: refuse, leave_out (of both, counted), or the score that it gets."""
    reduce: Literal["refuse", "mean", "last", "sum", "max", "min"] = "refuse"
    """What counts where a run has several scores."""
    tie: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Differences of a task up to this size are draws."""
    success: Finite | None = None
    """A run counts as solved from this score on (McNemar); by default at 1, where scores are all 0 or 1."""
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
    name, colon, direction = text.rpartition(":")
    return {"name": name, "better": direction} if colon and direction in ("higher", "lower") else {"name": text}

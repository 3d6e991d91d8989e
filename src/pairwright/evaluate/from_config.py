"""The `evaluate` section of a configuration as what the functions take."""

from typing import Any

from pairwright.config import EvaluateConfig
from pairwright.evaluate.comparison import CompareOptions, Metric


def evaluate_settings(section: EvaluateConfig, *, seed: int) -> dict[str, Any]:
    """The keyword arguments of `evaluate`."""
    return {
        "metrics": tuple(Metric(metric.name, metric.better) for metric in section.metrics),
        "options": CompareOptions(
            confidence=section.confidence, num_resamples=section.num_resamples, method=section.method, seed=seed,
            missing=section.missing, tie=section.tie, success=section.success,
        ),
        "gate": section.gate,
    }  # fmt: skip

"""The `evaluate` section of a configuration as keyword arguments."""

from typing import Any

from pairwright.config import EvaluateConfig
from pairwright.config.sections import CompareTerms
from pairwright.evaluation.comparison import CompareOptions, Metric


def evaluate_settings(section: EvaluateConfig, *, seed: int) -> dict[str, Any]:
    """The keyword arguments of `evaluate`."""
    terms = {name: getattr(section, name) for name in CompareTerms.model_fields}
    return {
        "metrics": tuple(Metric(metric.name, metric.better) for metric in section.metrics),
        "options": CompareOptions(**terms, seed=seed),
        "gate": section.gate,
    }

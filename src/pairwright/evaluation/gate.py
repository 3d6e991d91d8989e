"""The gate: whether the evidence suffices to deploy. A negative verdict is exit code 2."""

from dataclasses import dataclass

from pairwright.config.sections import GateConfig as Gate
from pairwright.evaluation.comparison import Comparison

__all__ = ["Gate", "Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """The decision of the gate, and its reason."""

    passed: bool
    reason: str
    metric: str
    gate: Gate


def judge(comparison: Comparison, gate: Gate) -> Verdict:
    """Judge a comparison whose intervals have the gate's confidence."""
    improvement = comparison.improvement
    name = comparison.metric.name
    # with fewer than two tasks, there is no interval
    if comparison.num_tasks < gate.min_tasks or improvement.low is None:
        least = max(gate.min_tasks, 2)
        reason = f"{comparison.num_tasks} tasks are too few for a verdict: at least {least} are required"
        return Verdict(False, reason, name, gate)
    bounds = (
        f"{improvement.mean:+.4g} ({gate.confidence:.4g} interval {improvement.low:+.4g} to {improvement.high:+.4g})"
    )
    if gate.margin is not None:
        passed = improvement.low > -gate.margin
        verb = "is not worse by more than" if passed else "may be worse by more than"
        return Verdict(passed, f"{name} {verb} {gate.margin:.4g}: it changed by {bounds}", name, gate)
    # the lower bound decides, not the mean: the gate requires evidence of the improvement
    if improvement.low < gate.min_improvement:
        reason = f"{name} improved by {bounds}; the lower bound is below {gate.min_improvement:.4g}"
        return Verdict(False, reason, name, gate)
    if gate.min_improvement >= 0 and improvement.low <= 0:
        return Verdict(False, f"{name} improved by {bounds}; the interval does not exclude zero", name, gate)
    return Verdict(True, f"{name} improved by {bounds}", name, gate)

"""The gate: whether the evidence is good enough to deploy. A verdict of no is exit code 2.

It opens where the whole confidence interval of the improvement lies at or above `min_improvement`, and above zero
unless `min_improvement` is below it (then the question is whether the new model is not much worse). With fewer tasks
than `min_tasks` it stays closed, since an interval of a few tasks does not hold what it promises.
"""

from dataclasses import dataclass

from pairwright.config.evaluate import GateConfig as Gate
from pairwright.evaluate.comparison import Comparison

__all__ = ["Gate", "Verdict", "judge"]


@dataclass(frozen=True)
class Verdict:
    """What the gate says, and why, for people."""

    passed: bool
    reason: str
    metric: str
    gate: Gate


def judge(comparison: Comparison, gate: Gate) -> Verdict:
    """The verdict on a comparison whose intervals were made with the gate's confidence."""
    improvement = comparison.improvement
    name = comparison.metric.name
    if comparison.num_tasks < gate.min_tasks or improvement.low is None:
        least = max(gate.min_tasks, 2)
        reason = f"{comparison.num_tasks} tasks are too few to say: at least {least} are asked for"
        return Verdict(False, reason, name, gate)
    bounds = (
        f"{improvement.mean:+.4g} ({gate.confidence:.4g} interval {improvement.low:+.4g} to {improvement.high:+.4g})"
    )
    if improvement.low < gate.min_improvement:
        reason = f"{name} improved by {bounds}; the lower bound is below {gate.min_improvement:.4g}"
        return Verdict(False, reason, name, gate)
    if gate.min_improvement >= 0 and improvement.low <= 0:
        return Verdict(False, f"{name} improved by {bounds}; the interval does not exclude zero", name, gate)
    return Verdict(True, f"{name} improved by {bounds}", name, gate)

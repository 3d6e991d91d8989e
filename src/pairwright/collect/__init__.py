"""Collecting: a workflow over tasks, its policy, its scorer, and everything it does recorded; and a recording proxy."""

from pairwright.collect.completion import Ask, Completion, Policy
from pairwright.collect.failures import CollectError, PolicyError, ScorerError
from pairwright.collect.recording import Candidate, Recorder, Step, current_recorder, recording, step
from pairwright.collect.runner import Collected, collect
from pairwright.collect.scoring import FinishedRun
from pairwright.collect.tally import Status
from pairwright.collect.tasks import Task

__all__ = [
    "Ask", "Candidate", "CollectError", "Collected", "Completion", "FinishedRun", "Policy", "PolicyError", "Recorder",
    "ScorerError", "Status", "Step", "Task", "collect", "current_recorder", "recording", "step",
]  # fmt: skip

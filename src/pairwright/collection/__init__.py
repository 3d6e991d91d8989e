"""Collection: runs a workflow over tasks with a policy and a scorer, and records it; also a recording proxy."""

from pairwright.collection.collecting import collect
from pairwright.collection.counters import Status
from pairwright.collection.policies import Ask, Completion, Policy
from pairwright.collection.recording import Candidate, Recorder, Step, current_recorder, recording, step
from pairwright.collection.run_failures import CollectError, PolicyError, ScorerError
from pairwright.collection.runner import Collected
from pairwright.collection.scoring import FinishedRun
from pairwright.collection.tasks import Task

__all__ = [
    "Ask",
    "Candidate",
    "CollectError",
    "Collected",
    "Completion",
    "FinishedRun",
    "Policy",
    "PolicyError",
    "Recorder",
    "ScorerError",
    "Status",
    "Step",
    "Task",
    "collect",
    "current_recorder",
    "recording",
    "step",
]

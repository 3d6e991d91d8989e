"""Collection: runs a workflow over tasks with a policy and a scorer, and records it; also a recording proxy."""

import pairwright
from pairwright.collect.collecting import collect
from pairwright.collect.counters import Status
from pairwright.collect.policies import Ask, Completion, Policy
from pairwright.collect.recording import Candidate, Recorder, Step, current_recorder, recording, step
from pairwright.collect.run_failures import CollectError, PolicyError, ScorerError
from pairwright.collect.runner import Collected
from pairwright.collect.scoring import FinishedRun
from pairwright.collect.tasks import Task

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

pairwright.make_callable(__name__, collect)  # pairwright.collect(...) is collect(...)

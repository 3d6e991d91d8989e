"""The life of a job and of a deployment: enums, and tables of what may follow what. No other change is ever written.

created ─► pending ─► running ─► completed | failed          pending again when the service was restarted
   └─────────┴──────────┴─► cancelling ─► cancelled
"""

from enum import StrEnum


class JobState(StrEnum):
    CREATED = "created"
    PENDING = "pending"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    FAILED = "failed"
    COMPLETED = "completed"


JOB_TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.CREATED: frozenset({JobState.PENDING, JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.PENDING: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.PENDING, JobState.CANCELLING, JobState.FAILED, JobState.COMPLETED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.FAILED, JobState.COMPLETED}),
    JobState.CANCELLED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.COMPLETED: frozenset(),
}
WAITING = (JobState.CREATED, JobState.PENDING)
WITH_WORKER = (JobState.RUNNING, JobState.CANCELLING)


class DeploymentState(StrEnum):
    CREATED = "created"
    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"


DEPLOYMENT_TRANSITIONS: dict[DeploymentState, frozenset[DeploymentState]] = {
    DeploymentState.CREATED: frozenset({DeploymentState.PENDING, DeploymentState.FAILED}),
    DeploymentState.PENDING: frozenset({DeploymentState.READY, DeploymentState.FAILED}),
    DeploymentState.READY: frozenset({DeploymentState.PENDING, DeploymentState.FAILED}),
    DeploymentState.FAILED: frozenset(),
}


def may_follow(new: JobState) -> list[JobState]:
    """The states that a job may be in when it becomes `new`."""
    return [state for state, following in JOB_TRANSITIONS.items() if new in following]


def deployment_may_follow(new: DeploymentState) -> list[DeploymentState]:
    """The states that a deployment may be in when it becomes `new`."""
    return [state for state, following in DEPLOYMENT_TRANSITIONS.items() if new in following]


def is_final(state: str) -> bool:
    return not JOB_TRANSITIONS[JobState(state)]

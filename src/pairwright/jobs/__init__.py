"""Training backends: local process, Ray, the services NeMo Customizer and NeMo Platform, NeMo RL and TRL.

`BACKENDS` maps the values of `backend.name` to backends. Each implements submit, status, wait, cancel, deploy and logs.
"""

from pairwright.jobs.customizer import NEMO_CUSTOMIZER
from pairwright.jobs.job import (
    Backend,
    BackendError,
    Job,
    JobFailed,
    JobRequest,
    JobState,
    JobTimeout,
    ServiceError,
    Status,
    Unreachable,
    find_jobs,
    is_submitted,
    job_folder,
    read_job,
)
from pairwright.jobs.local import LOCAL, RAY
from pairwright.jobs.nemo_platform import NEMO_PLATFORM
from pairwright.jobs.nemo_rl import NEMO_RL
from pairwright.jobs.trl import TRL

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (LOCAL, RAY, NEMO_CUSTOMIZER, NEMO_PLATFORM, NEMO_RL, TRL)
}

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendError",
    "Job",
    "JobFailed",
    "JobRequest",
    "JobState",
    "JobTimeout",
    "ServiceError",
    "Status",
    "Unreachable",
    "find_jobs",
    "is_submitted",
    "job_folder",
    "read_job",
]

"""Training backends: local process, Ray, the services NeMo Customizer and NeMo Platform, NeMo RL and TRL.

`BACKENDS` maps the values of `backend.name` to backends. Each implements submit, status, wait, cancel, deploy and logs.
"""

from pairwright.config import Config
from pairwright.config.user_code import BACKENDS as OWN_BACKENDS
from pairwright.config.user_code import load_own
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


def find_backend(name: str) -> Backend:
    """Return a backend of `BACKENDS`, or the user's `file.py:BACKEND` or entry point."""
    if name in BACKENDS:
        return BACKENDS[name]
    backend: Backend = load_own(name, Backend, group=OWN_BACKENDS)
    return backend


def backend_of(job: Job, config: Config) -> Backend:
    """Return the backend of a job; the user's own only if the configuration names it, since a job file is data."""
    if job.backend in BACKENDS:
        return BACKENDS[job.backend]
    named = find_backend(config.backend.name)
    if job.backend not in (named.name, config.backend.name):
        raise BackendError(f"{job.id}: a job of {job.backend!r}; name its code: backend.name=file.py:BACKEND")
    return named


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
    "backend_of",
    "find_backend",
    "find_jobs",
    "is_submitted",
    "job_folder",
    "read_job",
]

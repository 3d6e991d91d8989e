"""What can go wrong with a job.

BackendError        a backend cannot do what was asked
├── ServiceError    a service refused a request: its status and its own words
├── Unreachable     a service gave no usable answer; asking again may help
├── JobFailed       the job ended, and not well
└── JobTimeout      we stopped waiting; the job may still be going on
"""

from pairwright.errors import PairwrightError


class BackendError(PairwrightError):
    pass


class ServiceError(BackendError):
    def __init__(self, message: str, *, status: int) -> None:
        self.status = status
        super().__init__(message)


class Unreachable(BackendError):
    pass


class JobFailed(BackendError):
    pass


class JobTimeout(BackendError):
    pass

"""Why a run failed: one short kind for counting, one message for reading.

timeout         the run took longer than it may
connection      the endpoint could not be reached, broke off, or did not answer in time, after all retries
rate_limited    the endpoint kept answering 429
server_error    the endpoint kept answering 5xx
refused         the endpoint or the model refused the request (4xx, too long for the context)
bad_response    the endpoint answered something that is no answer
scorer          the scorer failed, so what the run did has no score
record          the workflow recorded something that is no record
workflow        the workflow raised; the message has the exception
"""

from typing import Literal

from pairwright.errors import PairwrightError

FailureKind = Literal[
    "timeout", "connection", "rate_limited", "server_error", "refused", "bad_response", "scorer", "record", "workflow"
]


class CollectError(PairwrightError):
    """A collection that cannot start or go on."""


class PolicyError(CollectError):
    """The policy gave no answer, after the retries that make sense for the kind of failure."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        self.kind: FailureKind = kind
        super().__init__(message)


class ScorerError(CollectError):
    """The scorer gave no score."""


def one_line(error: BaseException, limit: int = 500) -> str:
    """An exception in one line, for ledgers and tables."""
    text = " ".join(str(error).split())
    shown = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return shown if len(shown) <= limit else f"{shown[:limit]}…"

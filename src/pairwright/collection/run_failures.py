"""Failures of a run: a kind, for counting, and a message."""

from typing import Literal

from pairwright.errors import PairwrightError

FailureKind = Literal[
    "timeout", "connection", "rate_limited", "server_error", "refused", "bad_response", "scorer", "record", "workflow"
]


class CollectError(PairwrightError):
    """A collection that cannot start or continue."""


class PolicyError(CollectError):
    """The policy returned no answer, after the retries for this kind of failure."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        self.kind: FailureKind = kind
        super().__init__(message)


class ScorerError(CollectError):
    """The scorer failed or returned no valid score."""


def one_line(error: BaseException) -> str:
    """Format an exception as one line, for ledgers and tables."""
    # messages of HTTP and JSON libraries span several lines
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= 500 else f"{line[:500]}…"

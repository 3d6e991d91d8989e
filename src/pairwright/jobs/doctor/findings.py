"""What was found of one thing that a run needs, and what is looked at."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pairwright.config import Config


class Verdict(StrEnum):
    OK = "ok"
    # A warning does not stop a run; `unknown` could not be checked from here.
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `way_out` is what to do where it failed."""

    name: str
    verdict: Verdict
    message: str
    way_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Patient:
    """What is looked at."""

    config: Config
    pairs: Path | None
    model: str | None
    output: Path
    base: Path | None = None
    """The folder of the configuration, from which its paths count."""


def fine(name: str, message: str) -> Finding:
    return Finding(name, Verdict.OK, message)


def warn(name: str, message: str) -> Finding:
    return Finding(name, Verdict.WARNING, message)


def wrong(name: str, message: str, way_out: str) -> Finding:
    return Finding(name, Verdict.FAILED, message, way_out)


def untold(name: str, message: str) -> Finding:
    return Finding(name, Verdict.UNKNOWN, message)

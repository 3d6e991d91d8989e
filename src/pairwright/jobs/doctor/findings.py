"""Findings of the doctor, and the inputs of its checks."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pairwright.config import Config


class Verdict(StrEnum):
    OK = "ok"
    # A warning does not stop a run; `unknown` means that the check could not be made.
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """Result of one check. `way_out` is the suggested fix of a failure."""

    name: str
    verdict: Verdict
    message: str
    way_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Patient:
    config: Config
    pairs: Path | None
    model: str | None
    output: Path
    base: Path | None = None
    """Folder of the configuration; relative paths are resolved against it."""


def fine(name: str, message: str) -> Finding:
    return Finding(name, Verdict.OK, message)


def warn(name: str, message: str) -> Finding:
    return Finding(name, Verdict.WARNING, message)


def wrong(name: str, message: str, way_out: str) -> Finding:
    return Finding(name, Verdict.FAILED, message, way_out)


def untold(name: str, message: str) -> Finding:
    return Finding(name, Verdict.UNKNOWN, message)

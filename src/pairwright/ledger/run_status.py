"""Read `train.json`, the state of a training run, and the newest losses of its `metrics.jsonl`.

The trainer (training/run_dir.py) replaces train.json at each change and appends to metrics.jsonl while others read.
"""

import math
import os
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from pairwright.errors import PairwrightError

FILE_NAME = "train.json"
_TAIL_BYTES = 2**20  # read from the end of the metrics: a few thousand lines


class RunError(PairwrightError):
    """A run that cannot start in this folder, or cannot be read from it."""


class Status(msgspec.Struct, kw_only=True):
    """The content of train.json."""

    state: str
    step: int = 0
    num_steps: int = 0
    steps_per_epoch: int = 0
    epoch: float = 0.0
    epochs: int = 0
    best_step: int | None = None
    best_metric: float | None = None
    best_epoch: int | None = None
    model: str | None = None
    error: str | None = None
    notes: list[str] = []
    counts: dict[str, dict[str, int]] = {}  # channel -> what was counted -> number
    inputs: dict[str, str] = {}  # name -> path, relative to the folder of the run
    tokens: dict[str, Any] = {}  # the `tokens` section of the configuration
    trained_tokens: dict[str, int] = {}  # channel -> tokens that its losses were computed on
    where: str | None = None
    fingerprint: str = ""
    threads: int = 0  # CPU threads; a resumed run uses the same number, since sums of matrix products depend on it
    pid: int = 0

    @property
    def percentage(self) -> float | None:
        """How much of the run is done, from 0 to 100; None before its length is known."""
        return min(100.0, 100.0 * self.step / self.num_steps) if self.num_steps > 0 else None


def read_status(folder: Path, *, strict: bool = True) -> Status | None:
    """Return the state of the run in `folder`, or None if there is no run.

    An unreadable file raises RunError; with `strict=False` (for watching a run), it counts as missing.
    """
    try:
        return msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=Status)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        if not strict:
            return None
        raise RunError(f"{folder / FILE_NAME}: cannot be read: {error}") from error


def last_losses(folder: Path) -> tuple[float | None, float | None]:
    """Return the newest finite training and validation loss, from the end of the metrics."""
    losses: dict[str, float] = {}
    for line in last_lines(folder / "metrics.jsonl", 200):
        try:
            row = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue  # a line that is being written
        for name in ("loss", "eval_loss"):
            value = row.get(name) if isinstance(row, dict) else None
            if isinstance(value, int | float) and math.isfinite(value):
                losses[name] = float(value)
    return losses.get("loss"), losses.get("eval_loss")


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a text file, reading only its last megabyte; empty if the file is missing."""
    try:
        with open(path, "rb") as file:
            # The first line that is read may lack its beginning: callers skip lines that do not parse.
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return list(deque(text.splitlines(), maxlen=count))

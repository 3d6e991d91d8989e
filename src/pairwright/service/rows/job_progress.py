"""Progress of a job, from its run folder: `train.json` (state and steps) and `metrics.jsonl` (curves)."""

import math
from pathlib import Path
from typing import Any

import msgspec

from pairwright.ledger.run_status import Status, last_losses, read_status

# Maximum points of a curve, so that status responses stay small.
MAX_POINTS = 1000
_NAMES = {
    "loss": "train_loss",
    "eval_loss": "val_loss",
    "rewards/accuracies": "train_accuracy",
    "eval_rewards/accuracies": "val_accuracy",
}
NOTHING_YET: dict[str, Any] = {
    "percentage_done": 0.0,
    "epochs_completed": 0,
    "steps_completed": 0,
    "steps_per_epoch": None,
    "best_epoch": None,
    "train_loss": None,
    "val_loss": None,
    # Sequences that were cut to max_seq_length (a pair has two), and rows that were refused. None: not encoded yet.
    "truncated_sequences": None,
    "refused_rows": None,
}
_NOT_CURVES = frozenset({"step", "epoch", "time"})


def read_metrics(folder: Path, *, max_points: int = MAX_POINTS) -> dict[str, list[dict[str, Any]]]:
    """Read the metrics of a run under the names of the API. Long curves are downsampled, keeping the last point."""
    curves: dict[str, dict[int, dict[str, Any]]] = {}
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            row = msgspec.json.decode(line)
        except msgspec.MsgspecError:
            continue  # the line that is being written
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            continue
        for key, value in row.items():
            if key not in _NOT_CURVES and isinstance(value, int | float) and not isinstance(value, bool):
                if not math.isfinite(value):
                    continue
                time = row.get("time")
                timestamp = None if time is None else str(time)
                point = {"step": row["step"], "timestamp": timestamp, "value": float(value)}
                # After a resume, a step may be logged again: the later row counts.
                curves.setdefault(str(_NAMES.get(key, key)), {})[row["step"]] = point
    return {
        name: _thin_points([points[step] for step in sorted(points)], max_points) for name, points in curves.items()
    }


def summary(folder: Path, *, is_completed: bool, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the progress of a job from its run folder. Values that cannot be read are taken from `before`."""
    run = read_status(folder, strict=False)
    facts: dict[str, Any] = {**NOTHING_YET, **(before or {})}
    if run is not None:
        epoch_of = (lambda step: step // run.steps_per_epoch) if run.steps_per_epoch else (lambda step: 0)
        facts.update(
            percentage_done=round(run.percentage or 0.0, 2),
            steps_completed=run.step,
            steps_per_epoch=run.steps_per_epoch or None,
            epochs_completed=int(run.epoch) if run.epoch else epoch_of(run.step),
            best_epoch=_best_epoch(run),
            **_row_counts(run),
        )
        losses = zip(("train_loss", "val_loss"), last_losses(folder), strict=True)
        facts.update((name, loss) for name, loss in losses if loss is not None)
    if is_completed:
        facts["percentage_done"] = 100.0
    return facts


def _row_counts(run: Status) -> dict[str, Any]:
    """Return the counts of truncated and refused rows from encoding, summed over channels."""
    if not run.counts:
        return {}
    return {
        "truncated_sequences": sum(counts.get("truncated", 0) for counts in run.counts.values()),
        "refused_rows": sum(
            number for counts in run.counts.values() for name, number in counts.items() if name.startswith("refused: ")
        ),
    }


def _best_epoch(run: Status) -> int | None:
    # The reported epoch takes precedence, since epochs of a curriculum differ in length.
    if run.best_epoch is not None or run.best_step is None:
        return run.best_epoch
    return max(0, run.best_step - 1) // run.steps_per_epoch if run.steps_per_epoch else 0


def _thin_points(points: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    if len(points) <= limit:
        return points
    # Rounded up, so that with the last point there are at most `limit`.
    stride = -(-len(points) // (limit - 1))
    points_left = points[::stride]
    return points_left if points_left[-1] is points[-1] else [*points_left, points[-1]]

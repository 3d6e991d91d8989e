"""How far a job is, read from the files of its run: `train.json` (state and steps) and `metrics.jsonl` (curves).

Both are written by the trainer while it runs; a file that is missing or torn says nothing and breaks nothing.
`percentage_done` is a number in every reply.
"""

import math
from pathlib import Path
from typing import Any

import msgspec

from pairwright.ledger.run_status import Status, last_losses, read_status

MAX_POINTS = 1000
_NAMES = {"loss": "train_loss", "eval_loss": "val_loss", "rewards/accuracies": "train_accuracy",
          "eval_rewards/accuracies": "val_accuracy"}  # fmt: skip
NOTHING_YET: dict[str, Any] = {
    "percentage_done": 0.0, "epochs_completed": 0, "steps_completed": 0, "steps_per_epoch": None, "best_epoch": None,
    "train_loss": None, "val_loss": None,
}  # fmt: skip
_NOT_CURVES = frozenset({"step", "epoch", "time"})


def read_metrics(folder: Path, *, max_points: int = MAX_POINTS) -> dict[str, list[dict[str, Any]]]:
    """The curves of a run under the protocol's names; a long curve is thinned evenly, its end kept."""
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
                point = {"step": row["step"], "timestamp": _time(row.get("time")), "value": float(value)}
                curves.setdefault(str(_NAMES.get(key, key)), {})[row["step"]] = point
    return {name: _thinned([points[step] for step in sorted(points)], max_points) for name, points in curves.items()}


def summary(folder: Path, *, is_completed: bool, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """The numbers of a job's status, from its run folder; what cannot be read now stays as it was `before`."""
    run = read_status(folder, strict=False)
    found: dict[str, Any] = {**NOTHING_YET, **(before or {})}
    if run is not None:
        epoch_of = (lambda step: step // run.steps_per_epoch) if run.steps_per_epoch else (lambda step: 0)
        found.update(
            percentage_done=round(run.percentage or 0.0, 2),
            steps_completed=run.step,
            steps_per_epoch=run.steps_per_epoch or None,
            epochs_completed=int(run.epoch) if run.epoch else epoch_of(run.step),
            best_epoch=_best_epoch(run),
        )
        losses = zip(("train_loss", "val_loss"), last_losses(folder), strict=True)
        found.update((name, loss) for name, loss in losses if loss is not None)
    if is_completed:
        found["percentage_done"] = 100.0
    return found


def _best_epoch(run: Status) -> int | None:
    """As the trainer says, since epochs of a curriculum differ in length; by division for one that does not say it."""
    if run.best_epoch is not None or run.best_step is None:
        return run.best_epoch
    return max(0, run.best_step - 1) // run.steps_per_epoch if run.steps_per_epoch else 0


def _thinned(points: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    if len(points) <= limit:
        return points
    stride = -(-len(points) // (limit - 1))
    kept = points[::stride]
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]


def _time(value: Any) -> str | None:
    return None if value is None else str(value)

"""What a service tells of a job's losses, as `metrics.jsonl` in the run's folder, in our trainer's names."""

from pathlib import Path

import msgspec

from pairwright.errors import PairwrightError
from pairwright.messages import Json
from pairwright.places import write_bytes

_NAMES = {"train_loss": "loss", "val_loss": "eval_loss", "train_accuracy": "rewards/accuracies",
          "val_accuracy": "eval_rewards/accuracies"}  # fmt: skip


def metric_rows(details: Json) -> list[Json]:
    """The rows of a status answer: one a step, training before validation.

    >>> metric_rows({"metrics": {"metrics": {"train_loss": [{"step": 1, "value": 0.7}]}}})
    [{'step': 1, 'loss': 0.7}]
    """
    outer = details.get("metrics")
    series = outer.get("metrics") if isinstance(outer, dict) else None
    rows: dict[tuple[int, bool], Json] = {}
    for name, points in (series or {}).items() if isinstance(series, dict) else ():
        own = _NAMES.get(str(name), str(name))
        for point in points if isinstance(points, list) else ():
            if isinstance(point, dict) and isinstance(point.get("step"), int) and point.get("value") is not None:
                key = (point["step"], own.startswith("eval_") or str(name).startswith("val_"))
                rows.setdefault(key, {"step": point["step"]})[own] = point["value"]
    return [rows[key] for key in sorted(rows)]


def write_metrics(folder: Path, details: Json) -> None:
    """Replace the run's metrics by what the service has; nothing if it tells nothing."""
    rows = metric_rows(details)
    if rows:
        content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        write_bytes(folder / "metrics.jsonl", content, error=PairwrightError)

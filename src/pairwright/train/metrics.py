"""Means over a batch, whatever parts it was computed in; and where they are reported beside metrics.jsonl."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pairwright.errors import ConfigError

Sums = dict[str, tuple[float, float]]


def add(total: Sums, more: Mapping[str, tuple[float, float]]) -> None:
    """Add (sum, count) pairs by name.

    >>> total = {"loss": (1.0, 2.0)}
    >>> add(total, {"loss": (3.0, 2.0), "accuracy": (1.0, 1.0)})
    >>> means(total)
    {'loss': 1.0, 'accuracy': 1.0}
    """
    for name, (value, count) in more.items():
        before = total.get(name, (0.0, 0.0))
        total[name] = (before[0] + value, before[1] + count)


def means(sums: Sums, prefix: str = "") -> dict[str, float]:
    """The mean of each name; a name whose count is 0 has none."""
    return {prefix + name: value / count for name, (value, count) in sums.items() if count}


class Reporter:
    """One place to report to: `log(values, step)`, and `close`."""

    def __init__(self, log: Callable[[dict[str, float], int], Any], close: Callable[[], Any]) -> None:
        self.log, self.close = log, close


def _tensorboard(folder: Path, name: str) -> Reporter:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(values: dict[str, float], step: int) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, step)

    return Reporter(log, writer.close)


def _wandb(folder: Path, name: str) -> Reporter:
    import wandb

    run: Any = wandb.init(project="pairwright", name=name, dir=str(folder), resume="allow")
    return Reporter(lambda values, step: run.log(values, step=step), run.finish)


def _mlflow(folder: Path, name: str) -> Reporter:
    import mlflow

    mlflow.set_experiment("pairwright")
    mlflow.start_run(run_name=name)
    return Reporter(lambda values, step: mlflow.log_metrics(values, step=step), mlflow.end_run)


def _trackio(folder: Path, name: str) -> Reporter:
    import trackio

    trackio.init(project="pairwright", name=name)
    return Reporter(lambda values, step: trackio.log(values, step=step), trackio.finish)


REPORTERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def open_reporters(names: tuple[str, ...], folder: Path, run: str) -> list[Reporter]:
    """Open each by name; one that is not installed is an error before training starts."""
    opened = []
    for name in names:
        if name not in REPORTERS:
            raise ConfigError(f"report_to: unknown {name!r}; known: {', '.join(REPORTERS)}")
        try:
            opened.append(REPORTERS[name](folder, run))
        except ImportError as error:
            raise ConfigError(f"report_to: {name} is not installed ({error}): pip install {name}") from error
    return opened

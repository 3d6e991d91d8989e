"""Metrics: means over a batch, however it is split into parts, written to metrics.jsonl and to reporters."""

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pairwright.errors import ConfigError
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.checkpoint import State
from pairwright.training.run_dir import RunFolder

Sums = dict[str, tuple[float, float]]  # name -> (sum, count), added over parts and processes before the division
Event = dict[str, Any]
Progress = Callable[[Event], None]


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
    """Return the mean of each name; names with count 0 are left out."""
    return {prefix + name: value / count for name, (value, count) in sums.items() if count}


class Reporter(NamedTuple):
    """A destination of metrics: `log(values, step)` and `close`."""

    log: Callable[[dict[str, float], int], Any]
    close: Callable[[], Any]


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


# Keys are package names: `check_reporters` looks for them.
REPORTERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def check_reporters(names: tuple[str, ...]) -> None:
    """Raise ConfigError for a reporter that is not installed, before any work is done."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"report_to: {name} is not installed: pip install {name}")


class Log:
    """Collects metrics since the last written line."""

    def __init__(
        self,
        folder: RunFolder,
        reporters: list[Reporter],
        state: State,
        order: BatchOrder,
        progress: Progress,
        total: int,
    ) -> None:
        self._folder, self._reporters, self._state = folder, reporters, state
        self._order, self._progress, self._num_steps = order, progress, total
        # Since the last line: (sum, count) of each metric, the time, and the number of tokens.
        self._sums: Sums = {}
        self._rate = 0.0
        self._since = time.perf_counter()
        self._tokens = 0

    def add(self, sums: Sums, rate: float) -> None:
        """Add the sums of one update."""
        tokens = int(sums.pop("num_tokens", (0, 0))[0])
        self._tokens += tokens
        self._state.num_tokens += tokens
        self._rate = rate
        add(self._sums, sums)

    def write(self) -> dict[str, float]:
        """Write the means since the last line, and start again."""
        now = time.perf_counter()
        values = {
            **means(self._sums),
            "learning_rate": self._rate,
            "num_tokens": float(self._state.num_tokens),
            "tokens_per_second": self._tokens / max(1e-9, now - self._since),
        }
        self._sums, self._since, self._tokens = {}, now, 0
        return self.write_line("step", values)

    def write_line(self, kind: str, values: dict[str, float]) -> dict[str, float]:
        step = self._state.step
        epoch = self._order.num_epochs(step)
        self._folder.write_metrics({"step": step, "epoch": round(epoch, 4), "time": time.time(), **values})
        self._folder.write_status(step=step, epoch=round(epoch, 4), steps_per_epoch=self._order.steps_per_epoch)
        for reporter in self._reporters:
            reporter.log(values, step)
        self._progress({"kind": kind, "step": step, "num_steps": self._num_steps, "epoch": epoch, **values})
        return values

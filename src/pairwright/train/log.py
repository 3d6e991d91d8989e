"""What a run measures, on its way to metrics.jsonl, to reporters and to whoever watches."""

import time
from collections.abc import Callable
from typing import Any

from pairwright.train.checkpoint import State
from pairwright.train.folder import RunFolder
from pairwright.train.metrics import Reporter, Sums, add, means
from pairwright.train.order import Order

Event = dict[str, Any]
Progress = Callable[[Event], None]


class Log:
    """What was measured since the last line that was written."""

    def __init__(
        self, folder: RunFolder, reporters: list[Reporter], state: State, order: Order, progress: Progress, total: int
    ) -> None:
        self._folder, self._reporters, self._state = folder, reporters, state
        self._order, self._progress, self._num_steps = order, progress, total
        self._sums: Sums = {}
        self._rate = 0.0
        self._since = time.perf_counter()
        self._tokens = 0

    def add(self, sums: Sums, rate: float) -> None:
        tokens = int(sums.pop("num_tokens", (0, 0))[0])
        self._tokens += tokens
        self._state.num_tokens += tokens
        self._rate = rate
        add(self._sums, sums)

    def write(self) -> dict[str, float]:
        now = time.perf_counter()
        values = {
            **means(self._sums),
            "learning_rate": self._rate,
            "num_tokens": float(self._state.num_tokens),
            "tokens_per_second": self._tokens / max(1e-9, now - self._since),
        }
        self._sums, self._since, self._tokens = {}, now, 0
        self._write("step", values)
        return values

    def write_validation(self, values: dict[str, float]) -> dict[str, float]:
        self._write("validation", values)
        return values

    def _write(self, kind: str, values: dict[str, float]) -> None:
        step = self._state.step
        epoch = self._order.num_epochs(step)
        self._folder.write_metrics({"step": step, "epoch": round(epoch, 4), "time": time.time(), **values})
        per_epoch = self._order.steps_in_epoch_of(max(0, step - 1))
        self._folder.write_status(step=step, epoch=round(epoch, 4), steps_per_epoch=per_epoch)
        for reporter in self._reporters:
            reporter.log(values, step)
        self._progress({"kind": kind, "step": step, "num_steps": self._num_steps, "epoch": epoch, **values})

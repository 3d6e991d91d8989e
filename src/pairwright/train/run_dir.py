"""The folder of a training run: its status, its metrics and, on request, its batches.

train.json       state, step, number of steps, best step, error; written whole at each change, read by run_status.py
metrics.jsonl    one JSON object a line, in TRL's names; a resumed run continues where its checkpoint was
batches/         exact batches, on request, and the one that stopped a run
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pairwright.errors import ConfigError
from pairwright.ledger.run_status import FILE_NAME, RunError, Status, read_status
from pairwright.paths import write_bytes, write_json
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree
from pairwright.tokens.sequence import Origin
from pairwright.train.batch_schedule import Order
from pairwright.train.checkpoint import State, checkpoints

# Of the items of an update: ids, trees, weights, the weights of their trained tokens where these do not all count
# alike, and what the teacher reads where there is one.
Dumped = tuple[list[str], Sequence[Tree], Sequence[float], Sequence[Array | None], Sequence[Tree | None]]


class RunFolder:
    """Only the first process writes."""

    def __init__(self, path: Path, *, is_writer: bool, resume: bool) -> None:
        self.path = path
        earlier = read_status(path, strict=False) if self.checkpoints else None
        # Threads are those of the run that is resumed; 0 where none has begun.
        self.status = Status(state="running", pid=os.getpid(), threads=earlier.threads if earlier else 0)
        self._is_writer = is_writer
        if is_writer:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(f"{path}: {error.strerror or error}") from error
            # A run that ended before its first checkpoint has left metrics only.
            if not resume and (self.checkpoints or (path / "metrics.jsonl").exists()):
                raise RunError(f"{path}: already has a run: go on with --resume, or give another -o")

    @property
    def checkpoints(self) -> list[Path]:
        return checkpoints(self.path / "checkpoints")

    def references(self, paths: Mapping[str, Any]) -> dict[str, str]:
        """Paths relative to the folder, so that it can be moved with what it was made from."""
        return {
            name: os.path.relpath(Path(path).absolute(), self.path.absolute())
            for name, path in paths.items()
            if path is not None
        }

    def write_status(self, **changes: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)
        if self._is_writer:
            write_json(self.path / FILE_NAME, self.status, durable=False)  # at every step: no time to sync

    def write_metrics(self, row: dict[str, Any]) -> None:
        if self._is_writer:
            # Appended in one write: only the last line can be torn.
            with open(self.path / "metrics.jsonl", "ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")

    def cut_metrics(self, step: int) -> None:
        """Forget what was measured after a step: the run is about to do it again."""
        path = self.path / "metrics.jsonl"
        if not self._is_writer or not path.exists():
            return
        # Lines of later steps go, and one that was torn by a crash.
        lines = [line for line in path.read_bytes().splitlines() if _step_of(line) <= step]
        write_bytes(path, b"".join(line + b"\n" for line in lines))

    def write_batch(self, name: str, step: int, channels: Mapping[str, Dumped]) -> Path:
        """The exact tokens of an update, by channel, with ids, traces, turns and weights of its items."""
        path = self.path / "batches" / f"{name}-{step:08}.json"
        if not self._is_writer:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        value = {
            "step": step,
            "channels": {
                channel: [_plain(*item) for item in zip(*items, strict=True)] for channel, items in channels.items()
            },
        }
        path.write_bytes(msgspec.json.encode(value))
        return path


def read_batch(path: Path) -> dict[str, list[Tree]]:
    """The trees of a batch that was written, by channel; `Policy.score` takes them."""
    value = msgspec.json.decode(path.read_bytes())
    return {channel: [_tree(item) for item in items] for channel, items in value["channels"].items()}


def _tree(item: dict[str, Any]) -> Tree:
    rows = tuple(Origin(row["uid"], tuple(row["turns"])) for row in item.get("rows", ()))
    return Tree(item["prompt"], tuple(item["branches"]), tuple(item["masks"]), rows)


def _plain(identity: str, tree: Tree, weight: float, weights: Array | None, teacher: Tree | None) -> dict[str, Any]:
    """`weights` are of the trained tokens, branch after branch; written as masks are, 0 where nothing is trained."""
    spread = None
    if weights is not None:
        counts = [int(mask.sum()) for mask in tree.masks]
        parts = np.split(weights, np.cumsum(counts)[:-1])
        spread = [np.zeros(len(mask), np.float32) for mask in tree.masks]
        for row, mask, part in zip(spread, tree.masks, parts, strict=True):
            row[mask] = part
    plain = {
        "id": identity,
        **_tokens(tree),
        "weight": weight,
        "weights": None if spread is None else [row.tolist() for row in spread],
        "rows": [row._asdict() for row in tree.rows],
    }
    return plain if teacher is None else plain | {"teacher": _tokens(teacher)}


def _tokens(tree: Tree) -> dict[str, Any]:
    return {
        "prompt": tree.prompt.tolist(),
        "branches": [branch.tolist() for branch in tree.branches],
        "masks": [mask.tolist() for mask in tree.masks],
    }


def _step_of(line: bytes) -> int:
    try:
        return int(msgspec.json.decode(line)["step"])
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return 1 << 62  # torn by a crash: the run writes it again


# Metrics: means over a batch, whatever parts it was computed in, written to metrics.jsonl, to reporters and to the
# progress callback.


Sums = dict[str, tuple[float, float]]  # name -> (sum, count); parts and processes add up, the mean comes last
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
    """The mean of each name; a name whose count is 0 has none."""
    return {prefix + name: value / count for name, (value, count) in sums.items() if count}


class Reporter:
    """One place to report to: `log(values, step)`, and `close`."""

    def __init__(self, log: Callable[[dict[str, float], int], Any], close: Callable[[], Any]) -> None:
        self.log, self.close = log, close


# Reporters: each imports its package only when it is opened.
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


# Names are those of the packages: `check_reporters` looks for them.
REPORTERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def check_reporters(names: tuple[str, ...]) -> None:
    """Raise ConfigError for a reporter that is unknown or not installed, before any work is done."""
    for name in names:
        if name not in REPORTERS:
            raise ConfigError(f"report_to: unknown {name!r}; known: {', '.join(REPORTERS)}")
        if find_spec(name) is None:
            raise ConfigError(f"report_to: {name} is not installed: pip install {name}")


def open_reporters(names: tuple[str, ...], folder: Path, run: str) -> list[Reporter]:
    """Open each by name; `check_reporters` has seen that they are installed."""
    return [REPORTERS[name](folder, run) for name in names]


class Log:
    """What was measured since the last line that was written."""

    def __init__(
        self, folder: RunFolder, reporters: list[Reporter], state: State, order: Order, progress: Progress, total: int
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
        # A total of the run, not a mean.
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
        self._write("step", values)
        return values

    def write_validation(self, values: dict[str, float]) -> dict[str, float]:
        self._write("validation", values)
        return values

    def _write(self, kind: str, values: dict[str, float]) -> None:
        step = self._state.step
        epoch = self._order.num_epochs(step)
        self._folder.write_metrics({"step": step, "epoch": round(epoch, 4), "time": time.time(), **values})
        # `step` counts finished updates: the newest one is step - 1.
        per_epoch = self._order.steps_in_epoch_of(max(0, step - 1))
        self._folder.write_status(step=step, epoch=round(epoch, 4), steps_per_epoch=per_epoch)
        for reporter in self._reporters:
            reporter.log(values, step)
        self._progress({"kind": kind, "step": step, "num_steps": self._num_steps, "epoch": epoch, **values})

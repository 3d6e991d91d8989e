"""The folder of a training run: its status and, on request, its batches.

train.json       state, step, number of steps, best step, error; rewritten at each change, read by run_status.py
metrics.jsonl    one JSON object per line, with TRL's names; a resumed run continues at its checkpoint
batches/         exact batches, on request, and the batch that stopped a run
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pairwright.ledger.run_status import FILE_NAME, RunError, Status, read_status
from pairwright.paths import write_bytes, write_json
from pairwright.tokens.batch.collate import Tree
from pairwright.tokens.sequence import Origin
from pairwright.training.checkpoint import checkpoints

# The items of an update: ids, trees, weights, signals, and the teacher's trees, if any. Signals are inputs of the loss
# besides tokens: one value, or an array with a value for each trained token, branch by branch.
Signals = dict[str, Any]
Dumped = tuple[list[str], Sequence[Tree], Sequence[float], Sequence[Signals], Sequence[Tree | None]]


class RunFolder:
    """Only the first process writes."""

    def __init__(self, path: Path, *, is_writer: bool, resume: bool) -> None:
        self.path = path
        earlier = read_status(path, strict=False) if self.checkpoints else None
        # Threads of the resumed run; 0 for a new run.
        self.status = Status(state="running", pid=os.getpid(), threads=earlier.threads if earlier else 0)
        self._is_writer = is_writer
        if is_writer:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(f"{path}: {error.strerror or error}") from error
            # A run that ended before its first checkpoint has only metrics.
            if not resume and (self.checkpoints or (path / "metrics.jsonl").exists()):
                raise RunError(f"{path}: already has a run: continue with --resume, or give another -o")

    @property
    def checkpoints(self) -> list[Path]:
        return checkpoints(self.path / "checkpoints")

    def references(self, paths: Mapping[str, Any]) -> dict[str, str]:
        """Return paths relative to the folder, so that it can be moved together with its inputs."""
        return {
            name: os.path.relpath(Path(path).absolute(), self.path.absolute())
            for name, path in paths.items()
            if path is not None
        }

    def write_status(self, **changes: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)
        if self._is_writer:
            write_json(self.path / FILE_NAME, self.status, durable=False)  # at every step: syncing is too slow

    def write_metrics(self, row: dict[str, Any]) -> None:
        if self._is_writer:
            # Appended in one write: only the last line can be torn.
            with open(self.path / "metrics.jsonl", "ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")

    def cut_metrics(self, step: int) -> None:
        """Remove metrics of later steps: the resumed run repeats them."""
        path = self.path / "metrics.jsonl"
        if not self._is_writer or not path.exists():
            return
        # Also removes a line that was torn by a crash.
        lines = [line for line in path.read_bytes().splitlines() if _step_of(line) <= step]
        write_bytes(path, b"".join(line + b"\n" for line in lines))

    def write_batch(self, name: str, step: int, channels: Mapping[str, Dumped]) -> Path:
        """Write the exact tokens of an update by channel, with ids, origins and weights of its items."""
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
    """Read the trees of a written batch by channel, for `Policy.score`."""
    value = msgspec.json.decode(path.read_bytes())
    return {channel: [_tree(item) for item in items] for channel, items in value["channels"].items()}


def _tree(item: dict[str, Any]) -> Tree:
    rows = tuple(Origin(row["uid"], tuple(row["turns"])) for row in item.get("rows", ()))
    return Tree(item["prompt"], tuple(item["branches"]), tuple(item["masks"]), rows)


def _plain(identity: str, tree: Tree, weight: float, signals: Signals, teacher: Tree | None) -> dict[str, Any]:
    plain = {
        "id": identity,
        **_tokens(tree),
        "weight": weight,
        **{name: _spread(tree, name, value) for name, value in signals.items()},
        "rows": [row._asdict() for row in tree.rows],
    }
    return plain if teacher is None else plain | {"teacher": _tokens(teacher)}


def _spread(tree: Tree, name: str, value: Any) -> Any:
    """Spread values of trained tokens over all tokens; others get 0, and null for log-probabilities."""
    if not isinstance(value, np.ndarray):
        return value
    nothing = np.nan if name.endswith("logprobs") else 0.0  # JSON has null for NaN
    parts = np.split(value, np.cumsum([int(mask.sum()) for mask in tree.masks])[:-1])
    rows = [np.full(len(mask), nothing, np.float32) for mask in tree.masks]
    for row, mask, part in zip(rows, tree.masks, parts, strict=True):
        row[mask] = part
    return [row.tolist() for row in rows]


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

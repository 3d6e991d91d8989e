"""Log-probabilities of the reference, computed once and cached: training does not hold a second model.

    FOLDER/<model hash>-<precision>/part-*.arrow    one row per sequence: its hash, a value for each trained token

A sequence's hash covers its ids and mask, so values of earlier runs are reused, and other cuts or masks are not. The
values do not depend on other settings. They are memory-mapped. Every process computes and writes its share; values
computed before a signal are also written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
import xxhash

from pairwright.errors import PairwrightError
from pairwright.paths import write_atomic
from pairwright.records.arrays import Array
from pairwright.store.journal import new_segment_id
from pairwright.tokens.batch.collate import Tree
from pairwright.training.model.policy_model import Policy

ROWS_PER_PART = 8192
# key: xxh3-128 of a branch's ids and mask; logps: a value for each of its trained tokens.
_SCHEMA = pa.schema([("key", pa.binary(16)), ("logps", pa.list_(pa.float32()))])


class ReferenceCache(NamedTuple):
    """The folder of the values, and a function called between batches that raises to stop the run."""

    folder: Path
    check_stop: Callable[[], None]


def branch_keys(tree: Tree) -> list[bytes]:
    """Return a 16-byte key for each branch: equal for equal ids and masks."""
    keys = []
    for branch, mask in zip(tree.branches, tree.masks, strict=True):
        # Hash the prompt's length first: prompt and branch are hashed end to end, and their boundary matters.
        digest = xxhash.xxh3_128(len(tree.prompt).to_bytes(8, "little"))
        digest.update(tree.prompt.tobytes())
        digest.update(branch.tobytes())
        digest.update(mask.tobytes())
        keys.append(digest.digest())
    return keys


class ReferenceLogps:
    """The cached values of one reference model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._logps: dict[bytes, Array] = {}  # key of a branch -> values of its trained tokens, memory-mapped
        self.refresh()

    def __len__(self) -> int:
        return len(self._logps)

    def of(self, trees: Iterable[Tree]) -> Array:
        """Return the values (N,) of all trained tokens of trees, in the order of `Policy.score`."""
        parts = [self._logps[key] for tree in trees for key in branch_keys(tree)]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def lacks(self, tree: Tree) -> bool:
        return any(key not in self._logps for key in branch_keys(tree))

    def add(
        self,
        policy: Policy,
        batches: Iterable[list[Tree]],
        progress: Callable[[int], None],
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Score trees with the reference and write the values in parts; `check_stop` raises after a signal."""
        rows: list[tuple[bytes, Array]] = []
        try:
            for trees in batches:
                check_stop()
                rows += _score_branches(policy, trees)
                progress(len(trees))
                if len(rows) >= ROWS_PER_PART:
                    self._write(rows)
                    rows = []
        finally:
            if rows:
                self._write(rows)

    def refresh(self) -> None:
        """Read the parts of the folder, including those that other processes have written by now."""
        for part in sorted(self.folder.glob("part-*.arrow")):
            self._read(part)

    def _write(self, rows: list[tuple[bytes, Array]]) -> None:
        part = self.folder / f"part-{new_segment_id()}.arrow"
        arrays = [
            pa.array([key for key, _ in rows], pa.binary(16)),
            pa.array([row for _, row in rows], _SCHEMA.field(1).type),
        ]
        try:
            with (
                write_atomic(part) as temporary,
                pa.OSFile(str(temporary), "wb") as file,
                pa.ipc.new_file(file, _SCHEMA) as writer,
            ):
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
        except OSError as error:
            raise PairwrightError(
                f"{self.folder}: {error.strerror or error}: reference values were not saved"
            ) from error
        self._read(part)

    def _read(self, part: Path) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(part)))
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                offsets = batch.column("logps").offsets.to_numpy()
                values = batch.column("logps").values.to_numpy()
                for key, start, end in zip(batch.column("key").to_pylist(), offsets[:-1], offsets[1:], strict=True):
                    # If a sequence occurs twice, the first value is used, as in an uninterrupted run.
                    self._logps.setdefault(key, values[start:end])
        except (OSError, pa.ArrowException, KeyError) as error:
            raise PairwrightError(f"{part}: cannot be read ({error}): remove it, and it is computed again") from error


@torch.no_grad()
def _score_branches(policy: Policy, trees: Sequence[Tree]) -> Iterator[tuple[bytes, Array]]:
    scored = policy.score(trees)
    logps, branches = scored.logps_N.float().cpu().numpy(), scored.branch_N.cpu().numpy()
    # Values of a branch are contiguous, so bisection finds its slice; it is empty without trained tokens.
    ends = np.searchsorted(branches, np.arange(scored.num_branches), side="right")
    starts = np.searchsorted(branches, np.arange(scored.num_branches), side="left")
    keys: list[Any] = [key for tree in trees for key in branch_keys(tree)]
    for key, start, end in zip(keys, starts, ends, strict=True):
        yield key, logps[start:end]

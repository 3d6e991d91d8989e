"""The ledger of a collection: which runs are done, which failed and why.

    ledger.jsonl    a line per ended run: {"task", "run", "state": "done" | "failed", ...}; the last one of a run counts

A run is "done" only after all its records are durable, so done runs are never repeated.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import msgspec

from pairwright.collection.run_failures import CollectError, FailureKind
from pairwright.paths import append_synced, whole_lines
from pairwright.paths.writing import lock_file

RunKey = tuple[int | str, int]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended, and what it recorded."""

    task: int | str
    run: int
    state: Literal["done", "failed"]
    kind: FailureKind | None = None
    message: str = ""
    seconds: float = 0.0
    num_steps: int = 0
    num_candidates: int = 0
    num_pairs: int = 0
    num_scored: int = 0
    reward_sum: float = 0.0
    reward_min: float | None = None
    reward_max: float | None = None
    reward: float | None = None  # the final reward of the run, if any
    num_tokens: int = 0
    without_ids: dict[str, int] = {}  # candidates without token ids, by reason (sampled_tokens.py)

    @property
    def key(self) -> RunKey:
        return self.task, self.run


class Ledger:
    """An open ledger; only one process may have it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = ExitStack()
        self._lock.enter_context(lock_file(path, work="collection"))
        path.touch()
        self.entries: dict[RunKey, Entry] = {}
        decoder = msgspec.json.Decoder(Entry)
        for number, line in enumerate(whole_lines(path), start=1):
            try:
                entry = decoder.decode(line)
            except ValueError as error:
                raise CollectError(f"{path}:{number}: not a line of this ledger: {error}") from None
            self.entries[entry.key] = entry

    def is_done(self, task: int | str, run: int) -> bool:
        entry = self.entries.get((task, run))
        return entry is not None and entry.state == "done"

    def append(self, entries: Sequence[Entry]) -> None:
        """Write lines and sync them. Called from one thread at a time."""
        append_synced(self.path, b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))

    def close(self) -> None:
        self._lock.close()

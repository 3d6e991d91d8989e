"""The ledger of a collection (which runs are done, which failed and why), and the writer of its records.

    ledger.jsonl    a line per ended run: {"task", "run", "state": "done" | "failed", ...}; the last one of a run counts

A run is "done" only after all its records are durable, so done runs are never repeated.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import msgspec

from pairwright.collection.run_failures import CollectError, FailureKind
from pairwright.paths import append_synced, whole_lines
from pairwright.paths.writing import lock_file
from pairwright.records.experience import Experience
from pairwright.store.table import Table

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


class Writer:
    """`add` experiences at any time; `finish(entry)` returns when the run and everything added before is durable."""

    def __init__(self, table: Table, ledger: Ledger) -> None:
        self._table, self._ledger = table, ledger
        self._experiences: list[Experience] = []
        self._entries: list[Entry] = []
        self._writing = asyncio.Lock()
        self._error: Exception | None = None

    def add(self, experiences: Sequence[Experience]) -> None:
        self._check()
        self._experiences += experiences
        asyncio.get_running_loop().create_task(self._write_all())

    async def finish(self, entry: Entry) -> None:
        self._check()
        self._entries.append(entry)
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything added so far is durable."""
        # shielded: cancelling one caller must not abort a write that includes records of others
        await asyncio.shield(self._write_all())
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def _write_all(self) -> None:
        # what arrives during a write is the next batch, written by the first to get the lock (group commit)
        async with self._writing:
            experiences, self._experiences = self._experiences, []
            entries, self._entries = self._entries, []
            if self._error is None and (experiences or entries):
                try:
                    await asyncio.to_thread(self._write, experiences, entries)
                except Exception as error:  # e.g. a full disk: raised to all present and later callers
                    self._error = error

    def _write(self, experiences: list[Experience], entries: list[Entry]) -> None:
        self._table.append(experiences)  # before the ledger: a run is done only when its records are durable
        if entries:
            self._ledger.append(entries)

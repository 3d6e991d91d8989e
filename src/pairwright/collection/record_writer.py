"""The writer of a collection: writes records in batches, each durable before its runs count as done."""

import asyncio
from collections.abc import Sequence

from pairwright.collection.finished_runs import Entry, Ledger
from pairwright.records.experience import Experience
from pairwright.store.table import Table


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

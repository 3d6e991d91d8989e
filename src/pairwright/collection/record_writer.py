"""The writer of a collection: writes records in batches, each durable before its runs count as done."""

import asyncio
from collections.abc import Sequence

from pairwright.collection.finished_runs import Entry, Ledger
from pairwright.records.experience import Experience
from pairwright.store.table import Table


class Writer:
    """`add` experiences at any time; `finish(entry)` returns when the run and everything added before is durable."""

    def __init__(self, table: Table, ledger: Ledger | None = None) -> None:
        self._table, self._ledger = table, ledger
        self._experiences: list[Experience] = []
        self._entries: list[Entry] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    def add(self, experiences: Sequence[Experience]) -> None:
        self._check()
        self._experiences += experiences
        self._start()

    async def finish(self, entry: Entry) -> None:
        self._check()
        self._entries.append(entry)
        await self.flush()

    async def flush(self) -> None:
        """Wait until everything added so far is durable."""
        self._check()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._start()
        await future

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._experiences or self._entries or self._waiting:
            # take the whole queue: what arrives during the write below forms the next batch (group commit)
            experiences, self._experiences = self._experiences, []
            entries, self._entries = self._entries, []
            waiting, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._write, experiences, entries)
            except Exception as error:  # e.g. a full disk: raised to all present and later callers
                self._error = error
            for future in waiting:
                if not future.done():
                    future.set_result(None) if self._error is None else future.set_exception(self._error)
            if self._error is not None:
                self._experiences, self._entries = [], []

    def _write(self, experiences: list[Experience], entries: list[Entry]) -> None:
        self._table.append(experiences)  # before the ledger: a run is done only when its records are durable
        if entries and self._ledger is not None:
            self._ledger.append(entries)

"""Requests of concurrent tasks put together: while the engine works, the next batch gathers.

`submit` waits for its own result only. The engine runs in one thread; a task that is cancelled takes its request out
of the batch at the next token.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from pairwright.generate.engine import Engine
from pairwright.generate.requests import GenerateError, Piece, Request, Result


@dataclass(eq=False)
class _Waiting:
    request: Request
    future: asyncio.Future[Result]
    on_piece: Callable[[Piece], None] | None


class Batcher:
    """`await submit(request)` from any number of tasks of one event loop."""

    def __init__(self, engine: Engine, *, wait_seconds: float = 0.002, max_requests: int = 4096) -> None:
        self.engine = engine
        self._wait_seconds, self._max_requests = wait_seconds, max_requests
        self._waiting: list[_Waiting] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    async def submit(self, request: Request, on_piece: Callable[[Piece], None] | None = None) -> Result:
        """The result of a request; `on_piece` is called in the event loop, in order, before this returns."""
        if self._closed:
            raise GenerateError("the model was closed")
        self.engine.check(request)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future(), on_piece)
        self._waiting.append(waiting)
        if self._runner is None or self._runner.done():
            self._runner = loop.create_task(self._run())
        return await waiting.future

    async def close(self) -> None:
        """Wait for the batch that is running; what waits gets an error."""
        self._closed = True
        for waiting in self._waiting:
            if not waiting.future.done():
                waiting.future.set_exception(GenerateError("the model was closed"))
        self._waiting.clear()
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await self._gather()
            batch = [item for item in self._waiting[: self._max_requests] if not item.future.done()]
            del self._waiting[: self._max_requests]
            if not batch:
                continue
            try:
                results = await loop.run_in_executor(self._thread, self._generate, batch, loop)
            except Exception as error:  # the boundary between the engine's thread and its users
                for item in batch:
                    if not item.future.done():
                        item.future.set_exception(error)
                continue
            for item, result in zip(batch, results, strict=True):
                if not item.future.done():
                    item.future.set_result(result)

    async def _gather(self) -> None:
        """Wait while more requests keep coming: tasks that were answered together ask again together."""
        count = 0
        while count < len(self._waiting) < self._max_requests:
            count = len(self._waiting)
            await asyncio.sleep(self._wait_seconds)

    def _generate(self, batch: list[_Waiting], loop: asyncio.AbstractEventLoop) -> list[Result]:
        def tell(piece: Piece) -> None:
            listener = batch[piece.request].on_piece
            if listener is not None:
                loop.call_soon_threadsafe(listener, replace(piece, request=0))

        listened = any(item.on_piece is not None for item in batch)
        return self.engine.generate(
            [item.request for item in batch],
            on_piece=tell if listened else None,
            is_cancelled=lambda number: batch[number].future.done(),
        )

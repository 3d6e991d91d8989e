"""The engine for asyncio: requests from any number of tasks, each answered as soon as it is complete."""

import asyncio
import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pairwright.generate.generator import Engine
from pairwright.generate.requests import GenerateError, Piece, Request, Result
from pairwright.generate.scheduler import Scheduler, Ticket


@dataclass(eq=False)
class _Waiting:
    """A request on its way to the engine's thread and back."""

    ticket: Ticket
    future: asyncio.Future[Result]
    loop: asyncio.AbstractEventLoop

    def resolve(self, result: Result | BaseException) -> None:
        """Hand the result over, from the engine's thread to the event loop."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self.loop.call_soon_threadsafe(self._set, result)

    def _set(self, result: Result | BaseException) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


@dataclass
class Load:
    """Requests by state: waiting, reading the prompt, or writing the answer."""

    queued: int = 0
    prefill: int = 0
    decoding: int = 0
    num_prompt_tokens: int = 0  # tokens of prompts that were read
    num_tokens: int = 0  # tokens of answers so far


class Batcher:
    """`await submit(request)` from any number of tasks of one event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._open: set[_Waiting] = set()
        self._is_idle = True

    @property
    def num_open(self) -> int:
        """Number of requests that are waiting or in progress."""
        return len(self._open)

    @property
    def load(self) -> Load:
        """The requests that are not complete, by state, and their tokens so far."""
        load = Load()
        for waiting in list(self._open):
            ticket = waiting.ticket
            num_tokens = sum(len(choice.tokens) for choice in ticket.choices)
            load.num_tokens += num_tokens
            if num_tokens:
                load.decoding += 1
                load.num_prompt_tokens += len(ticket.request.prompt)
            elif ticket.is_started:
                load.prefill += 1
            else:
                load.queued += 1
        return load

    @property
    def is_idle(self) -> bool:
        """Whether the engine's thread has nothing to do."""
        return self._is_idle and self._inbox.empty()

    async def submit(
        self, request: Request, on_piece: Callable[[Piece], None] | None = None, *, group: Hashable = None
    ) -> Result:
        """Wait for the result of a request; `on_piece` is called in the event loop, in order, before this returns.

        Groups of requests take turns. When the task is cancelled, its request ends before the next token.
        """
        if self._closed:
            raise GenerateError("the model was closed")
        self.engine.check(request)
        loop = asyncio.get_running_loop()

        def notify(piece: Piece) -> None:  # from the engine's thread
            assert on_piece is not None
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(on_piece, piece)

        ticket = Ticket(request, group, None if on_piece is None else notify)
        waiting = _Waiting(ticket, loop.create_future(), loop)
        self._open.add(waiting)
        self._inbox.put(waiting)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="generate", daemon=True)
            self._thread.start()
            # a thread inside a matrix product must not outlive the interpreter
            atexit.register(_stop_at_exit, weakref.ref(self))
        try:
            return await waiting.future
        finally:
            self._open.discard(waiting)
            ticket.is_cancelled = True  # has no effect on a complete one

    async def close(self) -> None:
        """End the thread; requests that are waiting or in progress get an error."""
        thread = self._stop()
        for waiting in list(self._open):
            if not waiting.future.done():
                waiting.future.set_exception(GenerateError("the model was closed"))
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, thread.join)

    def _stop(self) -> threading.Thread | None:
        """Cancel all requests and tell the thread to end; return it on the first call."""
        self._closed = True
        for waiting in list(self._open):
            waiting.ticket.is_cancelled = True
        thread, self._thread = self._thread, None
        if thread is not None:
            self._inbox.put(None)
        return thread

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _work(self) -> None:
        scheduler: Scheduler | None = None
        waiting_of: dict[Ticket, _Waiting] = {}
        while True:
            # all requests that have arrived join before the next step
            while scheduler is None or scheduler.is_idle or not self._inbox.empty():
                self._is_idle = scheduler is None or scheduler.is_idle
                waiting = self._inbox.get()
                if waiting is None:
                    if scheduler is not None:
                        scheduler.close()
                    return
                try:
                    scheduler = scheduler or self.engine.open_scheduler()
                    scheduler.add(waiting.ticket)
                except Exception as error:  # the model cannot be run at all: passed on to the task
                    waiting.resolve(error)
                    continue
                waiting_of[waiting.ticket] = waiting
            self._is_idle = False
            try:
                for ticket in scheduler.step():
                    assert ticket.result is not None
                    waiting_of.pop(ticket).resolve(ticket.result)
            except Exception as error:  # passed on to all tasks with a request; later requests get a new scheduler
                for waiting in waiting_of.values():
                    waiting.resolve(error)
                waiting_of.clear()
                self.engine.reset()
                scheduler = None


def _stop_at_exit(batcher: "weakref.ref[Batcher]") -> None:
    alive = batcher()
    thread = None if alive is None else alive._stop()
    if thread is not None:
        thread.join(timeout=30)

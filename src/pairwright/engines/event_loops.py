"""Run a coroutine from synchronous code, also inside a Jupyter kernel, whose event loop is already running."""

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from pairwright.interrupts import asyncio_interrupts

Result = TypeVar("Result")


def run_to_end(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine and return its result. If this thread already runs an event loop, a second thread gets its own.

    An interrupt (Ctrl-C, or a kernel's stop button) cancels the coroutine and waits until it has cleaned up.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with asyncio_interrupts():
            return asyncio.run(coroutine)
    result: Future[Result] = Future()
    runner = asyncio.Runner()
    context = contextvars.copy_context()  # the other thread gets the caller's context variables

    def run() -> None:
        try:
            with runner:
                result.set_result(runner.run(coroutine, context=context))
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="pairwright-collect")
    thread.start()
    try:
        return result.result()
    except KeyboardInterrupt:
        loop = runner.get_loop()
        # tasks may only be cancelled from the thread of their loop
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        raise
    finally:
        thread.join()

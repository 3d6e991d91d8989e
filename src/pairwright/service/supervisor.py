"""The thread that makes rows true: it looks after jobs and deployments until the service stops.

It is woken when there is something new, else looks every tick. A failure of one pass (a full disk, a database that is
away) is logged and the next pass tries again; the thread itself never ends before the service does.
"""

import logging
import threading
import time

from pairwright.service.context import Context
from pairwright.service.deployments import Deployments
from pairwright.service.queue import JobQueue

logger = logging.getLogger("pairwright.service")


class Supervisor:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._queue = JobQueue(context)
        self._deployments = Deployments(context)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self.last_pass_at = time.time()
        self.failed_passes = 0

    def start(self) -> None:
        self._queue.recover()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._context.wake.set()
        self._thread.join()
        self._queue.stop()
        self._deployments.stop()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for step in (self._queue.tick, self._deployments.tick):
                try:
                    step()
                except Exception:  # the boundary of the thread: whatever it was, the next pass tries again
                    self.failed_passes += 1
                    logger.exception("a pass over jobs and deployments failed; trying again")
            self.last_pass_at = time.time()
            self._context.wake.wait(self._context.settings.tick_seconds)
            self._context.wake.clear()

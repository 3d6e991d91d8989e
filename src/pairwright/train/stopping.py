"""Being asked to stop: the update that is running is finished, a checkpoint is saved."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from pairwright.errors import PairwrightError


class Stopped(PairwrightError):
    """Asked to stop; a checkpoint was saved."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class Stop:
    """SIGTERM and Ctrl-C finish the step that is running; a second one ends at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.signal_number = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

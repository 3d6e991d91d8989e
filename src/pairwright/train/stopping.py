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
    """SIGTERM and Ctrl-C. While `is_updating`, they finish the step that is running, and a second one ends at once.
    Before, there is nothing to save: they end at once, unless other processes wait for this one."""

    def __init__(self, *, is_alone: bool = True) -> None:
        self.signal_number: int | None = None
        self.is_updating = not is_alone
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        is_second, self.signal_number = self.signal_number is not None, number
        if is_second and number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif is_second or not self.is_updating:
            raise KeyboardInterrupt  # not an Exception: nothing on the way takes it for a bad record

    def explain(self) -> Stopped:
        """What is said after an end at once."""
        if self.is_updating:
            message = "stopped in the middle of a step; --resume goes on from the newest checkpoint"
        else:
            message = "stopped before the first update of this start; the same command begins again"
        return Stopped(message, self.signal_number or signal.SIGINT)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

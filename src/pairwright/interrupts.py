"""Ctrl-C as a KeyboardInterrupt that does not surface inside an import or inside a library that cannot pass it on.

Python raises KeyboardInterrupt between any two instructions of the main thread, also in Python code that native code
has called. Polars panics on it there, callbacks of weak references print and forget it, and an import is left half
done. So the first Ctrl-C is raised when the call of Polars or the import returns; a second one is raised at once.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LIBRARY = "polars"
_IMPORT_SYSTEM = "<frozen importlib"  # how the names of its files begin


def handle_interrupts() -> None:
    """Install the handler of Ctrl-C, for a program; an ignored Ctrl-C (the background of a shell) stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Handler())
        sys.unraisablehook = _keep_interrupt


def interrupt(frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt: at once, or, where the thread is inside Polars or an import, when that call returns.

    Args:
        frame: The innermost frame of the thread, as a signal handler gets it.
    """
    library = _outermost_of_library(frame)
    if library is None:
        raise KeyboardInterrupt
    _raise_in(library, "return")


def is_interrupt(error: BaseException) -> bool:
    """True for KeyboardInterrupt, and for the panic that one causes inside of a library in Rust."""
    is_panic = type(error).__name__ == "PanicException"  # PyO3 has one such class for each library
    return isinstance(error, KeyboardInterrupt) or (is_panic and "KeyboardInterrupt" in str(error))


@contextmanager
def asyncio_interrupts() -> Iterator[None]:
    """Leave Ctrl-C to asyncio, which cancels its main task: it does so only where Python's own handler is installed."""
    before = signal.getsignal(signal.SIGINT)
    if not isinstance(before, _Handler):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Handler:
    """The handler of SIGINT; it counts, because the second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self._num_signals = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        if self._num_signals > 1:
            raise KeyboardInterrupt
        # Polars ends its query and raises KeyboardInterrupt itself, before this handler is called for the same signal.
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            interrupt(frame)


def _outermost_of_library(frame: FrameType | None) -> FrameType | None:
    """The outermost frame of Polars or of an import among a frame and its callers; None if there is none."""
    found = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] == _LIBRARY or frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            found = frame
        frame = frame.f_back
    return found


def _raise_in(frame: FrameType, event: str) -> None:
    """Raise KeyboardInterrupt in a running frame when it returns ("return") or before its next instruction ("opcode").

    Raised at the return, it reaches the caller as an exception of the call, so that what cleans up behind it runs.
    """

    def stop(_: FrameType, current: str, argument: Any) -> Any:
        if current != event:
            return stop
        sys.settrace(None)
        raise KeyboardInterrupt

    frame.f_trace, frame.f_trace_lines, frame.f_trace_opcodes = stop, False, event == "opcode"
    sys.settrace(lambda *_: None)  # a frame is traced only while there is a function for new frames, too


def _keep_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """The hook for exceptions that Python prints and forgets: KeyboardInterrupt is raised again after the callback."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    caller = sys._getframe(1)
    library = _outermost_of_library(caller)
    _raise_in(library or caller, "return" if library else "opcode")

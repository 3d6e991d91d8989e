"""Ctrl-C as a KeyboardInterrupt that is never raised inside an import or inside Polars.

Python raises KeyboardInterrupt between any two instructions of the main thread, including Python code that native code
has called. There it makes Polars panic, is printed and discarded in callbacks of weak references, and leaves an import
incomplete. Therefore the first Ctrl-C is raised when the import or the call of Polars returns; the second one is raised
immediately.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LIBRARY = "polars"
_IMPORT_SYSTEM = "<frozen importlib"  # prefix of the file names of importlib


def handle_interrupts() -> None:
    """Install the handler of Ctrl-C in a program. An ignored Ctrl-C (a background job of a shell) stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Handler())
        sys.unraisablehook = _keep_interrupt


def interrupt(frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt immediately, or, if the frame is inside Polars or an import, when that call returns."""
    library = _outermost_of_library(frame)
    if library is None:
        raise KeyboardInterrupt
    _raise_in(library, "return")


def is_interrupt(error: BaseException) -> bool:
    """Return True for KeyboardInterrupt, and for the panic that it causes inside a Rust library."""
    is_panic = type(error).__name__ == "PanicException"  # PyO3 defines a separate exception class in each library
    return isinstance(error, KeyboardInterrupt) or (is_panic and "KeyboardInterrupt" in str(error))


@contextmanager
def asyncio_interrupts() -> Iterator[None]:
    """Let asyncio handle Ctrl-C by cancelling its main task, which requires Python's default handler."""
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
    """The handler of SIGINT. It counts the signals, because the second Ctrl-C is raised immediately."""

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
    """Return the outermost frame of Polars or an import among a frame and its callers; None if there is none."""
    found = None
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] == _LIBRARY or frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            found = frame
        frame = frame.f_back
    return found


def _raise_in(frame: FrameType, event: str) -> None:
    """Raise KeyboardInterrupt in a running frame at a trace event: "return", or "opcode" (the next instruction).

    An exception raised at "return" reaches the caller as an exception of the call, so that its cleanup code runs.
    """

    def stop(_: FrameType, current: str, argument: Any) -> Any:
        if current != event:
            return stop
        sys.settrace(None)
        raise KeyboardInterrupt

    frame.f_trace, frame.f_trace_lines, frame.f_trace_opcodes = stop, False, event == "opcode"
    sys.settrace(lambda *_: None)  # Python traces a frame only while a trace function for new frames is also installed


def _keep_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """The hook for unraisable exceptions: KeyboardInterrupt is raised again after the callback."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    caller = sys._getframe(1)
    library = _outermost_of_library(caller)
    _raise_in(library or caller, "return" if library else "opcode")

"""Ctrl-C waits for the end of a call of Polars or of an import; it is never lost, and a second one does not wait."""

import contextlib
import os
import signal
import sys
import types
import weakref

import pytest

from pairwright.interrupts import handle_interrupts, is_interrupt

pytestmark = pytest.mark.stress

# Frames of a module of this name count as Polars.
LIBRARY = """
def call(function):
    global is_done
    is_done = False
    function()
    is_done = True
    return "result"

def call_and_fail(function):
    call(function)
    raise ValueError
"""


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _handled():
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handle_interrupts()
    yield
    assert sys.gettrace() is None
    signal.signal(signal.SIGINT, handler)
    sys.unraisablehook = hook


@pytest.fixture
def library():
    module = types.ModuleType("polars")
    exec(compile(LIBRARY, "library.py", "exec"), vars(module))
    return module


@pytest.mark.parametrize("name", ["call", "call_and_fail"])
def test_a_call_of_the_library_ends_before_the_interrupt_is_raised(name, library):
    lines = []

    def work() -> None:
        getattr(library, name)(press)
        lines.append("the next line")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert (library.is_done, lines) == (True, [])


def test_the_library_that_called_us_ends_its_call_too(library):
    with pytest.raises(KeyboardInterrupt):
        library.call(lambda: library.call(press))
    assert library.is_done


def test_what_cleans_up_behind_the_call_is_run(library):
    lines = []

    def work() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(lines.append, "left")
            try:
                return library.call(press)
            finally:
                lines.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert lines == ["cleaned up", "left"]


def test_our_own_code_is_interrupted_at_once():
    lines = []
    with pytest.raises(KeyboardInterrupt):
        press()
        lines.append("the next line")
    assert lines == []


def test_the_second_interrupt_does_not_wait(library):
    def press_twice() -> None:
        press()
        press()

    with pytest.raises(KeyboardInterrupt):
        library.call(press_twice)
    assert not library.is_done


def test_a_module_is_loaded_to_its_end(tmp_path, monkeypatch):
    (tmp_path / "pressed_while_loading.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nis_done = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        import pressed_while_loading  # noqa: F401
    assert sys.modules.pop("pressed_while_loading").is_done


def test_an_interrupt_in_a_callback_that_may_not_raise_is_raised_after_it(capfd):
    class Held:
        pass

    def work() -> None:
        held = Held()
        reference = weakref.ref(held, lambda _: press())
        del held
        assert reference() is None
        raise AssertionError("the interrupt was lost")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert capfd.readouterr().err == ""


def test_an_interrupt_that_a_library_has_raised_itself_is_not_raised_again_while_it_cleans_up():
    lines = []
    with pytest.raises(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt
        finally:
            press()
            lines.append("cleaned up")
    assert lines == ["cleaned up"]


def test_a_panic_of_rust_that_an_interrupt_caused_is_an_interrupt():
    panic = type("PanicException", (BaseException,), {})
    assert is_interrupt(
        panic("called `Result::unwrap()` on an `Err` value: PyErr { type: <class 'KeyboardInterrupt'> }")
    )
    assert not is_interrupt(panic("index out of bounds"))
    assert not is_interrupt(ValueError("KeyboardInterrupt"))


def test_a_program_that_ignores_ctrl_c_still_does():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle_interrupts()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

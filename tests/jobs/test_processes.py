"""Processes that outlive who started them, and what is known of them afterwards."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pairwright.jobs import BackendError, process
from pairwright.ledger.run_status import last_lines

pytestmark = pytest.mark.stress

SLEEP = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]


def until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_known_after_the_end(tmp_path, code):
    process.start(
        tmp_path, [sys.executable, "-c", f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({code})"]
    )
    until(lambda: not process.is_alive(tmp_path))
    assert process.exit_code(tmp_path) == code
    assert sorted(last_lines(tmp_path / "log", 10)) == ["err", "out"]


def test_a_command_that_is_not_there_is_an_exit_code_and_a_line(tmp_path):
    process.start(tmp_path, ["/no/such/program"])
    until(lambda: not process.is_alive(tmp_path))
    assert process.exit_code(tmp_path) == 127
    assert "No such file" in last_lines(tmp_path / "log", 1)[0]


def test_a_process_lives_on_when_its_starter_is_killed(tmp_path):
    code = ("import os, signal, sys; from pathlib import Path; from pairwright.jobs import process;"
            f"print(process.start(Path({str(tmp_path)!r}), {SLEEP!r}), flush=True); os.kill(os.getpid(), signal.SIGKILL)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert process.is_alive(tmp_path)
    assert process.exit_code(tmp_path) is None
    until(lambda: last_lines(tmp_path / "log", 1) == ["begun"])
    process.stop(tmp_path, grace_seconds=30)
    until(lambda: not process.is_alive(tmp_path))
    assert process.exit_code(tmp_path) == 128 + signal.SIGTERM


def test_a_process_that_was_killed_is_known_to_be_gone(tmp_path):
    pid = process.start(tmp_path, SLEEP)
    until(lambda: last_lines(tmp_path / "log", 1) == ["begun"])
    os.killpg(pid, signal.SIGKILL)
    until(lambda: not process.is_alive(tmp_path))
    assert process.exit_code(tmp_path) == process.KILLED


def test_what_does_not_listen_is_killed_after_a_while(tmp_path):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('begun', flush=True); time.sleep(600)"
    process.start(tmp_path, [sys.executable, "-c", deaf])
    until(lambda: last_lines(tmp_path / "log", 1) == ["begun"])
    process.stop(tmp_path, grace_seconds=0.2)
    until(lambda: not process.is_alive(tmp_path))
    assert process.exit_code(tmp_path) == process.KILLED


def test_one_folder_has_one_process(tmp_path):
    process.start(tmp_path, SLEEP)
    with pytest.raises(BackendError, match="still running"):
        process.start(tmp_path, SLEEP)
    process.stop(tmp_path, grace_seconds=30)


def test_a_process_that_is_gone_is_never_signalled_by_its_number(tmp_path, monkeypatch):
    process.start(tmp_path, [sys.executable, "-c", ""])
    until(lambda: not process.is_alive(tmp_path))
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("somebody else may have this number now"))
    process.stop(tmp_path, grace_seconds=1)


def test_a_log_is_followed_to_the_end_of_its_process(tmp_path):
    process.start(
        tmp_path, [sys.executable, "-c", "import time\nfor n in range(5): print(n, flush=True); time.sleep(0.02)"]
    )
    assert list(process.follow(tmp_path)) == ["0", "1", "2", "3", "4"]


def test_a_command_whose_runner_was_killed_is_still_known_to_live(tmp_path):
    pid = process.start(tmp_path, SLEEP)
    until(lambda: last_lines(tmp_path / "log", 1) == ["begun"])
    os.kill(pid, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert process.is_alive(tmp_path), "the command holds the lock, too"
    process.stop(tmp_path, grace_seconds=30)
    until(lambda: not process.is_alive(tmp_path))
    assert process.exit_code(tmp_path) == process.KILLED

"""Only one process at a time works in the folder of a run or a training, and a dead one does not block it. Values
of the reference survive a change of the training's settings."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from flow.test_flow import run, written
from pairwright.config import Config
from pairwright.paths.writing import FolderInUse, lock_folder
from pairwright.training import read_status, train
from pairwright.training.loop import Stop, Stopped
from training.made_runs import make_model, make_pairs

pytestmark = pytest.mark.stress

HOLD = """
import sys, time
from pathlib import Path
from pairwright.paths import lock_folder
with lock_folder(Path(sys.argv[1]), work="run"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@contextmanager
def held(folder):
    """Another process that holds the lock of a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def command(*words):
    return subprocess.run(
        [sys.executable, "-c", "from pairwright.cli import run_program; run_program()", *map(str, words)],
        capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip


def test_a_second_run_is_one_line_and_exit_code_1_and_touches_nothing(model, tmp_path):
    config, folder = written(tmp_path, model, loop__evaluate="never"), tmp_path / "run"
    run(config, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}
    changed = written(tmp_path, model, loop__evaluate="never", train__learning_rate=5e-4)
    with held(folder) as process:
        done = command("run", changed, "-o", folder)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines(keepends=True)[1:] == [
            f"pairwright: {folder}: in use by process {process.pid}, so no run here: wait for it, end it, or give another -o\n"
        ]
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"} == before
    # the other process was killed, which released its lock, and the run continues
    assert (folder / ".lock").read_text() == f"{process.pid}\n"
    run(changed, folder)


def test_a_resumed_training_is_refused_while_another_process_runs(model, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", num=4)
    config = Config.model_validate({"train": {"batch_size": 4, "threads": 1, "max_steps": 1}})
    train(config, model=model, pairs=pairs, output=tmp_path / "train")
    with held(tmp_path / "train"), pytest.raises(FolderInUse, match="so no training here"):
        train(config, model=model, pairs=pairs, output=tmp_path / "train", resume=True)
    train(config, model=model, pairs=pairs, output=tmp_path / "train", resume=True)


def test_outputs_are_not_removed_while_their_training_runs(model, tmp_path):
    folder = tmp_path / "run"
    run(written(tmp_path, model, loop__evaluate="never"), folder)
    changed = written(tmp_path, model, loop__evaluate="never", train__learning_rate=5e-4)
    with held(folder / "round-1" / "train"), pytest.raises(FolderInUse, match="round-1/train"):
        run(changed, folder)
    assert (folder / "round-1/train/model/config.json").exists()


def test_a_folder_that_cannot_be_locked_names_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(Exception, match=r"file: (File exists|Not a directory)"),
        lock_folder(tmp_path / "file", work=""),
    ):
        pass


def test_the_reference_is_kept_over_a_changed_learning_rate(model, tmp_path):
    folder = tmp_path / "run"
    run(written(tmp_path, model, loop__evaluate="never"), folder)
    parts = sorted((folder / "round-1" / "reference").rglob("*.arrow"))
    assert parts
    run(written(tmp_path, model, loop__evaluate="never", train__learning_rate=5e-4), folder)
    assert sorted((folder / "round-1" / "reference").rglob("*.arrow")) == parts  # nothing was scored again
    run(written(tmp_path, model, loop__evaluate="never", train__precision="bf16"), folder)
    assert len(list((folder / "round-1" / "reference").rglob("*.arrow"))) > len(parts)  # other values


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_reference_pass_ends_at_once_and_what_is_scored_stays(number, model, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", num=20)
    config = Config.model_validate({"train": {"batch_size": 4, "threads": 1, "max_steps": 1, "micro_batch_tokens": 1}})
    scored: list[int] = []

    def stop_at_five(event):
        if event["kind"] == "reference":
            scored.append(event["done"])
            if event["done"] == 5:
                os.kill(os.getpid(), number)

    with pytest.raises(Stopped, match="before the first update") as stopped:
        train(config, model=model, pairs=pairs, output=tmp_path / "train", progress=stop_at_five)
    assert stopped.value.exit_code == 128 + number
    assert read_status(tmp_path / "train").state == "stopped"
    assert scored == [1, 2, 3, 4, 5]
    scored.clear()
    train(config, model=model, pairs=pairs, output=tmp_path / "train", progress=stop_at_five_off(scored))
    assert scored[-1] == 15, "five of twenty were known"


def stop_at_five_off(scored):
    return lambda event: scored.append(event["done"]) if event["kind"] == "reference" else None


def test_with_other_processes_a_signal_is_obeyed_between_two_batches_of_the_reference():
    with Stop(is_alone=False) as stop:
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stop.check()

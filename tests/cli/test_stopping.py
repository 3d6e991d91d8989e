"""Ctrl-C, as a terminal sends it to every process of a command: one line that says how to go on, exit code 130."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flow.test_flow import written
from pairwright import EID, Experience, Message, Table
from pairwright.cli.guards import describe_stop
from training.made_runs import make_model, make_pairs

pytestmark = pytest.mark.stress

DEADLINE_SECONDS = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Enough runs for a command to be stopped in the middle."""
    folder = tmp_path_factory.mktemp("table") / "experience"
    rows = [
        Experience(
            eid=EID(batch=0, task=number // 8, run=number % 8), kind="single_turn",
            prompt=[Message("user", f"{number // 8} is asked " + "please " * 40)],
            completion=[Message("assistant", f"the answer of {number} is " + "yes " * 40)], reward=float(number % 8),
        )
        for number in range(3_000)
    ]  # fmt: skip
    with Table(folder) as written_table:
        written_table.append(rows)
    return folder


# A program that presses Ctrl-C, for all its processes, at the n-th operation on a path: before it is done.
PRESS = """
import os, re, signal, sys
left = {number}
def press(event, arguments):
    global left
    if event == "{event}" and any(re.search(r"{pattern}$", str(path)) for path in arguments):
        left -= 1
        if not left:
            os.killpg(0, signal.SIGINT)
sys.addaudithook(press)
from pairwright.cli import run_program
run_program()
"""


def start(*words, program="from pairwright.cli import run_program; run_program()"):
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"}, stdin=subprocess.DEVNULL,
        # a shell in the background has its programs ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def stop(*words, **at):
    """Press Ctrl-C at an operation on a path; returns the lines of stderr."""
    return lines_of(start(*words, program=PRESS.format(**at)))


def lines_of(process):
    """The lines of stderr of a process that was stopped."""
    try:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in errors, errors
    assert process.returncode == 130, errors
    lines = errors.splitlines()
    assert [line for line in lines if line.startswith("pairwright: ")] == lines[-1:]
    return lines


def finish(*words, code=0):
    process = start(*words)
    output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == code, errors
    return output


def write_chats(folder: Path) -> Path:
    """Chats in several files, each read by itself."""
    for part in range(6):
        with open(folder / f"chats-{part}.jsonl", "w") as file:
            for number in range(4_000):
                messages = [
                    {"role": "user", "content": f"{part} {number}"},
                    {"role": "assistant", "content": "yes " * 200},
                ]
                file.write(json.dumps({"messages": messages, "score": number % 5, "task_id": str(number)}) + "\n")
    return folder


@pytest.mark.parametrize("workers", [1, 2])
def test_an_import_goes_on_with_the_same_command(workers, tmp_path):
    (tmp_path / "chats").mkdir()
    words = ("import", write_chats(tmp_path / "chats"), "-o", tmp_path / "table", "--workers", workers)
    # when the second part is published, the first one is there
    lines = stop(*words, event="os.rename", pattern=r"/table/[^./]+\.parquet", number=2)
    num_rows = Table(tmp_path / "table").count()
    assert 0 < num_rows < 24_000
    way = "repeat the same command to add the missing records"
    assert lines == [f"pairwright: stopped; {way}; {tmp_path / 'table'} has {num_rows:,} experiences now"]
    finish(*words)
    assert Table(tmp_path / "table").count() == 24_000


def test_pairs_begin_again(table, tmp_path):
    words = ("pairs", table, "-o", tmp_path / "pairs", "--strategy", "all")
    lines = stop(*words, event="os.rename", pattern="/pairs.parquet", number=1)
    assert lines == ["pairwright: stopped; nothing was finished; repeat the same command to start again"]
    assert not (tmp_path / "pairs/pairs.parquet").exists()
    finish(*words)
    assert (tmp_path / "pairs/pairs.parquet").exists()


def test_an_import_that_was_stopped_before_its_first_rows_does_not_claim_any(tmp_path):
    (tmp_path / "chats").mkdir()
    words = ("import", write_chats(tmp_path / "chats"), "-o", tmp_path / "table", "--workers", 1)
    lines = stop(*words, event="os.rename", pattern=r"/table/[^./]+\.parquet", number=1)
    assert lines[-1].endswith(f"; {tmp_path / 'table'} has 0 experiences now")
    assert Table(tmp_path / "table").count() == 0


PRESSED_INSIDE_POLARS = """
import os, signal, polars
parse = polars.datatypes.parse_into_dtype
def press(dtype):  # Rust calls this for the types of lists, and panics if it raises
    polars.datatypes.parse_into_dtype = parse
    os.kill(os.getpid(), signal.SIGINT)
    return parse(dtype)
polars.datatypes.parse_into_dtype = press
from pairwright.cli import run_program
run_program()
"""


def test_ctrl_c_does_not_surface_inside_polars(table, tmp_path):
    words = ("pairs", table, "-o", tmp_path / "pairs", "--strategy", "all")
    lines = lines_of(start(*words, program=PRESSED_INSIDE_POLARS))
    assert lines == ["pairwright: stopped; nothing was finished; repeat the same command to start again"]
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_tokens_go_on_with_the_same_command(workers, table, model, tmp_path):
    words = ("tokens", table, "--tokenizer", model, "-o", tmp_path / "tokens", "--workers", workers)
    # when the second part is published, the first one is there
    lines = stop(*words, event="os.rename", pattern=r"/sequences-[^/]*\.parquet", number=2)
    assert lines[-1] == "pairwright: stopped; repeat the same command to continue"
    assert json.loads(finish(*words, "--json"))["from_cache"] > 0


def test_training_saves_after_its_step_and_goes_on_with_resume(model, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", 16)
    words = ("train", "--pairs", pairs, "--model", model, "-o", tmp_path / "run", "--epochs", 8, "--batch-size", 1,
             "--set", "train.threads=1")  # fmt: skip
    lines = stop(*words, event="open", pattern=r"/metrics\.jsonl", number=5)
    assert lines[-1].startswith("pairwright: stopped after step ")
    assert lines[-1].endswith("continue with --resume")
    assert json.loads((tmp_path / "run/train.json").read_text())["state"] == "stopped"
    finish(*words, "--resume")


@pytest.mark.slow
def test_training_that_has_not_begun_to_update_stops_at_once(model, table, tmp_path):
    words = ("train", "--experience", table, "--model", model, "-o", tmp_path / "run", "--set", "train.channels.dpo=0",
             "--set", "train.channels.sft=1", "--set", "train.max_steps=1", "--set", "train.threads=1")  # fmt: skip
    lines = stop(*words, event="os.rename", pattern=r"/tokens/runs/sequences-[^/]*\.parquet", number=1)
    assert lines[-1] == "pairwright: stopped before the first update of this start; the same command begins again"
    assert json.loads((tmp_path / "run/train.json").read_text())["state"] == "stopped"
    assert not (tmp_path / "run/metrics.jsonl").exists()
    finish(*words)


def test_a_collection_goes_on_with_resume(model, tmp_path):
    config = written(tmp_path, model, collect__num_tasks=60, collect__max_concurrency=2)
    words = ("collect", config, "-o", tmp_path / "run")
    lines = stop(*words, event="open", pattern=r"/collection/ledger\.jsonl", number=9)  # a few runs have ended
    assert lines[-1] == "pairwright: stopped; repeat the same command with --resume to continue"
    num_done = len((tmp_path / "run/collection/ledger.jsonl").read_text().splitlines())
    assert 0 < num_done < 60
    assert json.loads(finish(*words, "--resume", "--json"))["done_before"] >= num_done


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        (r"/collection/ledger\.jsonl", 4),  # some runs have ended
        pytest.param(r"/train/metrics\.jsonl", 9, marks=pytest.mark.slow),
    ],
)
def test_a_run_continues_with_the_same_command(pattern, number, model, tmp_path):
    config = written(tmp_path, model, collect__num_tasks=30, train__max_steps=20, loop__evaluate="never")
    words = ("run", config, "--output", tmp_path / "run")
    lines = stop(*words, event="open", pattern=pattern, number=number)
    assert "stopped" in lines[-1]
    assert "the same command to continue" in lines[-1] or "continue with --resume" in lines[-1]
    finish(*words)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("experience stats", "stopped; nothing was written"),
        ("export", "stopped; nothing was finished; repeat the same command to start again"),
        ("serve model", "stopped; repeat the same command to serve again"),
    ],
)
def test_every_command_says_how_to_continue(name, line):
    assert describe_stop(name) == line

"""The command line as a user meets it: output, JSON, exit codes, one line for an error."""

import json
import os
import subprocess
import sys

import pytest

from pairwright import EID, Experience, Message, Table, ToolCall, loads_many
from pairwright.store.codec import payload_size


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-c", "from pairwright.cli import run_program; run_program()", *map(str, words)],
        capture_output=True, text=True, env=os.environ | environment, stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    calls = (ToolCall("clock", "{}", id="1"),)
    with Table(tmp_path / "experience") as table:
        for run_number, reward in enumerate((0.0, 1.0, float("nan"))):
            table.append([Experience(
                eid=EID("b", "t", run_number, 0, "s"), kind="multi_turn", prompt=[Message("user", "time?")],
                completion=[Message("assistant", None, tool_calls=calls), Message("tool", "9", tool_call_id="1")],
                reward=reward, info={"loss": reward},
            )])  # fmt: skip
    return table.path


def test_help_lists_the_commands_and_loads_no_heavy_libraries():
    done = run("--help")
    assert done.returncode == 0
    assert "experience" in done.stdout
    code = "import sys; from pairwright.cli import app; print([m for m in ('torch','ray','polars','pyarrow','numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_stats_counts_and_prints_json(folder):
    done = run("experience", "stats", folder, "--json")
    found = json.loads(done.stdout)
    assert (found["experiences"], found["scored"], found["unscored"], found["comparable_groups"]) == (3, 2, 1, 1)
    assert found["kind"] == {"multi_turn": 3}
    plain = run("experience", "stats", folder)
    assert "experiences\t3" in plain.stdout
    assert "Next: pairwright experience head" in plain.stderr
    assert (
        json.loads(run("experience", "stats", folder, "--where", "reward > 0.5", "--json").stdout)["experiences"] == 1
    )


def test_head_shows_conversations_and_whole_records(folder):
    done = run("experience", "head", folder, "-n", 1)
    assert "\n  prompt       user: time?\n  completion   assistant: " in done.stdout
    assert "\n  tool result  tool: 9\n" in done.stdout
    assert "calls clock({})" in done.stdout
    lines = run("experience", "head", folder, "--json").stdout.splitlines()
    assert [json.loads(line)["info"]["loss"] for line in lines] == [0.0, 1.0, {"$float": "nan"}]


def test_export_writes_each_target_and_does_not_overwrite(folder, tmp_path):
    for name in ("a.jsonl", "a.parquet", "a.pwxp"):
        assert run("export", folder, "-o", tmp_path / name).returncode == 0
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3
    data = (tmp_path / "a.pwxp").read_bytes()
    assert payload_size(memoryview(data)) == len(data)
    assert loads_many(data) == list(Table(folder).records())
    refused = run("export", folder, "-o", tmp_path / "a.jsonl")
    assert (refused.returncode, "--overwrite" in refused.stderr) == (1, True)
    assert run("export", folder, "-o", tmp_path / "a.jsonl", "--overwrite").returncode == 0
    assert run("export", folder, "-o", tmp_path / "a.xyz").returncode == 3


def test_an_exported_hf_dataset_opens(folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    assert run("export", folder, "-o", tmp_path / "hf").returncode == 0
    assert datasets.load_from_disk(str(tmp_path / "hf")).num_rows == 3


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nope",), 3, "No such command"),
        (("experience", "stats"), 3, "Missing argument"),
        (("experience", "stats", "/nonexistent"), 1, "no experience table here"),
        (("experience", "head", "FOLDER", "--where", "nope > 1"), 3, "no column 'nope'"),
        (("experience", "head", "FOLDER", "--where", "select ("), 3, "--where"),
        (("config", "validate", "nope.yaml"), 3, "no such file"),
        (("config", "show", "sede=1"), 3, "did you mean 'seed'?"),
        (("config", "show", "--set", "seed"), 3, "expected KEY=VALUE"),
    ],
)
def test_errors_are_one_line_with_the_right_exit_code(folder, words, code, message):
    done = run(*(folder if word == "FOLDER" else word for word in words))
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_config_show_and_schema(tmp_path):
    assert "seed: 3" in run("config", "show", "seed=3").stdout
    assert json.loads(run("config", "show", "--json", PAIRWRIGHT_NAME="s3cret").stdout)["name"] == "${PAIRWRIGHT_NAME}"
    assert json.loads(run("config", "schema").stdout)["title"] == "Config"
    assert run("config", "validate").returncode == 0


def test_a_closed_pipe_is_not_an_error(folder):
    command = f"{sys.executable} -c 'from pairwright.cli import run_program; run_program()' experience head {folder} --json | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stderr.count("Traceback") == 0


def test_filter_writes_a_table_and_prints_how_many_were_left_out(folder, tmp_path):
    done = run("experience", "filter", folder, "--where", "reward > 0.5", "-o", tmp_path / "good", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (
        0, {"rows": 3, "kept": 1, "left_out": 2, "where": "reward > 0.5"},
    )  # fmt: skip
    assert "1 of 3 experiences written to" in done.stderr
    assert [exp.reward for exp in Table(tmp_path / "good").records()] == [1.0]
    done = run("experience", "filter", folder, "--where", "reward > 5", "-o", tmp_path / "none")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_an_empty_export_is_exit_code_1(folder, tmp_path):
    done = run("export", folder, "--where", "reward > 5", "-o", tmp_path / "a.jsonl")
    assert (done.returncode, "no experience for which" in done.stderr) == (1, True)
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.pwxp"])
def test_exported_records_are_imported_unchanged(folder, tmp_path, name):
    assert run("export", folder, "-o", tmp_path / name).returncode == 0
    assert run("import", tmp_path / name, "-o", tmp_path / "back").returncode == 0
    assert list(Table(tmp_path / "back").records()) == list(Table(folder).records())


@pytest.mark.stress
def test_a_thread_inside_torch_does_not_change_the_exit_code():
    code = """
import atexit, sys, threading, time, torch

def multiply():
    matrix = torch.ones(300, 300)
    while True:
        matrix @ matrix

for _ in range(4):
    threading.Thread(target=multiply, daemon=True).start()
time.sleep(0.3)
sys.argv = ["pairwright", *sys.argv[1:]]
import pairwright.cli
module = sys.modules["pairwright.cli.main"]
module.simplify_help = lambda command: atexit.register(print, "handler", file=sys.stderr)
module.run_program()
"""
    for words, expected in ((["--version"], 0), (["no-such-command"], 3)):
        ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
        assert ended.returncode == expected, ended.stderr
        assert ended.stderr.splitlines()[-1] == "handler"  # exit handlers of the command ran
        assert ended.stdout.startswith("pairwright ") == (expected == 0)

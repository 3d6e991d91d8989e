"""A folder holds one kind of table, and one process at a time writes there; every command that writes one says so."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from pairwright import Pairs, Table
from pairwright.cli.main import app
from training.made_runs import make_model

pytestmark = pytest.mark.stress

HOLD = """
import sys, time
from pathlib import Path
from pairwright.paths.writing import lock_file, lock_folder
lock, path = {"folder": lock_folder, "file": lock_file}[sys.argv[1]], Path(sys.argv[2])
with lock(path, work="test"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The folders `experience` and `pairs`, and the file that they came from, in the working directory."""
    monkeypatch.chdir(tmp_path)
    lines = [
        {"prompt": f"q{task}", "response": f"answer {run}", "reward": run, "task": str(task)}
        for task in range(4)
        for run in range(2)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for words in ("import rows.jsonl -o experience", "pairs experience -o pairs"):
        done = CliRunner().invoke(app, words.split())
        assert done.exit_code == 0, done.output
    return tmp_path


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pairs experience -o experience", "experience: holds an experience table; give another -o for the pairs"),
        ("tokens pairs --tokenizer MODEL -o pairs", "pairs: holds a pairs table; give another -o for the tokens"),
        ("tokens pairs --tokenizer MODEL -o experience", "holds an experience table; give another -o for the tokens"),
        ("train --pairs pairs --model MODEL -o pairs", "holds a pairs table; give another -o for the training"),
        (
            "train --pairs pairs --model MODEL -o experience",
            "holds an experience table; give another -o for the training",
        ),
        ("export pairs --to hf -o experience --overwrite", "holds an experience table; give another -o for the export"),
        ("export experience --to hf -o pairs --overwrite", "holds a pairs table; give another -o for the export"),
        ("export experience --to hf -o experience --overwrite", "holds an experience table"),
        (
            "experience filter experience --where run>0 -o pairs",
            "holds a pairs table; give another -o for the filtered table",
        ),
        ("import rows.jsonl -o pairs", "not an experience table"),
    ],
)
def test_a_folder_with_another_kind_of_table_is_refused(tables, model, words, message):
    before = files_of(tables)
    done = CliRunner().invoke(app, words.replace("MODEL", str(model)).split())
    assert done.exit_code not in (0, 2)
    assert message in str(done.exception) + done.output
    assert files_of(tables) == before
    assert (len(Table("experience")), len(Pairs("pairs"))) == (8, 4)


@contextmanager
def held(kind, path):
    """Another process that holds a folder or the name of a file."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, kind, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "kind", "path"),
    [
        ("import rows.jsonl -o experience", "folder", "experience"),
        ("pairs experience -o pairs", "folder", "pairs"),
        ("tokens pairs --tokenizer MODEL -o tokens", "folder", "tokens"),
        ("experience filter experience --where run>0 -o good", "folder", "good"),
        ("export pairs --to trl -o lines.jsonl", "file", "lines.jsonl"),
        ("export experience -o rows.parquet", "file", "rows.parquet"),
    ],
)
def test_a_command_is_refused_while_another_process_writes_there(tables, model, words, kind, path):
    words = words.replace("MODEL", str(model)).split()
    with held(kind, path) as process:
        done = CliRunner().invoke(app, words)
        assert done.exit_code != 0
        assert f"{path}: in use by process {process.pid}" in str(done.exception) + done.output
    # the other process was killed: its lock is gone with it
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert not list(tables.glob(".*.lock"))


def test_imports_of_one_file_at_the_same_time_add_its_rows_once(tables):
    command = [sys.executable, "-c", "from pairwright.cli import run_program; run_program()"]
    words = [*command, "import", "rows.jsonl", "-o", "new"]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: subprocess.run(words, capture_output=True, text=True), range(4)))
    assert {one.returncode for one in done} <= {0, 1}
    assert 0 in {one.returncode for one in done}
    # one that comes between another's lock and its number is told of "another process"
    assert all("new: in use by" in one.stderr for one in done if one.returncode)
    assert len(Table("new")) == 8

"""Installed without extras, every command works or says which one it needs; none ends in a traceback."""

import json
import os
import subprocess
import sys

import pytest

from pairwright.cli.guards import extras_with

OPTIONAL = [
    "torch", "transformers", "peft", "datasets", "httpx", "openai", "starlette", "uvicorn", "fastapi", "sqlalchemy",
    "huggingface_hub", "psycopg", "ray",
]  # fmt: skip
RUN = """
import sys
for name in {blocked}:
    sys.modules[name] = None  # importing it says that it is not there
sys.argv[0] = "pairwright"
from pairwright.cli import main
main()
"""
CHAT = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], "reward": 1.0}


def pairwright(folder, *arguments):
    code = RUN.format(blocked=OPTIONAL)
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, env=environment
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs that went through the flow up to its exports, and what the other commands take."""
    found = tmp_path_factory.mktemp("core")
    rows = [CHAT, CHAT | {"messages": [CHAT["messages"][0], {"role": "assistant", "content": "."}], "reward": 0.0}]
    (found / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found / "model").mkdir()
    (found / "model" / "config.json").write_text("{}")
    (found / "tasks.jsonl").write_text('{"id": 1, "question": "?"}\n')
    (found / "remote.yaml").write_text("backend: {name: nemo-customizer, nemo_customizer: {entity_host: http://x}}\n")
    for arguments in (
        ("import", "chats.jsonl", "-o", "runs/a/experience"),
        ("experience", "stats", "runs/a/experience"),
        ("pairs", "runs/a/experience", "-o", "runs/a/pairs"),
        ("export", "runs/a/pairs", "--to", "trl", "-o", "a.jsonl"),
        ("report", "runs/a"),
        ("jobs", "list"),
    ):
        done = pairwright(found, *arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return found


def test_the_flow_up_to_exports_needs_no_extra(folder):
    assert len((folder / "a.jsonl").read_text().splitlines()) == 1
    assert (folder / "runs" / "a" / "report.html").exists()


@pytest.mark.parametrize(
    "arguments, needed",
    [
        (("train", "--pairs", "runs/a/pairs", "--model", "model", "-o", "t"), "train"),
        (("demo", "--output", "demo"), "train"),
        (
            ("jobs", "submit", "--config", "remote.yaml", "--pairs", "runs/a/pairs", "--model", "m", "-o", "j"),
            "customizer",
        ),
        (("serve", "model", "model"), "serve"),
        (("serve", "jobs", "--data", "service"), "serve"),
        (("record", "--upstream", "http://x", "-o", "r"), "collect"),
        (("export", "runs/a/pairs", "--to", "hf", "-o", "h"), "hf"),
        (("import", "chats.jsonl", "-o", "b", "--engine", "ray"), "ray"),
    ],
)
def test_what_needs_an_extra_says_which(folder, arguments, needed):
    done = pairwright(folder, *arguments)
    assert done.returncode in (1, 3)
    assert f"pairwright[{needed}]" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_says_what_is_not_installed(folder):
    done = pairwright(folder, "doctor", "--json")
    assert done.returncode == 2
    ways = [finding["way_out"] for finding in json.loads(done.stdout) if finding["verdict"] == "failed"]
    assert "pip install 'pairwright[train]'" in ways


def test_packages_of_extras_are_known():
    assert [name for name in OPTIONAL if not extras_with(name)] == []
    assert extras_with("msgspec") == extras_with("no_such_package") == []

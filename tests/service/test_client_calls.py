"""The table of calls in docs/how-to/service.md is what happens when the real clients make them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from service_process import CONFIG, Service, plain_model

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "how-to" / "service.md"


def test_every_call_of_the_table_works_or_is_refused_as_it_says(tmp_path):
    for module in ("nemo_microservices", "huggingface_hub", "datasets", "openai"):
        pytest.importorskip(module)
    data, work = tmp_path / "data", tmp_path / "work"
    work.mkdir()
    create = [sys.executable, "-m", "pairwright.cli", "serve", "token", "create", "--data", str(data)]
    made = subprocess.run([*create, "--name", "a", "--scope", "*"], capture_output=True, text=True, check=True)
    token = made.stdout.strip()
    with Service(data, token=token, max_running=4) as service:
        service.add_target(plain_model(tmp_path / "model"))
        environment = {
            **os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": f"{service.url}/v1/hf", "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1",
        }  # fmt: skip
        words = [sys.executable, str(HERE / "client_calls.py"), service.url, CONFIG, token, str(data), str(work)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == read_table()


def read_table() -> dict[str, dict[str, dict[str, str]]]:
    """Client, resource and call, with `works` or the status of the refusal."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    section = PAGE.read_text().partition("## Which calls of which client work")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if not line.startswith("|") or line.startswith(("|-", "| client |")):
            continue
        name, works, refused, _ = (cell.strip() for cell in line.strip("|").split("|"))
        if name.startswith("**"):
            resources = tables.setdefault(name.strip("*"), {})
            continue
        calls = dict.fromkeys(filter(None, works.split(", ")), "works")
        for call in filter(None, refused.split(", ")):
            calls[call.partition(" ")[0]] = call.partition("(")[2].rstrip(")")
        resources[name] = calls
    return tables

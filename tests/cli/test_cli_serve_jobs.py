"""`serve targets` and `serve token`; `serve jobs` is run in tests/service."""

import json
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from pairwright.cli import app
from pairwright.errors import ConfigError, PairwrightError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 64}')
    (folder / "tokenizer.json").write_text("{}")
    save_file({"a": np.zeros((2, 5), np.float16)}, folder / "model.safetensors")
    return folder


def test_a_base_model_is_added_listed_and_removed(model, tmp_path):
    data = str(tmp_path / "data")
    run("serve", "targets", "add", "meta/small@1+A100", str(model), "--data", data)
    (found,) = json.loads(run("serve", "targets", "list", "--data", data, "--json"))
    assert (found["name"], found["num_parameters"], found["precision"]) == ("meta/small@1+A100", 10, "fp16")
    with pytest.raises(ConfigError, match="already"):
        run("serve", "targets", "add", "meta/small@1+A100", str(model), "--data", data)
    assert "meta/small@1+A100" in run("serve", "targets", "list", "--data", data)
    run("serve", "targets", "remove", "meta/small@1+A100", "--data", data)
    assert json.loads(run("serve", "targets", "list", "--data", data, "--json")) == []
    with pytest.raises(ConfigError, match="targets list"):
        run("serve", "targets", "remove", "meta/small@1+A100", "--data", data)


def test_what_is_no_model_is_refused_with_the_reason(model, tmp_path):
    data = str(tmp_path / "data")
    for name, reason in (
        ("tokenizer.json", "no tokenizer"),
        ("model.safetensors", r"no \*\.safetensors"),
        ("config.json", "config"),
    ):
        (model / name).rename(model / "away")
        with pytest.raises(ConfigError, match=reason):
            run("serve", "targets", "add", "x", str(model), "--data", data)
        (model / "away").rename(model / name)
    with pytest.raises(ConfigError, match="expected a model name"):
        run("serve", "targets", "add", "../x", str(model), "--data", data)


def test_a_token_is_printed_once_and_revoked(tmp_path):
    data = str(tmp_path / "data")
    token = run(
        "serve", "token", "create", "--data", data, "--name", "ada", "--scope", "shop", "--scope", "*:read"
    ).strip()
    assert token.startswith("pw_")
    listed = run("serve", "token", "list", "--data", data, "--json")
    assert token not in listed
    assert json.loads(listed)[0]["scopes"] == ["*:read", "shop"]
    run("serve", "token", "revoke", "ada", "--data", data)
    with pytest.raises(ConfigError, match="token list"):
        run("serve", "token", "revoke", "ada", "--data", data)
    with pytest.raises(ConfigError, match="expected NAMESPACE"):
        run("serve", "token", "create", "--data", data, "--name", "ada", "--scope", "shop:all")


def test_serving_beyond_loopback_needs_a_token(tmp_path):
    before = tempfile.gettempdir()
    with pytest.raises(ConfigError, match="without a token the service binds to loopback only"):
        run("serve", "jobs", "--data", str(tmp_path / "data"), "--host", "0.0.0.0", "--port", "0")
    with pytest.raises(ConfigError, match="postgresql://"):
        run("serve", "jobs", "--data", str(tmp_path / "data"), "--database", "mysql://x/y", "--port", "0")
    with pytest.raises(PairwrightError, match="cannot be opened"):
        run(
            "serve", "jobs", "--data", str(tmp_path / "data"), "--database", "postgresql://127.0.0.1:1/x", "--port", "0"
        )
    assert tempfile.gettempdir() == before  # temporary files of this process stay where they were


def test_help_loads_neither_fastapi_nor_sqlalchemy():
    code = "import sys; import pairwright.cli; print([m for m in ('fastapi', 'sqlalchemy', 'uvicorn', 'httpx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

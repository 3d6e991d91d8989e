"""`pairwright serve model` as a process: a folder, an adapter, a port that is taken, vLLM by choice."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import openai
import pytest

from generate.tiny_models import save_model
from pairwright.errors import ConfigError, PairwrightError
from pairwright.serve.model_server import check_address, vllm_command

pytestmark = pytest.mark.stress

COMMAND = [sys.executable, "-c", "from pairwright.cli import run_program; run_program()", "serve", "model"]


@contextmanager
def serving(*arguments, environment=None):
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
    )  # fmt: skip
    try:
        line = next(line for line in process.stderr if "http://" in line)
        yield process, re.search(r"http://\S+/v1", line)[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.stderr.close()
        process.wait(30)


def test_a_folder_is_served_under_its_names_until_the_process_is_stopped(tmp_path):
    folder = save_model(tmp_path / "tuned")
    with serving(folder, "--port", "0", "--threads", "1", "--name", "ns/tuned@1", "--name", "tuned") as (process, url):
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client:
            assert [card.id for card in client.models.list()] == ["ns/tuned@1", "tuned"]
            made = client.chat.completions.create(
                model="ns/tuned@1", messages=[{"role": "user", "content": "the"}], max_tokens=2
            )
            assert made.model == "ns/tuned@1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)


@pytest.mark.slow
def test_an_adapter_is_served_with_the_base_that_it_names(tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = save_model(tmp_path / "base")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "adapter")
    with (
        serving(tmp_path / "adapter", "--port", "0", "--threads", "1") as (_, url),
        openai.OpenAI(base_url=url, api_key="x") as client,
    ):
        made = client.completions.create(model="adapter", prompt="the", max_tokens=2)
        assert made.choices[0].text is not None


def failed(*arguments, **options):
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)
    return done.returncode, done.stderr


def test_a_port_in_use_is_reported_before_the_model_is_loaded(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (tmp_path / "config.json").write_text("{}")
        code, said = failed(tmp_path, "--port", taken.getsockname()[1])
    assert code == 1
    assert "choose another with --port" in said


def test_an_invalid_model_folder_is_reported_in_one_line(tmp_path):
    code, said = failed(tmp_path, "--port", "0")
    assert code == 1
    assert "not a model folder" in said
    assert "Traceback" not in said


def test_without_a_token_only_this_machine_may_connect():
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(host, None)
    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(ConfigError, match="--api-key-env"):
            check_address(host, None)
        check_address(host, "token")


def test_a_token_variable_that_is_empty_is_refused(tmp_path):
    code, said = failed(tmp_path, "--api-key-env", "NO_SUCH_TOKEN_HERE")
    assert code == 3
    assert "NO_SUCH_TOKEN_HERE" in said


def test_a_missing_vllm_is_reported_with_the_fix(tmp_path):
    with pytest.raises(PairwrightError, match="--vllm PATH"):
        vllm_command(tmp_path, host="127.0.0.1", port=1, names=[], command="no-such-vllm", more=[])


def test_vllm_gets_folder_name_address_and_what_follows_the_dashes(tmp_path):
    """A stand-in for vLLM records its arguments."""
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys\n"
                       "json.dump([sys.argv[1:], os.environ.get('VLLM_API_KEY')], open(os.environ['SEEN'], 'w'))\n")  # fmt: skip
    program.chmod(0o755)
    seen = tmp_path / "seen.json"
    done = subprocess.run(
        [*COMMAND, str(tmp_path), "--engine", "vllm", "--vllm", str(program), "--port", "7", "--name", "a",
         "--api-key-env", "TOKEN", "--", "--max-num-seqs", "4"],
        env={**os.environ, "SEEN": str(seen), "TOKEN": "secret"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stderr
    arguments, token = json.loads(seen.read_text())
    assert arguments == ["serve", str(tmp_path), "--host", "127.0.0.1", "--port", "7", "--served-model-name", "a",
                         "--max-num-seqs", "4"]  # fmt: skip
    assert token == "secret"


def test_an_adapter_is_given_to_vllm_as_one(tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "base").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(tmp_path / "base")})
    )
    found = vllm_command(tmp_path / "adapter", host="127.0.0.1", port=1, names=[], command=sys.executable, more=[])
    assert found[2] == str(tmp_path / "base")
    assert found[-3:] == ["--enable-lora", "--lora-modules", f"adapter={tmp_path / 'adapter'}"]

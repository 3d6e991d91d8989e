"""Devices: which one is chosen and why, the check that a user runs, and a training step on a device that is not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pairwright.cli.main import app
from pairwright.errors import ConfigError
from pairwright.generate import devices
from pairwright.jobs.doctor import device_check


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda:0"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_best_device_is_chosen_and_the_reason_named(cuda, mps, chosen, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "H100")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert devices.choose_device() == chosen
    kind, why = devices.find_device()
    assert kind == chosen.partition(":")[0]
    assert f"{kind}: " in why


def test_a_device_that_is_not_here_is_refused_with_the_one_that_is(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"device mps: .*; here is "):
        devices.choose_device("mps")


def test_an_old_macos_has_no_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: False)
    assert devices.dtype_on("mps", "auto") == "float16"
    assert devices.dtype_on("mps", "float32") == "float32"
    assert devices.dtype_on("cpu", "auto") == "float32"
    assert devices.dtype_on("cuda:0", "auto") == "auto"
    with pytest.raises(ConfigError, match="bf16: this macOS has no bfloat16"):
        devices.check_precision("mps", "bf16")
    devices.check_precision("cuda", "bf16")


def test_the_check_of_a_device_passes_on_the_cpu():
    result = CliRunner().invoke(app, ["doctor", "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    found = {row["check"]: row["ok"] for row in json.loads(result.stdout)["checks"]}
    layouts = [
        f"{layout}, {precision}" for layout in ("padded", "shared prefixes", "trees") for precision in ("fp32", "bf16")
    ]
    others = ["LoRA coverage", "LoRA gradients", "gradient checkpointing", "resume", "greedy generation"]
    assert found == dict.fromkeys([*layouts, *others], True)


def test_the_check_of_a_device_finds_a_lost_gradient_and_a_wrong_loss(monkeypatch):
    """A device that scales the loss, and an adapter with one frozen matrix."""
    right, attached = device_check._loss, device_check.attach_adapter
    calls = []

    def wrong(policy, layout):
        calls.append(layout)
        return right(policy, layout) * (1.0 if len(calls) % 3 == 1 else 1.01)  # the first of a layout is the CPU's

    monkeypatch.setattr(device_check, "_loss", wrong)
    rows = list(device_check._check_layouts(torch.device("cpu")))
    assert [row.passed for row in rows if row.name.endswith("fp32")] == [False, False, False]
    monkeypatch.setattr(device_check, "_loss", right)

    def freeze(model, settings):
        model = attached(model, settings)
        next(p for name, p in model.named_parameters() if "lora_A" in name).requires_grad_(False)
        return model

    monkeypatch.setattr(device_check, "attach_adapter", freeze)
    coverage, *_ = device_check._check_adapter(torch.device("cpu"))
    assert not coverage.passed


@pytest.fixture(scope="module")
def on_a_pretended_device(tmp_path_factory):
    """Run in a separate process, since a backend of torch cannot be removed."""
    tests = Path(__file__).resolve().parents[1]
    folder = tmp_path_factory.mktemp("pretended")
    paths = os.pathsep.join([str(tests.parent / "src"), str(tests), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(tests / "training" / "pretended_script.py"), str(folder)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_channel_and_lora_train_on_a_device_where_cpu_tensors_and_float64_are_errors(on_a_pretended_device):
    report = dict(on_a_pretended_device)
    report.pop("generation"), report.pop("guards")
    assert {name.split()[0] for name in report} == {"dpo", "sft", "grpo", "kto", "sdpo"}
    assert max(report.values()) < 1e-3, report


def test_greedy_and_sampled_generation_run_there_with_the_same_tokens(on_a_pretended_device):
    assert on_a_pretended_device["generation"] == 0


def test_the_pretended_device_does_raise(on_a_pretended_device):
    assert on_a_pretended_device["guards"] == ["RuntimeError", "TypeError", "TypeError"]

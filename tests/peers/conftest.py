"""An interpreter with NeMo Agent Toolkit, and folders for its command. Slow tests use them."""

import json
import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
# those of the extra `nat`, and what the tests of NAT need
PACKAGES = (
    "nvidia-nat-core>=1.9,<1.10",
    "nvidia-nat-eval>=1.9,<1.10",
    "langchain-core",
    "nemo-microservices",
    "pytest-asyncio",
)


@pytest.fixture(scope="session")
def nat_python(tmp_path_factory) -> Path:
    """NAT_PYTHON, this interpreter if it has NAT, or a new environment with NAT from pip.

    The new one has NAT's own dependencies, and everything else (torch, ours) from this environment.
    """
    if named := os.environ.get("NAT_PYTHON"):
        return Path(named)
    if find_spec("nat") is not None:
        return Path(sys.executable)
    folder = tmp_path_factory.mktemp("nat") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "-q", *PACKAGES]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if installed.returncode:
        pytest.skip(f"NeMo Agent Toolkit cannot be installed here: {installed.stderr.strip().splitlines()[-1]}")
    (site,) = (folder / "lib").glob("python*/site-packages")
    paths = [str(SOURCE), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "tests.pth").write_text("\n".join(paths) + "\n")
    return python


@pytest.fixture
def nat_environment(tmp_path) -> dict[str, str]:
    """The environment of NAT's command: our components and the workflow of the tests are registered in it."""
    information = tmp_path / "registered" / "colours-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: colours\nVersion: 1.0\n")
    # our plugin is also declared in pyproject.toml, but an environment may have an older installation
    (information / "entry_points.txt").write_text(
        "[nat.components]\ncolours = nat_workflow\npairwright = pairwright.nat.nat_components\n"
    )
    paths = [str(information.parent), str(HERE), str(SOURCE)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@pytest.fixture
def nat_dataset(tmp_path) -> Path:
    """Questions for the workflow of the tests."""
    questions = ["the rose", "the sky", "the sea", "the leaf", "a tie", "a nan"]
    rows = [{"id": f"q{number}", "question": text, "answer": "red"} for number, text in enumerate(questions)]
    path = tmp_path / "questions.json"
    path.write_text(json.dumps(rows))
    return path

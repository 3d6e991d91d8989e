"""`pairwright.nat` without NeMo Agent Toolkit: it is imported, and says what is missing."""

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import pairwright.nat
from pairwright.errors import PairwrightError

ROOT = Path(__file__).parents[2]


def test_importing_the_package_imports_no_nat_and_no_torch():
    code = "import sys, pairwright.nat; print(sorted({'nat', 'torch', 'polars'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_component_without_nat_names_the_extra():
    if find_spec("nat") is not None:
        pytest.skip("NeMo Agent Toolkit is installed here")
    with pytest.raises(PairwrightError, match=r"not installed .*pip install 'pairwright\[nat\]'"):
        _ = pairwright.nat.PairwrightTrainer


def test_an_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        _ = pairwright.nat.Trainer


def test_the_entry_point_names_the_module_that_registers_the_components():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module = project["entry-points"]["nat.components"]["pairwright"]
    assert (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").exists()

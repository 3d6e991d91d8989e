"""NAT's own tests of its DPO plugin, run on ours: every failure is one that README.md explains.

NAT_TESTS names the folder packages/nvidia_nat_nemo_customizer/tests of NAT's repository; without it the exam
is skipped. The tests are never copied into ours.
"""

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NUM_TESTS = 123
# As README.md lists them, with the reasons.
EXPECTED = {
    "TestDPOTrajectoryBuilderConfig::test_config_name",
    "TestNeMoCustomizerTrainerAdapterConfig::test_config_name",
    "TestNeMoCustomizerTrainerConfig::test_config_name",
    "TestNeMoCustomizerTrainerAdapter::test_format_prompt_empty_messages",
    "TestNeMoCustomizerTrainerAdapter::test_is_healthy_failure",
}


def test_the_readme_lists_the_failures_of_the_exam():
    listed = re.findall(r"^\| `(Test\w+::test_\w+)` \|", (HERE / "README.md").read_text(encoding="utf-8"), re.M)
    assert set(listed) == EXPECTED


@pytest.mark.slow
def test_the_tests_of_nats_plugin_pass_on_ours(nat_python, tmp_path):
    folder = os.environ.get("NAT_TESTS")
    if not folder:
        pytest.skip("NAT_TESTS does not name NAT's packages/nvidia_nat_nemo_customizer/tests")
    report = tmp_path / "report.xml"
    options = ("-q", "-p", "nat_names", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", f"--junitxml={report}")
    done = subprocess.run(
        [str(nat_python), "-m", "pytest", *options, folder],
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1] / 'src'}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}" for case in cases if len(case)}
    assert failed == EXPECTED, done.stdout
    assert len(cases) == NUM_TESTS


@pytest.mark.slow
def test_the_tests_of_our_components_pass_where_nat_is_installed(nat_python, tmp_path):
    tests = HERE.parent
    options = ("-q", "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={tests}")
    files = ("peers/test_nat_plugin.py", "seeds/test_nat_builder_seed.py", "seeds/test_customizer_seed.py")
    done = subprocess.run(
        [str(nat_python), "-m", "pytest", *options, *(str(tests / name) for name in files)],
        env={**os.environ, "PYTHONPATH": f"{tests.parent / 'src'}{os.pathsep}{tests}", "PYTEST_ADDOPTS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout, re.M), "none was skipped"

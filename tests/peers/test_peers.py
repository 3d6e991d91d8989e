"""The tests of `renderers`, TRL and Trinity, run against ours: every failure of theirs is one that the README here explains.

Nothing of theirs is in the repository. The sdist of `renderers` is downloaded into a temporary folder when the test
runs; those of TRL and Trinity have no tests, so PAIRWRIGHT_TRL and PAIRWRIGHT_TRINITY name checkouts. Without them the
tests skip, and say so.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[1].parent / "shared" / "data"
pytestmark = pytest.mark.slow
needs_templates = pytest.mark.skipif(
    not (SHARED / "templates").is_dir(), reason=f"the real templates are not at {SHARED}"
)
# Those that ask how a conversation is rendered and what is trained; the others parse answers or talk to servers.
RENDERERS_FILES = (
    "test_render_ids",
    "test_message_indices",
    "test_sampled_mask",
    "test_build_helpers",
    "test_is_content",
    "test_tokens_per_message",
    "test_message_tool_names",
)
TRL_CLASSES = "SupportsToolCalling or PrefixPreserving or StopTokenTrained or TrainingChatTemplate"


class Outcome(NamedTuple):
    """`failed` has the names of failed tests, each with the first line of its error."""

    counts: Counter[str]
    failed: list[str]


@needs_templates
def test_the_tests_of_renderers_pass_but_for_what_the_readme_explains(tmp_path: Path) -> None:
    folder = unpack_sdist("renderers", "0.1.9.dev9", tmp_path)
    # Its only dependency that we do not have; pure Python, without dependencies that matter here.
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*install, "--target", tmp_path / "deps", "prime-pydantic-config"], capture_output=True)
    if done.returncode:
        pytest.skip("prime-pydantic-config, which renderers needs, cannot be installed")
    names = [f"tests/{name}.py" for name in RENDERERS_FILES]
    outcome = run_tests(folder, names, "renderers_plugin", tmp_path, [folder, tmp_path / "deps"])
    check_outcome(outcome, "renderers")


@needs_templates
def test_the_chat_template_tests_of_trl_pass_but_for_what_the_readme_explains(tmp_path: Path) -> None:
    checkout = os.environ.get("PAIRWRIGHT_TRL")
    if checkout is None:
        pytest.skip("PAIRWRIGHT_TRL names no checkout of TRL, and its sdist has no tests")
    pytest.importorskip("trl")
    names = ["tests/test_chat_template_utils.py", "-k", TRL_CLASSES]
    outcome = run_tests(Path(checkout), names, "trl_plugin", tmp_path, [])
    check_outcome(outcome, "TRL")


def test_the_tests_of_trinitys_experiences_pass_but_for_what_the_readme_explains(tmp_path: Path) -> None:
    checkout = os.environ.get("PAIRWRIGHT_TRINITY")
    if checkout is None:
        pytest.skip("PAIRWRIGHT_TRINITY names no checkout of Trinity, and its sdist has no tests")
    # The file alone: the packages around it import what only a GPU machine has.
    shutil.copy(Path(checkout) / "tests" / "common" / "experience_test.py", tmp_path)
    outcome = run_tests(tmp_path, ["experience_test.py"], "trinity_plugin", tmp_path, [])
    check_outcome(outcome, "Trinity", least=13)


def check_outcome(outcome: Outcome, peer: str, least: int = 100) -> None:
    explained = read_explanations(peer)
    unexplained = [name for name in outcome.failed if not any(pattern.fullmatch(name) for pattern in explained)]
    print(f"{peer}: {dict(outcome.counts)}")
    assert outcome.counts["passed"] >= least, outcome.counts
    assert not unexplained, f"{dict(outcome.counts)}; not explained: {unexplained[:20]}"


def read_explanations(peer: str) -> list[re.Pattern[str]]:
    """The patterns of the README's table: tests that may fail and what they say, `*` for anything."""
    rows = re.findall(rf"^\| {peer} \| `([^`]+)` \|", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [re.compile(re.escape(row).replace(r"\*", ".*")) for row in rows]


def run_tests(folder: Path, names: list[str], plugin: str, output: Path, more: list[Path]) -> Outcome:
    """Run their tests in a separate process, with our plugin."""
    paths = [HERE.parents[1] / "src", HERE, *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1"}
    words = ["-p", plugin, "-p", "no:cacheprovider", "-q", "-rN", f"--junit-xml={output / 'outcome.xml'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *names], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert (output / "outcome.xml").is_file(), done.stdout[-2000:] + done.stderr[-2000:]
    return read_outcome((output / "outcome.xml").read_text(encoding="utf-8"))


def read_outcome(text: str) -> Outcome:
    counts: Counter[str] = Counter()
    failed = []
    for case in ElementTree.fromstring(text).iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[kind] += 1
        if kind == "failed":
            first = next(child.get("message") or "" for child in case if child.tag in ("failure", "error"))
            failed.append(f"{case.get('name')}: {first.partition(chr(10))[0]}")
    return Outcome(counts, failed)


def unpack_sdist(name: str, version: str, folder: Path) -> Path:
    """Download and unpack the sdist of a package without building it. The version is fixed, since the README explains its tests."""
    from pip._internal.models.index import PyPI

    try:
        with urllib.request.urlopen(f"{PyPI.simple_url}/{name}/", timeout=30) as answer:
            links = re.findall(rf'href="([^"#]+/{name}-{re.escape(version)}\.tar\.gz)', answer.read().decode())
        if not links:
            pytest.skip(f"the index has no sdist of {name} {version}")
        archive, _ = urllib.request.urlretrieve(links[0], folder / f"{name}.tar.gz")
    except (OSError, ValueError) as error:
        pytest.skip(f"the sdist of {name} cannot be downloaded: {error}")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / f"{name}-{version}"

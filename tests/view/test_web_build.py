"""The built files of the page are what its sources in web/ give."""

import filecmp
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
BUILT = Path("src") / "pairwright" / "view" / "built"
JOBS = Path("src") / "pairwright" / "service" / "page" / "built"
FILES = {BUILT: ["index.html", "view.css", "view.js"], JOBS: ["jobs.css", "jobs.js"]}


@pytest.mark.slow
def test_the_built_files_are_a_build_of_the_sources(tmp_path):
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed: the built files are not compared with web/")
    # A copy with the folders that the sources name, so that the checkout is not written to.
    shutil.copytree(WEB, tmp_path / "web", ignore=shutil.ignore_patterns("node_modules"))
    colours = Path("src") / "pairwright" / "report" / "colours.css"
    (tmp_path / colours).parent.mkdir(parents=True)
    shutil.copy(ROOT / colours, tmp_path / colours)
    installed = subprocess.run([npm, "ci"], cwd=tmp_path / "web", capture_output=True, text=True)
    if installed.returncode and "network" in installed.stderr.lower():
        pytest.skip("the packages of web/package-lock.json cannot be fetched here")
    assert installed.returncode == 0, installed.stderr
    built = subprocess.run([npm, "run", "build"], cwd=tmp_path / "web", capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    for folder, names in FILES.items():
        assert sorted(path.name for path in (ROOT / folder).iterdir()) == names
        _, different, missing = filecmp.cmpfiles(ROOT / folder, tmp_path / folder, names, shallow=False)
        assert (different, missing) == ([], []), "run: make web, and commit the built files"


@pytest.mark.parametrize("path", [BUILT / "view.js", JOBS / "jobs.js"], ids=lambda path: path.name)
def test_the_script_takes_no_markup_from_data_and_names_no_other_host(path):
    script = (ROOT / path).read_text(encoding="utf-8")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (WEB / "src").iterdir())
    for way in ("dangerouslySetInnerHTML", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in sources, way
    hosts = {part.split("/")[0] for part in script.split("http://")[1:] + script.split("https://")[1:]}
    assert hosts <= {"www.w3.org"}, "names of SVG and MathML, which are no addresses"

"""The documentation is true: its Python runs, its commands exist, its tables list what the code has."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pairwright as pw
from pairwright.config import Config, load_config
from pairwright.config.key_comments import list_keys
from pairwright.sources import READERS
from public_files import make_public_files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.console_pages import align, is_like, run_page  # noqa: E402
from tools.make_reference import fill_page, list_commands, make_anchor  # noqa: E402

DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_python_of_a_page_runs(page, tmp_path):
    code = "\n".join(blocks(page, "python"))
    if "pairwright.nat" in code:
        pytest.importorskip("nat", reason="NeMo Agent Toolkit is not installed")
    if page.name == "README.md":  # its flow begins with traces and a model
        make_public_files(tmp_path)
        (tmp_path / "models" / "tiny").rename(tmp_path / "models" / "smollm2")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CONSOLE_PAGES = [page for page in PAGES if blocks(page, "console")]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if "<!-- slow -->" in page.read_text(encoding="utf-8") else [])
        for page in CONSOLE_PAGES
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_of_a_page_print_what_it_shows(page, tmp_path):
    examples = run_page(page, tmp_path)
    assert examples
    for example in examples:
        shown, printed = "\n".join(example.shown), "\n".join(example.printed)
        assert example.is_true, f"$ {example.command}\nexit code {example.exit_code}\n{printed}\ninstead of\n{shown}"


def test_an_output_is_compared_with_what_is_shown():
    assert is_like(["a   b", "...", "d"], ["a b", "c", "c", "d"])
    assert is_like(["..."], [])
    assert not is_like(["a", "...", "d"], ["a", "c", "e"])
    assert not is_like(["a.c"], ["abc"])
    assert not is_like([], ["a"])


def test_rows_with_tabs_are_set_in_columns():
    lines = ["what\tcount", "a\t10", "bcd\t-1", "x\ty\tz", "done"]
    assert align(lines) == ["what  count", "a        10", "bcd      -1", "x  y  z", "done"]
    assert align([]) == []


def test_the_generated_parts_are_as_the_code_is():
    for page in PAGES:
        assert fill_page(page) == page.read_text(encoding="utf-8"), f"{page} is older than the code: make reference"


def test_every_command_has_a_section_with_its_options():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "commands").glob("*.md"))
    sections = re.split(r"^## `", pages, flags=re.M)[1:]
    num_options = 0
    for name, command in list_commands():
        (section,) = [text for text in sections if re.match(rf"{name}[ `]", text)]
        for option in command.params:
            if option.param_type_name == "option" and "--help" not in option.opts:
                num_options += 1
                assert f"`{option.opts[0]}`" in section, f"{name} {option.opts}"
    assert num_options > 150


def shown_commands(page: Path) -> list[str]:
    """Commands of ours in the blocks and the inline code of a page."""
    text = page.read_text(encoding="utf-8")
    texts = [block.replace("\\\n", " ") for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.S | re.M)]
    lines = [line for block in texts for line in block.splitlines()]
    inline = [
        " ".join(code.split())
        for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    ]
    commands = [re.sub(r"^\$ ", "", line.strip()) for line in [*lines, *inline]]
    return [command for command in commands if re.match(r"pairwright [a-z]", command)]


def test_every_shown_command_exists_with_its_options():
    known = dict(list_commands())
    num_commands = 0
    for page in [*PAGES, *(ROOT / "examples").rglob("*.md")]:
        for shown in shown_commands(page):
            words = re.split(r"  #|[;|>]| && ", shown)[0].split()
            # `pairwright pairs DIR` is `pairwright pairs build DIR`, `evaluate A B` is `evaluate compare A B`
            names = [" ".join(words[:number]) for number in (4, 3, 2)]
            defaults = [f"{names[2]} {default}" for default in ("build", "compare")]
            name = next((name for name in [*names, *defaults] if name in known), None)
            if name is None and any(command.startswith(names[2] + " ") for command in known):
                continue  # the name of a group, such as `pairwright experience`
            assert name is not None, f"{page}: {shown}"
            num_commands += 1
            options = {word for param in known[name].params for word in (*param.opts, *param.secondary_opts)}
            given = {word.split("=")[0].rstrip("`,.") for word in words if re.match(r"--[a-z]", word)}
            if "--" not in words:  # what follows goes to another program
                assert given <= options | {"--help"}, f"{page}: {shown}"
    assert num_commands > 150


def test_every_key_of_the_configuration_has_a_row():
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "configuration").glob("*.md"))
    rows = set(re.findall(r"^\| `([\w.]+)` \|", pages, re.M))
    for section in list_keys(Config):
        if section.section is None:
            assert section.name in rows
            continue
        for key in list_keys(section.section):
            assert key.name in rows, f"{section.name}.{key.name}"


def test_every_format_has_a_section_with_an_example_and_what_is_not_read():
    sections = {}
    for page in sorted((DOCS / "reference" / "sources").glob("[!i]*.md")):
        for part in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.M)[1:]:
            name, text = part.split("\n", 1)
            assert name not in sections, f"{name} has two sections"
            sections[name] = text
    assert set(sections) == set(READERS)
    for name, section in sections.items():
        assert "```" in section, name
        assert "Not read" in section, name


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")], ids=lambda page: page.name)
def test_the_configurations_of_a_page_load(page, tmp_path):
    for number, text in enumerate(blocks(page, "yaml")):
        (tmp_path / f"{number}.yaml").write_text(text)
        load_config(tmp_path / f"{number}.yaml", environment={})


def anchors_of(page: Path) -> set[str]:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return {make_anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.M)}


def test_links_and_anchors_between_pages_lead_somewhere():
    examples = (ROOT / "examples").rglob("*.md")
    num_links = 0
    for page in [*PAGES, *examples, ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", ROOT / "CHANGELOG.md"]:
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for path, anchor in re.findall(r"\]\(([^)#:\s]*)(#[^)\s]+)?\)", prose):
            num_links += 1
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {path}"
            assert not anchor or anchor[1:] in anchors_of(target), f"{page.name}: {path}{anchor}"
    assert num_links > 200


def test_the_pages_that_the_code_names_exist():
    for folder in ("src", "bench", "examples"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".yaml", ".md", ".sh"}:
                for name in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text(encoding="utf-8")):
                    assert (ROOT / name).exists(), f"{file}: {name}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = re.escape(str(page.relative_to(DOCS)))
        assert re.search(rf"[ :]{name}$", navigation, re.M), f"{page} is not in mkdocs.yml"


def test_the_python_reference_has_every_public_name():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference" / "api").glob("*.md"))
    listed = {line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", pages, re.M)}
    missing = {name for name in pw.__all__ if not name.endswith("Error")} - listed
    assert not missing


def test_the_numbers_and_the_picture_of_the_readme_are_those_of_the_code():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"[{len(READERS)} formats]" in readme
    assert f"[{len(pw.losses.PREFERENCE_LOSSES)} preference losses]" in readme
    assert f"{len(READERS)} formats" in (DOCS / "tutorials" / "first-pairs.md").read_text(encoding="utf-8")
    for picture in re.findall(r"!\[[^]]*\]\((docs/[^)]*)\)", readme):
        assert (ROOT / picture).stat().st_size < 200_000


def test_the_quickstart_runs_in_an_empty_folder(tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    script = ROOT / "examples" / "quickstart" / "run.sh"
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "openai-chat\t1\t47" in done.stdout
    (rejected,) = (tmp_path / "runs/quickstart/experience/quarantine.jsonl").read_text().splitlines()
    assert json.loads(rejected)["line"] == 6

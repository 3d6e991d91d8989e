"""The documentation is true: its Python runs, its commands exist, its tables list what the code has."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from pairwright.cli import app
from pairwright.config import load_config
from pairwright.sources import READERS
from pairwright.store.columns import CONTENT, NARROW

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, tmp_path):
    code = "\n".join(blocks(page, "python"))
    if "pairwright.nat" in code:
        pytest.importorskip("nat", reason="NeMo Agent Toolkit is not installed")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def commands_of(typer_app, prefix: str) -> list[str]:
    found = [f"{prefix} {command.name or command.callback.__name__}" for command in typer_app.registered_commands]
    for group in typer_app.registered_groups:
        found += commands_of(group.typer_instance, f"{prefix} {group.name}")
    return found


def test_every_command_is_documented():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## `(.*?)`", page, re.M)
    for command in commands_of(app, "pairwright"):
        assert any(heading.startswith(command) for heading in headings), command


def leaves_of(command, name: str):
    if not hasattr(command, "commands"):
        yield name, command
        return
    for child, below in command.commands.items():
        yield from leaves_of(below, f"{name} {child}")


def test_every_option_of_every_command_is_documented_where_the_command_is():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    introduction, *sections = re.split(r"^## ", page, flags=re.M)
    num_options = 0
    for name, command in leaves_of(get_command(app), "pairwright"):
        text = introduction + "".join(part for part in sections if re.match(rf"`{name}[ `]", part))
        for option in command.params:
            if option.param_type_name != "option" or "--help" in option.opts:
                continue
            num_options += 1
            spellings = "|".join(re.escape(spelling) for spelling in option.opts)
            assert re.search(rf"(?<![\w-])({spellings})(?![\w-])", text), f"{name} {option.opts}"
    assert num_options > 150


def test_every_format_has_a_section_with_an_example_and_what_is_not_read():
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    sections = dict(zip(re.findall(r"^## (.*)$", page, re.M), re.split(r"^## .*$", page, flags=re.M)[1:], strict=True))
    assert set(sections) == set(READERS)
    for name, section in sections.items():
        assert "```" in section, name
        assert "Not read" in section, name


def test_the_columns_of_the_table_are_listed():
    page = (ROOT / "docs" / "table.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", page, re.M)
    assert listed == [(column.name, str(column.type), column.meaning) for column in (*NARROW, *CONTENT)]


def test_the_configuration_of_the_page_loads(tmp_path):
    (text,) = blocks(ROOT / "docs" / "commands.md", "yaml")
    (tmp_path / "config.yaml").write_text(text)
    assert load_config(tmp_path / "config.yaml", environment={}).name == "first"


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", ROOT / "CHANGELOG.md"]:
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_quickstart_runs_in_an_empty_folder(tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    script = ROOT / "examples" / "quickstart" / "run.sh"
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "openai-chat\t1\t47" in done.stdout
    (rejected,) = (tmp_path / "runs/quickstart/experience/quarantine.jsonl").read_text().splitlines()
    assert json.loads(rejected)["line"] == 6

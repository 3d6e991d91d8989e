"""The shape of the code: import order, sizes of files and functions, names, the annotated tree, the documentation."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "pairwright"
FILES = sorted(SOURCE.rglob("*.py"))

# Folder order is data order: a module imports what stands before it here, or its own package.
ORDER = [
    "errors", "places", "jsontext", "arrays", "checks", "messages", "canonical", "records", "grouping", "gather", "config",
    "engines", "sources", "store", "generate", "collect", "pairs", "tokens", "ledger", "losses", "train", "evaluate", "backends", "service",
    "serve", "report", "flow", "cli",
]  # fmt: skip
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "base.py", "misc.py"}


def place(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imports_of(path: Path) -> set[str]:
    """The parts of pairwright that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pairwright."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "pairwright":
            found |= {alias.name for alias in node.names if alias.name in ORDER}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pairwright.")}
    return found


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name != "__init__.py" or path.parent != SOURCE], ids=str
)
def test_a_module_imports_only_what_lies_upstream(path):
    here = place(path)
    assert here in ORDER, f"{here} has no place in the order"
    downstream = {name for name in imports_of(path) if ORDER.index(name) > ORDER.index(here)}
    assert not downstream, f"{path.relative_to(ROOT)} imports downstream {sorted(downstream)}"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_files_and_functions_stay_small_and_are_introduced(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert ast.get_docstring(tree), "a module opens with what it does"
    assert path.name not in FORBIDDEN_NAMES
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def test_nothing_runs_code_from_data():
    """No pickle but the unpickler that refuses, no eval, no exec."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                if "pickle" in names:
                    assert path.name == "safe_pickle.py", path


def test_only_places_knows_addresses_and_how_to_write_a_file_whole():
    """Others take a `Place`, and write with `write_atomic` and its kin."""
    writers = {"places", "backends/runner.py"}  # the runner of a job is a script that imports nothing of ours
    for path in FILES:
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                is_writer = not writers.isdisjoint((name, name.split("/")[0]))
                assert is_writer or node.attr not in ("fsync", "replace", "rename"), f"{name}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and name.split("/")[0] != "places":
                assert "Remote" not in [alias.name for alias in node.names], f"{name}:{node.lineno}"
                assert node.module != "pairwright.places.address", f"{name}:{node.lineno}"


def test_the_annotated_tree_of_the_readme_is_true():
    """Every folder and top-level module of the package has its line in README.md, and every line its file."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = re.search(r"```\nsrc/pairwright/\n(.*?)```", readme, re.S)
    assert tree, "README.md has an annotated tree"
    listed = {line.split()[0].rstrip("/") for line in tree[1].splitlines() if line.startswith("  ") and line[2] != " "}
    there = {path.name for path in SOURCE.iterdir() if path.name not in ("__pycache__", "__init__.py", "py.typed")}
    assert listed == there


def test_every_top_level_name_exists_and_is_listed():
    import pairwright

    for name in pairwright.__all__:
        assert getattr(pairwright, name) is not None
    assert set(pairwright.__all__) == {*pairwright._HOME_OF, *pairwright._PACKAGES}

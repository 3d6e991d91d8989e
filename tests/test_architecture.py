"""The structure of the code: import order, no cycles, unique names, who writes files, the annotated tree."""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "pairwright"
FILES = sorted(SOURCE.rglob("*.py"))

# Folder order is data order: a module imports from folders listed before its own, or from its own package.
ORDER = [
    "errors",
    "interrupts",
    "paths",
    "records",
    "config",
    "engines",
    "sources",
    "store",
    "trinity",
    "generate",
    "scorers",
    "collection",
    "pairs",
    "export",
    "tokens",
    "models",
    "composer",
    "ledger",
    "losses",
    "training",
    "trl",
    "evaluation",
    "scores",
    "jobs",
    "service",
    "serve",
    "report",
    "view",
    "flow",
    "nat",
    "cli",
    "__main__",
]
# The same inside a package: a sub-package imports only siblings that are listed before it.
SUB_ORDER = {
    "sources": ["shapes", "datasets", "rollouts", "agents", "sessions", "frameworks", "tracing"],
    "collection": ["proxy"],
    "pairs": ["decisions", "candidates", "strategies"],
    "tokens": ["template", "spans", "batch", "stage"],
    "training": ["model", "channels"],
    "jobs": ["doctor"],
    "service": ["rows", "run", "hub", "openai_api", "page", "api"],
    "cli": ["commands"],
}
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "base.py", "misc.py"}


def module_name(path: Path) -> str:
    """`pairwright.pairs.build` for its file, and `pairwright.pairs` for the file of the package."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


def import_nodes(nodes: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run when a module is loaded: not those inside functions, not those for type checkers."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from import_nodes(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from import_nodes(node.body + node.orelse + node.finalbody)


def imported_modules(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The modules of pairwright that an import loads."""
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    else:
        full = {f"{node.module}.{alias.name}" for alias in node.names}
        names = {name if name in MODULES else str(node.module) for name in full}
    return {name for name in names if name in MODULES}


def imports_of(path: Path) -> set[str]:
    """All modules of pairwright that a file imports, wherever in the file."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = [imported_modules(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return set().union(*found) - {"pairwright"}


@pytest.mark.parametrize("path", [path for path in FILES if path != SOURCE / "__init__.py"], ids=str)
def test_a_module_imports_only_upstream_folders(path):
    own = module_name(path).split(".")[1]
    assert own in ORDER, f"{own} has no place in the order"
    packages = {name.split(".")[1] for name in imports_of(path)}
    downstream = {name for name in packages if ORDER.index(name) > ORDER.index(own)}
    assert not downstream, f"{path.relative_to(ROOT)} imports downstream {sorted(downstream)}"


@pytest.mark.parametrize("package", sorted(SUB_ORDER))
def test_a_sub_package_imports_only_siblings_before_it(package):
    order = SUB_ORDER[package]
    folders = {path.parent.name for path in (SOURCE / package).glob("*/__init__.py")}
    assert folders == set(order), f"{package} has the sub-packages {sorted(folders)}"
    for path in (SOURCE / package).glob("*/*.py"):
        for name in imports_of(path):
            parts = name.split(".")[1:]
            if parts[0] == package and len(parts) > 1 and parts[1] in order:
                assert order.index(parts[1]) <= order.index(path.parent.name), (
                    f"{path.relative_to(ROOT)} imports {name}"
                )


def test_every_sub_package_has_its_place_in_the_order():
    nested = {path.parent.parent.name for path in SOURCE.glob("*/*/__init__.py")}
    assert nested == set(SUB_ORDER)
    assert not list(SOURCE.glob("*/*/*/*.py")), "two levels of folders are enough"


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        name: set().union(
            *(imported_modules(node) for node in import_nodes(ast.parse(path.read_text(encoding="utf-8")).body))
        )
        for name, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_a_file_name_is_unique_in_the_tree():
    """So that a file can be opened by its name alone."""
    folders = defaultdict(list)
    for path in FILES:
        if path.name not in ("__init__.py", "__main__.py"):
            folders[path.name].append(str(path.parent.relative_to(SOURCE)))
    assert {name: where for name, where in folders.items() if len(where) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_module_has_a_docstring_and_a_telling_name(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert path.name not in FORBIDDEN_NAMES


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


def test_only_paths_knows_addresses_and_how_to_write_a_file_whole():
    """Others take a `Place`, and write with `write_atomic` and its kin."""
    writers = {"paths", "jobs/job_runner.py"}  # the runner of a job is a script that imports nothing of ours
    for path in FILES:
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                is_writer = not writers.isdisjoint((name, name.split("/")[0]))
                assert is_writer or node.attr not in ("fsync", "replace", "rename"), f"{name}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and name.split("/")[0] != "paths":
                assert "Remote" not in [alias.name for alias in node.names], f"{name}:{node.lineno}"
                assert node.module != "pairwright.paths.addresses", f"{name}:{node.lineno}"


def test_the_store_knows_no_format():
    """Formats are read in sources/; the store imports its registry and what all formats share."""
    for path in (SOURCE / "store").glob("*.py"):
        formats = {name for name in imports_of(path) if name.split(".")[1] == "sources" and len(name.split(".")) > 3}
        assert formats <= {"pairwright.sources.datasets.pairwright_rows"}, f"{path.name} imports {sorted(formats)}"


def test_the_annotated_tree_of_the_readme_is_true():
    """Every folder and top-level module of the package has its line in CONTRIBUTING.md, and every line its file."""
    readme = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = re.search(r"```\nsrc/pairwright/\n(.*?)```", readme, re.S)
    assert tree, "CONTRIBUTING.md has an annotated tree"
    listed = {line.split()[0].rstrip("/") for line in tree[1].splitlines() if line.startswith("  ") and line[2] != " "}
    there = {path.name for path in SOURCE.iterdir() if path.name not in ("__pycache__", "__init__.py", "py.typed")}
    assert listed == there


def test_every_top_level_name_exists_and_is_listed():
    import pairwright

    for name in pairwright.__all__:
        assert getattr(pairwright, name) is not None
    assert set(pairwright.__all__) == {*pairwright._HOME_OF, *pairwright._PACKAGES}


def test_benchmarks_tools_and_examples_import_names_that_exist():
    """Also in code that a benchmark runs as a text in a child process, which neither an import nor mypy sees."""
    missing = []
    for path in sorted(file for folder in ("bench", "tools", "examples") for file in (ROOT / folder).rglob("*.py")):
        for module, names in re.findall(r"^\s*from (pairwright[\w.]*) import (\([^)]*\)|.*)$", path.read_text(), re.M):
            for name in re.findall(r"(?<!as )\b(?!as\b)\w+", re.sub(r"#.*", "", names)):
                parent = importlib.import_module(module)
                is_module = hasattr(parent, "__path__") and find_spec(f"{module}.{name}")
                if not hasattr(parent, name) and not is_module:
                    missing.append(f"{path.relative_to(ROOT)}: {module}.{name}")
    assert not missing

"""The public names: described, with examples that run, loaded when they are used."""

import doctest
import inspect
import os
import re
import shutil
import subprocess
import sys
from types import ModuleType

import pytest

import pairwright as pw
from public_files import make_public_files


def public_object(name):
    """Return the object of a public name; for a callable package, its function."""
    found = getattr(pw, name)
    return getattr(found, name) if isinstance(found, ModuleType) and callable(found) else found


FUNCTIONS = [name for name in pw.__all__ if inspect.isfunction(public_object(name))]
CLASSES = [name for name in pw.__all__ if inspect.isclass(public_object(name)) and not name.endswith("Error")]


@pytest.fixture(scope="session")
def public_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    make_public_files(folder)
    return folder


@pytest.fixture
def workplace(public_files, tmp_path, monkeypatch):
    """A copy of the files, as the current folder."""
    shutil.copytree(public_files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_describes_its_arguments(name):
    function = public_object(name)
    documentation = inspect.getdoc(function) or ""
    assert "Args:" in documentation, f"{name} does not describe its arguments"
    for argument in inspect.signature(function).parameters.values():
        stars = "**" if argument.kind is argument.VAR_KEYWORD else ""
        assert re.search(rf"^ +{re.escape(stars + argument.name)}: ", documentation, re.M), f"{name}: {argument.name}"


@pytest.mark.parametrize("name", [*FUNCTIONS, *CLASSES])
def test_a_public_name_has_an_example_that_runs(name, workplace):
    found = public_object(name)
    tests = [test for test in doctest.DocTestFinder(recurse=False).find(found, name, globs={}) if test.examples]
    assert tests, f"{name} has no example"
    for test in tests:
        runner = doctest.DocTestRunner(verbose=False)
        assert runner.run(test).failed == 0


def test_losses_are_there_with_an_example_of_a_loop(workplace):
    (test,) = doctest.DocTestFinder(recurse=False).find(pw.losses.dpo, globs={})
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0
    with pytest.raises(pw.ConfigError, match="deepcopy"):
        import transformers

        model = transformers.AutoModelForCausalLM.from_pretrained("models/tiny")
        pw.losses.dpo(model, next(pw.Encoded("runs/first/tokens").batches(4)))


def test_importing_loads_nothing_heavy():
    code = "import sys, pairwright; dir(pairwright); print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert [name for name in modules if name.startswith("pairwright")] == ["pairwright"]
    heavy = {"torch", "polars", "pyarrow", "numpy", "msgspec", "pydantic", "transformers"}
    assert not heavy & set(modules)
    before = subprocess.run([sys.executable, "-c", "import sys; print(len(sys.modules))"], capture_output=True)
    assert len(modules) - int(before.stdout) < 40


def test_every_public_name_is_listed_by_dir():
    assert set(pw.__all__) <= set(dir(pw))
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = pw.tarin


SCRIPT = """
import pairwright as pw

table = pw.import_traces("traces/*.jsonl", "runs/second/experience", workers=2)
pairs = table.pairs(strategy="best-worst", min_gap=0.1)
data = pairs.encode("models/tiny", workers=2)
result = pw.train(data, model="models/tiny", output="runs/second/train", epochs=1)

async def play(task, policy, recorder):
    (answer,) = await policy.complete(f"say {task['colour']}", n=1, max_tokens=4)
    recorder.trajectory(f"say {task['colour']}", answer, reward=float(len(answer.text)))

tasks = [{"id": number, "colour": colour} for number, colour in enumerate(["red", "green", "blue"])]
proof = pw.evaluate("models/tiny", result, play, tasks)
print(len(table), len(pairs), len(data), result.num_steps, proof.comparisons[0].num_tasks)
"""


def test_the_flow_runs_as_a_script_without_a_guard(workplace):
    (workplace / "flow.py").write_text(SCRIPT)
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "flow.py"], capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout.splitlines() == ["8 4 4 1 3"], done.stderr
    assert done.stderr == ""


def test_the_flow_runs_in_a_notebook(workplace):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    collecting = "collected = pw.collect(play, tasks, output='runs/played', model='models/tiny')\nlen(collected.table)"
    cells = [SCRIPT, "table", "pairs", "data", "data.show(0)", collecting]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook, timeout=300, startup_timeout=300, resources={"metadata": {"path": str(workplace)}}
    ).execute()
    first, *others = notebook.cells
    printed = [output["text"] for output in first.outputs if output["name"] == "stdout"]  # tqdm warns on stderr
    assert printed == ["8 4 4 1 3\n"]
    shown = [cell.outputs[0]["data"] for cell in others]
    assert [("text/html" in data) for data in shown] == [True, True, True, True, False]
    assert "8 rows" in shown[0]["text/html"]
    assert "say red" in shown[1]["text/html"]
    assert shown[-1]["text/plain"] == "3"

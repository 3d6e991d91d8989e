"""The built-in examples (tic-tac-toe, exact tool calls), and new projects from templates.

Their files (workflow, tasks, base model) are in examples/; this module runs them as a user would.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from pairwright.config import Config, load_config, printable_config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.flow.run_flow import Flow
from pairwright.flow.stages import View
from pairwright.paths import lock_folder, write_atomic
from pairwright.records.messages import Json


@dataclass(frozen=True)
class Example:
    """`folder` is below examples/; `places` maps keys of its configuration to files that its prepare.py creates."""

    folder: str
    title: str
    preparation: str
    places: dict[str, str]


EXAMPLES = {
    "tic-tac-toe": Example(
        "tic_tac_toe",
        "tic-tac-toe",
        "training a small model on random legal moves",
        {"policy.model": "base", "evaluate.dataset": "exam.jsonl"},
    ),
    "tools": Example(
        "tool_agent",
        "exact tool calls",
        "converting SmolLM2-135M-Instruct, and drawing the tasks",
        {"model": "base", "collect.dataset": "train.jsonl", "evaluate.dataset": "heldout.jsonl"},
    ),
}


def example_folder(name: str) -> Path:
    """Return the folder of an example below examples/, in the installed package or in a checkout."""
    package = Path(str(resources.files("pairwright")))
    # a wheel has the examples inside the package, a checkout beside src/
    for place in (package / "examples" / name, package.parents[1] / "examples" / name):
        if (place / "config.yaml").is_file():
            return place
    raise PairwrightError(f"the example {name} is not installed; run this from a checkout of the project")


def example_config(example: Example, start: Path, overrides: list[tuple[str, str]]) -> tuple[Config, Json]:
    """Return the example's configuration with the files of `start`: loaded, and in the form for a file."""
    path = example_folder(example.folder) / "config.yaml"
    words = [*((key, str(start / name)) for key, name in example.places.items()), *overrides]
    return load_config(path, overrides=words), printable_config(path, overrides=words)


def prepare(example: Example, folder: Path, *, seed: int, view: View) -> Path:
    """Create the base model and the tasks, unless they exist. Returns their folder."""
    start = folder / "start"
    if start.exists():
        return start
    view.say(f"start: {example.preparation}")
    with lock_folder(folder, work="run"):
        run_preparation(example_folder(example.folder) / "prepare.py", start, seed=seed, view=view)
    return start


def run_preparation(script: Path, start: Path, *, seed: int, view: View) -> None:
    """Run the script that creates the model and tasks of a seed; the folder `start` appears when it is complete."""
    with write_atomic(start) as temporary:
        done = run_script([sys.executable, str(script), str(temporary), "--seed", str(seed)], view)
        if done.returncode:
            raise PairwrightError(f"{script}: {' '.join(done.stderr.strip().splitlines()[-1:])}")


_STEP = re.compile(r"step (\d+) of (\d+)")  # progress output of a script


def run_script(command: list[str], view: View) -> subprocess.CompletedProcess[str]:
    """Run a script of an example and show its progress. Its stderr is a file, since a full pipe would block it."""
    with tempfile.TemporaryFile("w+") as errors:
        # offline: the example needs nothing from the Hugging Face Hub
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process:
            try:
                for line in process.stdout or ():
                    if match := _STEP.search(line):
                        view.counting(int(match[1]), int(match[2]))
            except BaseException:  # including Ctrl-C: the script must not outlive this process
                process.kill()
                raise
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, stderr=errors.read())


def run_example(
    example: Example, folder: Path, *, seed: int, view: View, overrides: list[tuple[str, str]]
) -> tuple[Json, Json]:
    folder.mkdir(parents=True, exist_ok=True)
    start = prepare(example, folder, seed=seed, view=view)
    config, resolved = example_config(example, start, [("seed", str(seed)), *overrides])
    result = Flow(config, folder, base=example_folder(example.folder), view=view).run(resolved=resolved)
    return result, msgspec.json.decode((folder / "evaluation.json").read_bytes())


TEMPLATES = ("chat", "tools", "openai-sdk", "traces", "nat")  # of `pairwright init`, in examples/templates
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def create_project(folder: Path, template: str = "chat") -> list[str]:
    """Write a project to a new or empty folder; returns the names of its files."""
    if template not in TEMPLATES:
        raise ConfigError(f"--template {template}: expected one of {', '.join(TEMPLATES)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not empty: name a new folder, such as {folder}/{template}")
    source = example_folder(f"templates/{template}")
    with write_atomic(folder, error=ConfigError) as temporary:
        shutil.copytree(source, temporary, ignore=_LEFT_OUT)
        # the same for all templates
        shutil.copyfile(source.parent / "shared" / "make_model.py", temporary / "make_model.py")
        (temporary / ".gitignore").write_text("models/\nruns/\n__pycache__/\n", encoding="utf-8")
    return sorted(path.name for path in folder.iterdir())


def read_commands(readme: str) -> list[str]:
    """Return the commands of a README: the lines of its first code block, without comments.

    >>> read_commands("text\\n```\\npython a.py   # why\\npairwright run b.yaml\\n```\\n")
    ['python a.py', 'pairwright run b.yaml']
    """
    block = readme.split("```")[1]
    return [line.partition(" #")[0].rstrip() for line in block.strip().splitlines()]

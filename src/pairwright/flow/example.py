"""The built-in example: tic-tac-toe, from a model that knows the rules to one that plays well.

Its files (game, workflow, base model, exam) are in examples/tic_tac_toe; this module runs them as a user would.
"""

import os
import re
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import msgspec

from pairwright.config import Config, load_config, printable_config
from pairwright.errors import PairwrightError
from pairwright.flow.run_flow import Flow, write_config
from pairwright.flow.stages import View
from pairwright.paths import write_atomic
from pairwright.records.messages import Json


def example_folder(name: str = "tic_tac_toe") -> Path:
    """The folder of an example: in the installed package, or beside it in a checkout."""
    package = Path(str(resources.files("pairwright")))
    # a wheel has the examples inside the package, a checkout beside src/
    for place in (package / "examples" / name, package.parents[1] / "examples" / name):
        if (place / "config.yaml").is_file():
            return place
    raise PairwrightError(f"the example {name} is not installed; run this from a checkout of the project")


def example_config(start: Path, overrides: list[tuple[str, str]]) -> tuple[Config, Json]:
    """The example's configuration with the model and exam of `start`: loaded, and in the form to write to a file."""
    path = example_folder() / "config.yaml"
    places = [("policy.model", str(start / "base")), ("evaluate.dataset", str(start / "exam.jsonl"))]
    return load_config(path, overrides=[*places, *overrides]), printable_config(path, overrides=[*places, *overrides])


def prepare(folder: Path, *, seed: int, view: View) -> Path:
    """Create the base model and the exam, unless they exist. Returns their folder."""
    start = folder / "start"
    if start.exists():
        return start
    view.say("start: training a small model on random legal moves")
    # atomic: an interrupted preparation leaves no folder that a later run would take for complete
    with write_atomic(start) as temporary:
        command = [sys.executable, str(example_folder() / "prepare.py"), str(temporary), "--seed", str(seed)]
        done = _run_script(command, view)
        if done.returncode:
            raise PairwrightError(f"the example could not be prepared: {done.stderr.strip().splitlines()[-1:]}")
    return start


_STEP = re.compile(r"step (\d+) of (\d+)")  # what a script prints while it works


def _run_script(command: list[str], view: View) -> subprocess.CompletedProcess[str]:
    """Run a script of an example and show its progress. Its errors go to a file: a full pipe would block it."""
    with tempfile.TemporaryFile("w+") as errors:
        # offline: the example needs nothing from the Hugging Face Hub
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process:
            try:
                for line in process.stdout or ():
                    if match := _STEP.search(line):
                        view.counting(int(match[1]), int(match[2]))
            except BaseException:  # also Ctrl-C: the script must not outlive us
                process.kill()
                raise
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, stderr=errors.read())


def run_example(folder: Path, *, seed: int, view: View, overrides: list[tuple[str, str]]) -> tuple[Json, Json]:
    """Run the whole example in a folder. Returns the result of the run and the evaluation of every metric."""
    folder.mkdir(parents=True, exist_ok=True)
    start = prepare(folder, seed=seed, view=view)
    config, resolved = example_config(start, [("seed", str(seed)), *overrides])
    write_config(folder, resolved)
    result = Flow(config, folder, base=example_folder(), view=view).run()
    return result, msgspec.json.decode((folder / "evaluation.json").read_bytes())

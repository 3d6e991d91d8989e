"""Create the start of a seed: the folder of the model, and the errands of both splits.

python prepare.py FOLDER [--seed 0]
"""

import json
import runpy
import sys
from pathlib import Path

from errands import make_errands

NUM_ERRANDS = {"train": 32, "heldout": 40}
MODEL = Path(__file__).parent.parent / "tool_agent" / "prepare.py"


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in NUM_ERRANDS.items():
        lines = "".join(json.dumps(task) + "\n" for task in make_errands(split, number, seed=seed))
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    runpy.run_path(str(MODEL))["convert_model"](folder / "base")


if __name__ == "__main__":
    main()

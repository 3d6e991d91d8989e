"""Worker process of a job: `python -m pairwright.service.run.worker JOB_FOLDER`. It runs as a local job (`jobs/`).

Imports and pairs the dataset, then trains. After a crash it reuses the finished tables and resumes training from the
last checkpoint.
"""

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from pairwright.config import load_config
from pairwright.errors import PairwrightError
from pairwright.ledger.run_status import FILE_NAME
from pairwright.paths import write_atomic
from pairwright.service.run.training_data import SFT_TABLES, DataFile, write_training_data
from pairwright.service.settings import WORK_FILE

LINE_SECONDS = 10.0


def prepare(folder: Path) -> dict[str, Any]:
    """Write the training data, unless it exists, and return the arguments of `train`."""
    work = msgspec.json.decode((folder / WORK_FILE).read_bytes())
    data, run = folder / "data", folder / "run"
    if not data.is_dir():  # gets this name when complete
        for leftover in folder.glob(".data.*tmp"):  # of a killed worker
            shutil.rmtree(leftover, ignore_errors=True)
        files = [DataFile(file["path"], Path(file["blob"]), file["split"]) for file in work["files"]]
        with write_atomic(data) as temporary:
            temporary.mkdir()
            counts = write_training_data(files, temporary, training_type=work["training_type"])
        print(f"{counts['train']:,} rows to train on, {counts['validation']:,} to validate on", flush=True)
    sources: dict[str, Path] = {}
    if work["training_type"] == "dpo":
        sources["pairs"] = data / "pairs"
    else:
        sources["experience"] = data / SFT_TABLES["train"]
        if any(file["split"] == "validation" and file["size"] for file in work["files"]):
            sources["validation"] = data / SFT_TABLES["validation"]
    # train.json exists once training has begun: then the worker resumes.
    is_begun = (run / FILE_NAME).exists()
    config = load_config(folder / "config.yaml")
    return {"config": config, "model": Path(work["model"]), "output": run, "resume": is_begun, **sources}


class _Lines:
    """Prints notes immediately and progress every few seconds. The log output also serves as a heartbeat."""

    def __init__(self) -> None:
        self._next = 0.0

    def show(self, event: dict[str, Any]) -> None:
        if event["kind"] == "note":
            print(f"note: {event['note']}", flush=True)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            names = ("done", "total", "step", "num_steps", "loss", "eval_loss")
            print(event["kind"], *(f"{name} {event[name]:.6g}" for name in names if name in event), flush=True)


def main() -> None:
    try:
        arguments = prepare(Path(sys.argv[1]))
        try:
            from pairwright.training import train
        except ImportError as error:
            raise PairwrightError(
                f"training needs torch and transformers ({error}): pip install 'pairwright[train]'"
            ) from None
        result = train(progress=_Lines().show, **arguments)
    except PairwrightError as error:
        print(f"pairwright: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        sys.exit(f"pairwright: {error}")
    print(f"{result.num_steps:,} updates; the model is in {result.model}", flush=True)


if __name__ == "__main__":
    main()

"""One job in a process of its own: `python -m pairwright.service.worker JOB_FOLDER`.

Makes tables of the dataset, then becomes the trainer (`exec`): one process, one id, one lock. Run again after a
crash it finds them there and the trainer goes on from its last checkpoint.
"""

import os
import shutil
import sys
from pathlib import Path

import msgspec

from pairwright.errors import PairwrightError
from pairwright.places import write_atomic
from pairwright.service.assignments import WORK_FILE
from pairwright.service.training_data import SFT_TABLES, DataFile, write_training_data


def prepare(folder: Path) -> list[str]:
    """Make the data of a job if it is not there yet; returns the command that trains on it."""
    work = msgspec.json.decode((folder / WORK_FILE).read_bytes())
    data, run = folder / "data", folder / "run"
    if not data.is_dir():  # it takes this name when it is complete
        for leftover in folder.glob(".data.*tmp"):  # of a worker that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        files = [DataFile(file["path"], Path(file["blob"]), file["split"]) for file in work["files"]]
        with write_atomic(data) as temporary:
            temporary.mkdir()
            counts = write_training_data(files, temporary, training_type=work["training_type"])
        print(f"{counts['train']:,} rows to train on, {counts['validation']:,} to validate on", flush=True)
    if work["training_type"] == "dpo":
        sources = ["--pairs", str(data / "pairs")]
    else:
        sources = ["--experience", str(data / SFT_TABLES["train"])]
        if any(file["split"] == "validation" and file["size"] for file in work["files"]):
            sources += ["--validation", str(data / SFT_TABLES["validation"])]
    command = [*work["command"], *sources, "--model", work["model"], "-o", str(run)]
    command += ["--config", str(folder / "config.yaml")]
    return [*command, "--resume"] if run.is_dir() else command


def main() -> None:
    try:
        command = prepare(Path(sys.argv[1]))
    except (PairwrightError, OSError) as error:
        sys.exit(f"pairwright: {error}")
    sys.stdout.flush()
    os.execv(command[0], command)


if __name__ == "__main__":
    main()

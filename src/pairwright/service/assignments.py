"""What the worker of a job is told, as files in the job's folder: written by the service, read by the worker."""

import os
from pathlib import Path
from typing import Any

import msgspec

from pairwright.store.journal import sync_folder

WORK_FILE = "work.json"


def write_work(folder: Path, work: dict[str, Any]) -> None:
    """What the worker of a job is to do; the configuration is written beside it, as YAML (of which JSON is a part)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"name": folder.name, "seed": work["seed"], "train": work["train"]}
    for name, value in (("config.yaml", config), (WORK_FILE, work)):
        hidden = folder / f".{name}.tmp"
        with open(hidden, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(folder / name)
    sync_folder(folder)

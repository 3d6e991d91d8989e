"""What the worker of a job is told, as files in the job's folder: written by the service, read by the worker."""

from pathlib import Path
from typing import Any

from pairwright.places import write_json

WORK_FILE = "work.json"


def write_work(folder: Path, work: dict[str, Any]) -> None:
    """What the worker of a job is to do; the configuration is written beside it, as YAML (of which JSON is a part)."""
    config = {"name": folder.name, "seed": work["seed"], "train": work["train"]}
    for name, value in (("config.yaml", config), (WORK_FILE, work)):
        write_json(folder / name, value)

"""Hugging Face datasets: folders that `save_to_disk` wrote, and datasets of the Hub by their id.

`datasets:ORG/NAME`, `datasets:ORG/NAME:SPLIT` or `datasets:ORG/NAME/CONFIG:SPLIT` is loaded by the library `datasets`
(the extra `hf`), which keeps it as Arrow files; these are then read as any other file is. `hf://datasets/ORG/NAME/FILE`
is an address, as `s3://...` is.
"""

import os
from pathlib import Path

from pairwright.errors import SourceError
from pairwright.paths import Place, place

PREFIX = "datasets:"
# What `save_to_disk` writes beside the rows.
_NO_ROWS = frozenset({"dataset_info.json", "state.json", "dataset_dict.json"})


def hub_files(text: str) -> list[tuple[Place, str]]:
    """Return the Arrow files of a dataset of the Hub, each with a name; raise SourceError if it cannot be loaded."""
    name, _, split = text.removeprefix(PREFIX).partition(":")
    parts = [part for part in name.split("/") if part]
    if not 1 <= len(parts) <= 3:
        raise SourceError(f"{text}: expected datasets:ORG/NAME, datasets:ORG/NAME:SPLIT or datasets:ORG/NAME/CONFIG")
    try:
        import datasets
    except ImportError:
        raise SourceError(f"{text}: needs the library datasets: pip install 'pairwright[hf]'") from None
    config = parts[2] if len(parts) == 3 else None
    try:
        loaded = datasets.load_dataset("/".join(parts[:2]), config, split=split or None)
    except Exception as error:  # of the network, the Hub or the files in it: all are the same to the user
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise SourceError(f"{text}: cannot be loaded: {reason[0]}") from None
    splits = loaded if isinstance(loaded, dict) else {split: loaded}
    files = [
        (place(Path(file["filename"])), f"{'/'.join(parts)}/{name}/{os.path.basename(file['filename'])}")
        for name, rows in splits.items()
        for file in rows.cache_files
    ]
    if not files:
        raise SourceError(f"{text}: the dataset has no files")
    return files


def without_bookkeeping(files: list[tuple[Place, str]]) -> list[tuple[Place, str]]:
    """Leave out what a dataset on disk has beside its rows: descriptions, and caches of functions applied to it."""
    folders = {file.parent for file, _ in files if file.name.endswith(".arrow")}
    # A folder of splits has its own description, and the rows in the folders below it.
    folders |= {folder.parent for folder in folders}
    return [
        (file, name)
        for file, name in files
        if not (file.parent in folders and (file.name in _NO_ROWS or file.name.startswith("cache-")))
    ]

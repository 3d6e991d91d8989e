"""Places of files: a path on this machine, or an address such as `s3://bucket/runs/first`.

A local path is a `pathlib.Path`, an address a `Remote` with the same methods, as far as an object store supports them.
Both are a `Place`, which `place` parses from text. Stages take a `Place` and call the functions here; no other package
distinguishes the two. All writes are atomic: see `write_atomic`.
"""

from pairwright.paths.addresses import Place
from pairwright.paths.model_folders import ModelFolderError, download_model, find_model, is_hub_id
from pairwright.paths.output_folders import claim_file, claim_folder
from pairwright.paths.parquet_files import at_once
from pairwright.paths.paths import (
    arrow_input,
    deliver,
    is_address,
    list_names,
    local_copy,
    local_folder,
    local_path,
    local_workspace,
    open_binary,
    place,
    size_of,
    stamp_of,
)
from pairwright.paths.temporary_folders import build_folder, scratch, stage_file, workspace_of
from pairwright.paths.writing import (
    append_lines,
    append_synced,
    lock_folder,
    publish,
    repair_tail,
    sync,
    whole_lines,
    write_atomic,
    write_bytes,
    write_json,
    write_together,
)

__all__ = [
    "ModelFolderError",
    "Place",
    "append_lines",
    "append_synced",
    "arrow_input",
    "at_once",
    "build_folder",
    "claim_file",
    "claim_folder",
    "deliver",
    "download_model",
    "find_model",
    "is_address",
    "is_hub_id",
    "list_names",
    "local_copy",
    "local_folder",
    "local_path",
    "local_workspace",
    "lock_folder",
    "open_binary",
    "place",
    "publish",
    "repair_tail",
    "scratch",
    "size_of",
    "stage_file",
    "stamp_of",
    "sync",
    "whole_lines",
    "workspace_of",
    "write_atomic",
    "write_bytes",
    "write_json",
    "write_together",
]

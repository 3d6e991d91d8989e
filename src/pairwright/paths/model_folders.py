"""Model folders by path or Hub id, for every `--model` and `--tokenizer`.

A path takes precedence. A Hub id (org/name) is looked up in the cache of huggingface_hub, and downloaded if incomplete;
HF_HUB_OFFLINE=1 disables the network. Only files needed for loading a model are requested: safetensors weights, JSON,
vocabularies and templates, but no code and no pickled weights.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from pairwright.errors import ConfigError, PairwrightError
from pairwright.paths.paths import is_address, place

# models/, datasets/ and spaces/ are not organisations but pages of the Hub
_HUB_ID = re.compile(r"(?!(?:models|datasets|spaces)/)[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
VOCABULARY_FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "additional_chat_templates/*")
MODEL_FILES = ("*.safetensors", *VOCABULARY_FILES)


class ModelFolderError(PairwrightError):
    """A model that is neither a folder here nor on the Hub."""


def is_hub_id(name: str | Path) -> bool:
    """Whether a name has the form org/name and is not a path of this machine.

    >>> [is_hub_id(name) for name in ("HuggingFaceTB/SmolLM2-135M-Instruct", "./mine", "a/b/c", "models/mine")]
    [True, False, False, False]
    """
    return _HUB_ID.fullmatch(str(name)) is not None and not Path(name).exists()


def find_model(name: str | Path, *, weights: bool = True, download: bool = True) -> Path:
    """Return the local folder of a model, given as a folder or a Hub id; downloads what is missing if `download`.

    Without `weights`, the vocabulary and its template are enough.
    """
    if is_address(name):
        raise ModelFolderError(f"{place(name)}: an address, but a model is read on this machine: copy its folder here")
    folder = Path(name)
    if folder.is_dir():
        return folder
    if folder.suffix == ".gguf" and folder.is_file():
        raise ModelFolderError(f"{folder}: a GGUF file: pairwright model convert {folder} -o models/{folder.stem}")
    if not is_hub_id(name):
        raise ModelFolderError(
            f"{folder}: no such folder; expected the folder of a model (a new project has make_model.py), or a Hub "
            "id (org/name)"
        )
    hub = _import_hub(str(name))
    try:
        snapshot = Path(hub.snapshot_download(str(name), local_files_only=True))
    except (OSError, ValueError):  # raised if the model is not in the cache
        snapshot = None
    if snapshot is not None and (not weights or any(snapshot.glob("*.safetensors"))):
        return snapshot
    if not download:
        raise ModelFolderError(
            f"{name}: no such folder, and not in the cache of huggingface_hub: {_how_to_get(str(name))}"
        )
    return download_model(str(name), weights=weights)


def download_model(name: str, folder: Path | None = None, *, weights: bool = True, revision: str | None = None) -> Path:
    """Download a model of the Hub, by default its newest revision, into the cache or `folder`; return its path."""
    hub = _import_hub(name)
    patterns = list(MODEL_FILES if weights else VOCABULARY_FILES)
    where = {} if folder is None else {"local_dir": folder}
    try:
        return Path(hub.snapshot_download(name, allow_patterns=patterns, revision=revision, **where))
    except Exception as error:  # errors of the network, the Hub or the disk have the same remedy
        raise ModelFolderError(_explain(name, error)) from None


def require_empty(folder: Path, *, of: str) -> None:
    """Raise unless a folder is free for `of`; an interrupted download may be resumed."""
    # huggingface_hub keeps the state for resuming in .cache
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if folder.is_file() or (names and ".cache" not in names):
        raise ConfigError(f"{folder}: is not empty: name a new folder for {of}, or use what is there")


def _explain(name: str, error: Exception) -> str:
    kind = type(error).__name__
    if kind in ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError", "ConnectTimeout"):
        return (
            f"{name}: no such folder, not in the cache of huggingface_hub, and the Hub cannot be reached from here: "
            f"on a machine that reaches it: {_how_to_get(name)}; then copy that folder here and name it"
        )
    if kind in ("RepositoryNotFoundError", "GatedRepoError"):
        return (
            f"{name}: no such folder, and the Hub has no such model for you: check the name, or log in: hf auth login"
        )
    lines = str(error).strip().splitlines() or [kind]
    return f"{name}: no such folder, and cannot be downloaded: {kind}: {lines[0]}"


def _how_to_get(name: str) -> str:
    return f"pairwright model fetch {name} -o models/{name.rpartition('/')[2]}"


def _import_hub(name: str) -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise ModelFolderError(f"{name}: a Hub id needs huggingface_hub: pip install huggingface_hub") from None

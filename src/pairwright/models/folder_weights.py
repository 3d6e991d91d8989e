"""The weights of a model folder as float32 arrays, one tensor at a time; an adapter is merged into its base.

Invariant: adapters with features that would be lost (DoRA, biases, whole modules, ranks per module) are refused.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pairwright.errors import ConfigError
from pairwright.models.gguf_tables import ConvertError
from pairwright.records.messages import Json

DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_IN_SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
TEMPLATES = "additional_chat_templates"  # folder of named templates
# Keys of adapter_config.json that change the meaning of the two matrices, with their neutral values.
_PLAIN_LORA: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
}


def find_trained(path: Path) -> Path:
    """Return the model or adapter folder of a run: the folder itself, or the folder that training wrote in it."""
    for folder in (path, *(path / name for name in ("model", "train/model", "adapter", "train/adapter"))):
        if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
            return folder
    raise ConfigError(f"{path}: neither a model folder nor a run with a trained model or adapter")


def tokenizer_folder(trained: Path, base: Path) -> Path:
    """Return the folder with a trained model's tokenizer; for an adapter without one, its base model's."""
    return trained if (trained / "tokenizer_config.json").is_file() else base


def read_json(path: Path) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConvertError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConvertError(f"{path}: expected a JSON object")
    return content


def copy_tokenizer(base: Path, folder: Path) -> None:
    """Copy the files of a tokenizer and its templates, except those that already exist."""
    for name in TOKENIZER_FILES:
        if (base / name).is_file() and not (folder / name).exists():
            shutil.copyfile(base / name, folder / name)
    if (base / TEMPLATES).is_dir() and not (folder / TEMPLATES).exists():
        shutil.copytree(base / TEMPLATES, folder / TEMPLATES)


class Adapter:
    """A LoRA adapter folder: `pairs` maps a weight of the base to its matrices A (r, in) and B (out, r)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, read_json(folder / "adapter_config.json")
        for key, plain in _PLAIN_LORA.items():
            if self.config.get(key, plain[0]) not in plain:
                raise ConvertError(f"{folder}: an adapter with {key}={self.config[key]!r}: only plain LoRA is exported")
        tensors = read_tensors(folder / "adapter_model.safetensors")
        self.pairs: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        for name, values in tensors.items():
            stem, found, _ = name.partition(".lora_A.")
            other = tensors.get(name.replace(".lora_A.", ".lora_B."))
            if found and other is not None:
                self.pairs[stem.removeprefix("base_model.model.") + ".weight"] = (values, other)
        if len(tensors) != 2 * len(self.pairs) or not self.pairs:
            raise ConvertError(f"{folder}: {len(tensors)} tensors, of which {2 * len(self.pairs)} are LoRA matrices")

    def scale(self, rank: int) -> float:
        divisor = math.sqrt(rank) if self.config.get("use_rslora") else rank
        return float(self.config["lora_alpha"]) / divisor


def read_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConvertError(f"{path}: cannot be read: {error}") from error


class FolderWeights:
    """Reads the tensors of a model folder; with `adapter`, each with the adapter's part added.

    `dtype` is the type of all matrices in the folder, or float32 if types differ; `shapes` maps names to shapes.
    """

    def __init__(self, folder: Path, adapter: Adapter | None = None) -> None:
        from safetensors import safe_open

        self.folder, self._adapter, self._stack = folder, adapter, ExitStack()
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ConvertError(f"{folder}: no *.safetensors")
        self._files: dict[str, Any] = {}
        for path in files:
            file = self._stack.enter_context(safe_open(path, "np"))
            self._files |= dict.fromkeys(file.keys(), file)
        slices = {name: file.get_slice(name) for name, file in self._files.items()}
        self.shapes = {name: tuple(slices[name].get_shape()) for name in slices}
        types = {slices[name].get_dtype() for name, shape in self.shapes.items() if len(shape) > 1}
        known = {code: name for name, code in _IN_SAFETENSORS.items()}
        if not types <= known.keys():
            raise ConvertError(
                f"{folder}: weights of the types {', '.join(sorted(types))}: expected {', '.join(known)}"
            )
        self.dtype = known[types.pop()] if len(types) == 1 else "float32"
        unknown = sorted(set(adapter.pairs) - set(self.shapes)) if adapter is not None else []
        if unknown:
            raise ConvertError(f"{folder}: has no {unknown[0]}, which the adapter changes")

    def __enter__(self) -> "FolderWeights":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def read(self, name: str) -> NDArray[np.float32]:
        weights: NDArray[np.float32] = self._files[name].get_tensor(name).astype(np.float32)
        if self._adapter is not None and name in self._adapter.pairs:
            a, b = self._adapter.pairs[name]
            weights += self._adapter.scale(len(a)) * (b @ a)
        return weights


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], NDArray[Any]],
    *,
    dtype: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write the tensors in the order of `shapes`, one at a time to save memory; return the bytes of the file."""
    header: Json = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
        header[name] = {"dtype": _IN_SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of eight
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, name in enumerate(shapes, start=1):
            file.write(np.ascontiguousarray(read(name).astype(DTYPES[dtype])).tobytes())
            progress(number, len(shapes))
    return path.stat().st_size

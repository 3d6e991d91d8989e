"""Loads the model and the tokenizer of a folder. Code in a model folder is never executed."""

import json
from pathlib import Path
from typing import Any

from pairwright.generate.cpu_kernels import prepare_16_bits
from pairwright.generate.devices import choose_device, dtype_on
from pairwright.generate.requests import GenerateError

_DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_model(folder: Path, *, device: str | None, dtype: str) -> Any:
    """Load the causal language model of a folder, or an adapter merged into its base model, ready to generate.

    device: cpu, cuda, mps, ...; None: the best one on this machine.
    dtype: auto, float32, bfloat16 or float16.
    """
    if dtype not in _DTYPES:
        raise GenerateError(f"dtype: got {dtype!r}, expected one of {', '.join(_DTYPES)}")
    if not folder.is_dir():
        raise GenerateError(f"{folder}: no such folder; expected a model folder with config.json")
    if not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        raise GenerateError(f"{folder}: neither config.json nor adapter_config.json: not a model folder")
    _check_installed()
    import torch
    from transformers import AutoModelForCausalLM

    device = choose_device(device)

    dtype = dtype_on(device, dtype)
    if device == "cpu" and dtype != "float32":
        prepare_16_bits()
    torch_dtype = dtype if dtype == "auto" else getattr(torch, dtype)
    base = base_of_adapter(folder)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            base or folder, dtype=torch_dtype, local_files_only=True, trust_remote_code=False
        )
        if base is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(folder), local_files_only=True).merge_and_unload()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise GenerateError(f"{folder}: cannot be loaded as a causal language model: {_first_line(error)}") from error
    return model.to(device).eval()


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder; an adapter without a tokenizer has that of its base model."""
    _check_installed()
    from transformers import AutoTokenizer

    base = base_of_adapter(folder)
    place = folder if base is None or (folder / "tokenizer_config.json").exists() else base
    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise GenerateError(f"{place}: no tokenizer that can be loaded: {_first_line(error)}") from error


def base_of_adapter(folder: Path) -> Path | None:
    """The folder of an adapter's base model; None if the folder is not an adapter."""
    config_path = folder / "adapter_config.json"
    if not config_path.is_file():
        return None
    try:
        base_name = json.loads(config_path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError) as error:
        raise GenerateError(f"{config_path}: not a JSON object: {error}") from None
    if not isinstance(base_name, str) or not base_name:
        raise GenerateError(f"{config_path}: names no base model (base_model_name_or_path)")
    for place in (Path(base_name), folder / base_name):  # a relative path may be meant from either folder
        if place.is_dir():
            return place
    raise GenerateError(
        f"{config_path}: the base model {base_name!r} is not a folder here; put it there or change the path"
    )


def _check_installed() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise GenerateError(
            f"a local model needs torch and transformers ({error}): pip install 'pairwright[train]'"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]

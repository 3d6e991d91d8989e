"""Convert GGUF to a model folder: safetensors weights, config.json, tokenizer, chat template. Needs `gguf`, not torch.

Supports the dense families llama (also Mistral and SmolLM2), qwen2 and qwen3. Anything in a file that would be lost (an
unknown tensor, another scaling of rotary positions, experts) is refused by name.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pairwright.errors import ConfigError
from pairwright.models.folder_weights import copy_tokenizer, write_safetensors
from pairwright.models.gguf_tables import (
    FAMILIES,
    ROPE_FACTORS,
    SETTINGS,
    ConvertError,
    llama3_factors,
    map_names,
    rotary_heads,
    split_rotary,
)
from pairwright.models.gguf_tokenizer import build_tokenizer, stop_ids, tokenizer_settings
from pairwright.paths import write_atomic, write_json
from pairwright.records.messages import Json

DType = Literal["auto", "float32", "bfloat16", "float16"]


def convert_gguf(
    file: Path,
    folder: Path,
    *,
    dtype: DType = "auto",
    tokenizer: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Json:
    """Write a model folder from a GGUF file; return its family, parameters, dtype and bytes.

    file: the GGUF file.
    folder: the folder to write; it must be new or empty.
    dtype: type of the written weights. auto: float32 or float16 if all matrices of the file are, else bfloat16.
    tokenizer: a folder whose tokenizer is copied, instead of the one in the file.
    progress: called with the number of tensors written and the total.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not empty: name a new folder")
    fields, tensors = open_gguf(file)
    family = fields.get("general.architecture")
    if family not in FAMILIES:
        raise ConvertError(f"{file}: a model of the family {family!r}; supported: {', '.join(FAMILIES)}")
    if fields.get(f"{family}.expert_count"):
        raise ConvertError(f"{file}: a mixture of experts, which is not supported")
    names = map_names(tensors, str(file), num_blocks=_field(fields, "block_count", file))
    chosen = _choose_dtype(tensors) if dtype == "auto" else dtype
    with write_atomic(folder, error=ConvertError) as temporary:
        temporary.mkdir()
        config = _config(fields, tensors, file) | {"dtype": chosen}
        write_json(temporary / "config.json", config)
        bos, pad = config["bos_token_id"], config["pad_token_id"]
        ends = {"bos_token_id": bos, "eos_token_id": stop_ids(fields), "pad_token_id": pad}
        given = {name: value for name, value in ends.items() if value not in (None, [])}
        write_json(temporary / "generation_config.json", given)
        _write_tokenizer(fields, temporary, file, tokenizer)
        heads = config["num_attention_heads"], config["num_key_value_heads"]
        in_file = {target: name for name, target in names.items()}

        def read(target: str) -> NDArray[np.float32]:
            return read_tensor(tensors[in_file[target]], rotary_heads(in_file[target], family, *heads))

        shapes = {target: shape_of(tensors[name]) for name, target in names.items()}
        size = write_safetensors(temporary / "model.safetensors", shapes, read, dtype=chosen, progress=progress)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    return {"family": family, "parameters": parameters, "dtype": chosen, "bytes": size, "folder": str(folder)}


def open_gguf(file: Path) -> tuple[Json, dict[str, Any]]:
    """Return metadata and tensors; tensors are read lazily."""
    import gguf

    if not file.is_file():
        raise ConvertError(f"{file}: no such file")
    with open(file, "rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ConvertError(f"{file}: not a GGUF file")
    try:
        reader = gguf.GGUFReader(file)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except Exception as error:  # the reader raises various errors for a truncated or broken file
        raise ConvertError(f"{file}: cannot be read: {type(error).__name__}: {error}") from error
    if fields.get("split.count", 1) > 1:
        raise ConvertError(f"{file}: one of {fields['split.count']} parts: join them with gguf-split --merge first")
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Return the shape with rows first, like transformers; GGUF has columns first."""
    return tuple(int(width) for width in reversed(tensor.shape))


def read_tensor(tensor: Any, heads: int | None) -> NDArray[np.float32]:
    """Read a tensor in transformers' layout; `heads` if its rows are in llama.cpp's rotary order."""
    import gguf

    weights: NDArray[np.float32] = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shape_of(tensor))
    return weights if heads is None else split_rotary(weights, heads)


def _field(fields: Json, name: str, file: Path, default: Any = None) -> Any:
    value = fields.get(f"{fields['general.architecture']}.{name}", default)
    if value is None:
        raise ConvertError(f"{file}: has no {fields['general.architecture']}.{name}")
    return value


def _choose_dtype(tensors: dict[str, Any]) -> str:
    """Return float32 or float16 if all matrices are, else bfloat16: quantised weights have larger errors than it."""
    types = {tensor.tensor_type.name for tensor in tensors.values() if len(tensor.shape) > 1}
    if types == {"F32"}:
        return "float32"
    return "float16" if types == {"F16"} else "bfloat16"


def _config(fields: Json, tensors: dict[str, Any], file: Path) -> Json:
    family = fields["general.architecture"]
    architecture, model_type = FAMILIES[family]
    heads, width = _field(fields, "attention.head_count", file), _field(fields, "embedding_length", file)
    defaults = {"attention.head_count_kv": heads, "attention.key_length": width // heads, "rope.freq_base": 10_000.0}
    config = {name: _field(fields, key, file, defaults.get(key)) for key, name in SETTINGS.items()}
    theta = config.pop("rope_theta")
    rope = {"rope_theta": theta, "rope_type": "default"}
    return config | {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),  # shapes of the file have the columns first
        "hidden_act": "silu",
        "rms_norm_eps": float(f"{config['rms_norm_eps']:.6g}"),
        "rope_parameters": rope | _rope_scaling(fields, tensors, file, head_dim=config["head_dim"], theta=theta),
        "attention_bias": family == "llama" and "blk.0.attn_q.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def _rope_scaling(fields: Json, tensors: dict[str, Any], file: Path, *, head_dim: int, theta: float) -> Json:
    """Return the scaling of rotary positions; empty if there is none."""
    family = fields["general.architecture"]
    if ROPE_FACTORS in tensors:
        factors = np.array(tensors[ROPE_FACTORS].data, dtype=np.float32)
        for factor in (8.0, 32.0):  # Llama 3.1, and 3.2
            scaling = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            expected = llama3_factors(head_dim, theta, factor)
            if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-4):
                return {"rope_type": "llama3", **scaling, "original_max_position_embeddings": 8192}
        raise ConvertError(f"{file}: {ROPE_FACTORS} differs from the factors of Llama 3")
    kind = fields.get(f"{family}.rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise ConvertError(f"{file}: scales rotary positions by {kind!r}, expected linear or yarn")
    scaling = {"rope_type": kind, "factor": _field(fields, "rope.scaling.factor", file)}
    if kind == "yarn":
        original = _field(fields, "rope.scaling.original_context_length", file)
        scaling["original_max_position_embeddings"] = original
    return scaling


def _write_tokenizer(fields: Json, folder: Path, file: Path, source: Path | None) -> None:
    if source is not None:
        if not (source / "tokenizer.json").is_file():
            raise ConfigError(f"--tokenizer {source}: has no tokenizer.json")
        copy_tokenizer(source, folder)
        return
    try:
        build_tokenizer(fields, str(file)).save(str(folder / "tokenizer.json"))
        settings = tokenizer_settings(fields)
    except (KeyError, IndexError, TypeError, ValueError) as error:  # a key is missing or has another type
        raise ConvertError(f"{file}: no tokenizer in it: {type(error).__name__}: {error}") from error
    write_json(folder / "tokenizer_config.json", settings)
    template = fields.get("tokenizer.chat_template")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")

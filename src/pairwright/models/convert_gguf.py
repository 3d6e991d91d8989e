"""GGUF to a model folder: weights as safetensors, config.json, tokenizer and chat template. Needs `gguf`, not torch.

Known are the families llama (also Mistral and SmolLM2), qwen2 and qwen3, dense. Whatever of a file would be lost (an
unknown tensor, another way of scaling rotary positions, experts) is refused with its name.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pairwright.errors import ConfigError, PairwrightError
from pairwright.models.gguf_tokenizer import build_tokenizer, stop_ids, tokenizer_settings
from pairwright.paths import write_atomic, write_json
from pairwright.records.messages import Json

DType = Literal["auto", "float32", "bfloat16", "float16"]
_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

_FAMILIES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
# Name of a tensor in the file, without .weight or .bias: its name in transformers.
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"  # Llama 3: what divides each frequency
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


class ConvertError(PairwrightError):
    """A file that is no model of a known family."""


def convert_gguf(
    file: Path,
    folder: Path,
    *,
    dtype: DType = "auto",
    tokenizer: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Json:
    """Write a model folder from a GGUF file; returns its family, parameters, dtype and bytes.

    file: the GGUF file.
    folder: the folder to write; it must not exist, or be empty.
    dtype: of the weights. auto: as in the file, and bfloat16 if they are quantised.
    tokenizer: a folder whose tokenizer is copied, instead of the one in the file.
    progress: is called with the tensors written and their number.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not empty: name a new folder")
    fields, tensors = _open(file)
    family = fields.get("general.architecture")
    if family not in _FAMILIES:
        raise ConvertError(f"{file}: a model of the family {family!r}; known are {', '.join(_FAMILIES)}")
    if fields.get(f"{family}.expert_count"):
        raise ConvertError(f"{file}: a mixture of experts, which is not known here")
    names = _map_names(tensors, str(file), num_blocks=_field(fields, "block_count", file))
    chosen = _choose_dtype(tensors) if dtype == "auto" else dtype
    with write_atomic(folder, error=ConvertError) as temporary:
        temporary.mkdir()
        config = _config(fields, tensors, file) | {"dtype": chosen}
        write_json(temporary / "config.json", config)
        write_json(temporary / "generation_config.json", _generation(fields))
        _write_tokenizer(fields, temporary, file, tokenizer)
        heads = (config["num_attention_heads"], config["num_key_value_heads"]) if family == "llama" else None
        path = temporary / "model.safetensors"
        size = _write_weights(tensors, names, path, heads=heads, dtype=chosen, progress=progress)
    parameters = sum(math.prod(int(width) for width in tensors[name].shape) for name in names)
    return {"family": family, "parameters": parameters, "dtype": chosen, "bytes": size, "folder": str(folder)}


def _open(file: Path) -> tuple[Json, dict[str, Any]]:
    """Metadata and tensors; these are read when they are used."""
    import gguf

    if not file.is_file():
        raise ConvertError(f"{file}: no such file")
    with open(file, "rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ConvertError(f"{file}: not a GGUF file")
    try:
        reader = gguf.GGUFReader(file)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except Exception as error:  # whatever a cut or broken file makes the reader raise
        raise ConvertError(f"{file}: cannot be read: {type(error).__name__}: {error}") from error
    if fields.get("split.count", 1) > 1:
        raise ConvertError(f"{file}: one of {fields['split.count']} parts: join them with gguf-split --merge first")
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def _field(fields: Json, name: str, file: Path, default: Any = None) -> Any:
    """A value of the model's family."""
    value = fields.get(f"{fields['general.architecture']}.{name}", default)
    if value is None:
        raise ConvertError(f"{file}: has no {fields['general.architecture']}.{name}")
    return value


def _map_names(tensors: dict[str, Any], where: str, *, num_blocks: int) -> dict[str, str]:
    """Names in the file and in transformers; every tensor must be known, and none be missing."""
    names: dict[str, str] = {}
    for name in tensors:
        stem, _, ending = name.rpartition(".")
        block, _, inner = stem.removeprefix("blk.").partition(".")
        if stem in _WHOLE:
            names[name] = f"{_WHOLE[stem]}.{ending}"
        elif stem.startswith("blk.") and block.isdecimal() and inner in _OF_BLOCK and ending in ("weight", "bias"):
            names[name] = f"model.layers.{int(block)}.{_OF_BLOCK[inner]}.{ending}"
        elif name != _ROPE_FACTORS:
            raise ConvertError(f"{where}: the tensor {name} is not known")
    needed = {"token_embd.weight", "output_norm.weight"}
    for number in range(num_blocks):
        needed |= {f"blk.{number}.{inner}.weight" for inner in _OF_BLOCK if not inner.endswith(("q_norm", "k_norm"))}
    missing = sorted(needed - set(names))
    if missing:
        raise ConvertError(f"{where}: {len(missing)} tensors are missing, {missing[0]} among them")
    return names


def _choose_dtype(tensors: dict[str, Any]) -> str:
    """The type of the matrices in the file; bfloat16 for quantised ones, whose error is larger than its own."""
    types = {tensor.tensor_type.name for tensor in tensors.values() if len(tensor.shape) > 1}
    if types == {"F32"}:
        return "float32"
    return "float16" if types == {"F16"} else "bfloat16"


def _config(fields: Json, tensors: dict[str, Any], file: Path) -> Json:
    family = fields["general.architecture"]
    architecture, model_type = _FAMILIES[family]
    heads, width = _field(fields, "attention.head_count", file), _field(fields, "embedding_length", file)
    rope: Json = {"rope_theta": _field(fields, "rope.freq_base", file, 10_000.0), "rope_type": "default"}
    head_dim = fields.get(f"{family}.attention.key_length", width // heads)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),  # shapes of the file have the columns first
        "hidden_size": width,
        "intermediate_size": _field(fields, "feed_forward_length", file),
        "num_hidden_layers": _field(fields, "block_count", file),
        "num_attention_heads": heads,
        "num_key_value_heads": _field(fields, "attention.head_count_kv", file, heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": _field(fields, "context_length", file),
        "rms_norm_eps": float(f"{_field(fields, 'attention.layer_norm_rms_epsilon', file):.6g}"),
        "rope_parameters": rope | _rope_scaling(fields, tensors, file, head_dim=head_dim, theta=rope["rope_theta"]),
        "attention_bias": family == "llama" and "blk.0.attn_q.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def _rope_scaling(fields: Json, tensors: dict[str, Any], file: Path, *, head_dim: int, theta: float) -> Json:
    """How rotary positions are stretched; nothing where they are not."""
    family = fields["general.architecture"]
    if _ROPE_FACTORS in tensors:
        factors = np.array(tensors[_ROPE_FACTORS].data, dtype=np.float32)
        for factor in (8.0, 32.0):  # Llama 3.1, and 3.2
            scaling = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            expected = _llama3_factors(head_dim, theta, factor)
            if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-4):
                return {"rope_type": "llama3", **scaling, "original_max_position_embeddings": 8192}
        raise ConvertError(f"{file}: {_ROPE_FACTORS} has factors that are not those of Llama 3")
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


def _llama3_factors(head_dim: int, theta: float, factor: float) -> NDArray[np.float32]:
    """What Llama 3 divides its frequencies by: high ones stay, low ones by `factor`, those between by a ramp."""
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    lengths = 2 * math.pi / frequencies
    low, high, context = 1.0, 4.0, 8192
    smooth = (context / lengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(lengths < context / high, 1.0, np.where(lengths > context / low, factor, between))
    return factors.astype(np.float32)


def _generation(fields: Json) -> Json:
    ends = {
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": stop_ids(fields),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }
    return {name: value for name, value in ends.items() if value not in (None, [])}


def _write_tokenizer(fields: Json, folder: Path, file: Path, source: Path | None) -> None:
    if source is not None:
        if not (source / "tokenizer.json").is_file():
            raise ConfigError(f"--tokenizer {source}: has no tokenizer.json")
        for name in _TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        return
    try:
        build_tokenizer(fields, str(file)).save(str(folder / "tokenizer.json"))
        settings = tokenizer_settings(fields)
    except (KeyError, IndexError, TypeError, ValueError) as error:  # of keys that are missing or of another type
        raise ConvertError(f"{file}: no tokenizer in it: {type(error).__name__}: {error}") from error
    write_json(folder / "tokenizer_config.json", settings)
    template = fields.get("tokenizer.chat_template")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _write_weights(
    tensors: dict[str, Any],
    names: dict[str, str],
    path: Path,
    *,
    heads: tuple[int, int] | None,
    dtype: str,
    progress: Callable[[int, int], None],
) -> int:
    """Write a safetensors file one tensor at a time, so that memory holds one, not the model; returns its bytes.

    heads: of queries and keys, if the file has their rows in the order that llama.cpp rotates.
    """
    import gguf

    item_bytes = np.dtype(_DTYPES[dtype]).itemsize
    header: Json = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, target in names.items():
        shape = [int(width) for width in reversed(tensors[name].shape)]
        begin, end = end, end + math.prod(shape) * item_bytes
        header[target] = {"dtype": _SAFETENSORS[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of eight
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, (name, target) in enumerate(names.items(), start=1):
            weights = gguf.dequantize(tensors[name].data, tensors[name].tensor_type).reshape(header[target]["shape"])
            if heads is not None and ".attn_q." in name:
                weights = _split_rotary(weights, heads[0])
            elif heads is not None and ".attn_k." in name:
                weights = _split_rotary(weights, heads[1])
            file.write(np.ascontiguousarray(weights.astype(_DTYPES[dtype])).tobytes())
            progress(number, len(names))
    return path.stat().st_size


def _split_rotary(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """llama.cpp rotates neighbours (0 1, 2 3, ...), transformers the two halves of a head: put evens before odds."""
    pairs = weights.reshape(heads, -1, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)

"""Names of settings and tensors, and order of rotary rows, which differ between GGUF files and transformers.

The tables are used in both directions: `convert_gguf` reads a file with them, `export_gguf` writes one.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairwright.errors import PairwrightError

# Architecture in the file: class and model_type in config.json.
FAMILIES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
# Name of a setting in the file, after the name of the family: its name in config.json.
SETTINGS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",  # in transformers, inside of rope_parameters
}
# Name of a tensor in the file, without .weight or .bias: its name in transformers.
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_BLOCK = {
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
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3: divisor of each frequency
_FILE_WHOLE = {theirs: ours for ours, theirs in WHOLE.items()}
_FILE_BLOCK = {theirs: ours for ours, theirs in OF_BLOCK.items()}


class ConvertError(PairwrightError):
    """A model or file that cannot be converted without loss."""


def name_in_transformers(name: str) -> str | None:
    """Return the transformers name of a tensor in the file; None if unknown."""
    stem, _, ending = name.rpartition(".")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.{ending}"
    block, _, inner = stem.removeprefix("blk.").partition(".")
    if stem.startswith("blk.") and block.isdecimal() and inner in OF_BLOCK and ending in ("weight", "bias"):
        return f"model.layers.{int(block)}.{OF_BLOCK[inner]}.{ending}"
    return None


def map_names(tensors: Iterable[str], where: str, *, num_blocks: int) -> dict[str, str]:
    """Map names in the file to names in transformers; raise if a tensor is unknown or missing."""
    names: dict[str, str] = {}
    for name in tensors:
        target = name_in_transformers(name)
        if target is not None:
            names[name] = target
        elif name != ROPE_FACTORS:
            raise ConvertError(f"{where}: the tensor {name} is not known")
    needed = {"token_embd.weight", "output_norm.weight"}
    for number in range(num_blocks):
        needed |= {f"blk.{number}.{inner}.weight" for inner in OF_BLOCK if not inner.endswith(("q_norm", "k_norm"))}
    missing = sorted(needed - set(names))
    if missing:
        raise ConvertError(f"{where}: {len(missing)} tensors are missing, {missing[0]} among them")
    return names


def name_in_file(name: str) -> str | None:
    """The inverse of `name_in_transformers`.

    >>> name_in_file("model.layers.3.self_attn.q_proj.weight")
    'blk.3.attn_q.weight'
    """
    stem, _, ending = name.rpartition(".")
    if stem in _FILE_WHOLE:
        return f"{_FILE_WHOLE[stem]}.{ending}"
    block, _, inner = stem.removeprefix("model.layers.").partition(".")
    if stem.startswith("model.layers.") and inner in _FILE_BLOCK and ending in ("weight", "bias"):
        return f"blk.{block}.{_FILE_BLOCK[inner]}.{ending}"
    return None


def rotary_heads(name: str, family: str, heads: int, kv_heads: int) -> int | None:
    """Return the number of heads of a tensor whose rows are in llama.cpp's rotary order; None for others."""
    if family != "llama":
        return None
    return heads if ".attn_q." in name else kv_heads if ".attn_k." in name else None


def split_rotary(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder rows from llama.cpp to transformers: llama.cpp rotates neighbours (0 1, 2 3, ...), transformers rotates
    the two halves of a head."""
    pairs = weights.reshape(heads, -1, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def join_rotary(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """The inverse of `split_rotary`: rows in the order that llama.cpp rotates."""
    halves = weights.reshape(heads, 2, -1, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def llama3_factors(head_dim: int, theta: float, factor: float) -> NDArray[np.float32]:
    """Return Llama 3's divisors of frequencies: 1 for high ones, `factor` for low ones, a ramp between."""
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    lengths = 2 * math.pi / frequencies
    low, high, context = 1.0, 4.0, 8192
    smooth = (context / lengths - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(lengths < context / high, 1.0, np.where(lengths > context / low, factor, between))
    return factors.astype(np.float32)

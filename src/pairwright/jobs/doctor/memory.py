"""Estimates of memory and disk space: weights from the safetensors headers, activations and caches from config.json.

Estimates are upper bounds for the settings (a micro-batch of `micro_batch_tokens`, a cache of `max_batch_tokens`), not
measurements: a small dataset needs less.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pairwright.config.model_config import PolicyConfig
from pairwright.config.train_config import TrainConfig
from pairwright.generate.cpu_kernels import available_bytes

_LORA_BYTES_SHARE = 0.05  # adapter, gradients and optimizer as a share of the weights (a generous estimate)
_LOGIT_ROWS = 512  # positions whose logits are in memory at once during training (losses/logps.py)
_CACHE_BATCHES = 8  # size of an engine's cache as a multiple of `max_batch_tokens` (generate/generator.py)


@dataclass(frozen=True)
class Shape:
    """The sizes in config.json that determine the memory per token."""

    hidden: int
    intermediate: int
    layers: int
    kv_size: int
    """Size of one token's keys in one layer, equal to that of its values."""
    vocabulary: int


@dataclass(frozen=True)
class Size:
    num_parameters: int
    shape: Shape | None = None


@dataclass(frozen=True)
class Needs:
    """Needed bytes. `activations` is 0 if config.json lacks the sizes."""

    state: int
    activations: int
    disk_bytes: int

    @property
    def memory_bytes(self) -> int:
        return self.state + self.activations


def model_size(folder: Path) -> Size | None:
    """Count the parameters in the safetensors files of a folder; None if there are none or they are unreadable."""
    try:
        num_parameters = count_parameters(folder).total()
    except (OSError, SafetensorError):
        return None
    return Size(num_parameters, _read_shape(folder)) if num_parameters else None


def needs(size: Size, train: TrainConfig) -> Needs:
    """Estimate memory and disk space of a training. Weights are trained in float32."""
    weights = 4 * size.num_parameters
    if train.finetuning_type == "all_weights":
        # Optimizer state as a multiple of the float32 weights: AdamW has two moments per weight.
        moments = {"adamw": 2.0, "adamw_8bit": 0.5, "adafactor": 0.1}[train.optimizer]
        # Weights, gradients and optimizer state. The reference is scored before the first update with the same weights;
        # a separate reference model is in memory only then, when there is no optimizer state yet.
        state = weights * (2 + moments)
        checkpoint = weights * (1 + moments)
    else:
        # 4-bit weights, their scales and some margin, as a share of the float32 size.
        share = 0.25 if train.quantization == "nf4" else 1.0
        state = weights * (share + _LORA_BYTES_SHARE)
        checkpoint = weights * _LORA_BYTES_SHARE
    if train.precision == "bf16":  # autocast keeps a bfloat16 copy of the weights during the pass
        state += weights / 2
    result = weights if train.finetuning_type != "lora" else weights * _LORA_BYTES_SHARE
    disk = int(checkpoint * (train.keep_top_k + 1) + result)
    return Needs(int(state), _activations(size.shape, train), disk)


def _activations(shape: Shape | None, train: TrainConfig) -> int:
    if shape is None:
        return 0
    # Values that a layer keeps per token. Model width: its input, two norms (input and output in float32), queries,
    # attention output, projection outputs; feed-forward: gate, up, their product, its input.
    per_layer = 14 * shape.hidden + 4 * shape.intermediate + 4 * shape.kv_size
    num_bytes = 3 if train.precision == "bf16" else 4  # half of the values stay in float32
    layers = shape.layers
    if train.gradient_checkpointing:
        # The input of each layer, and all values of the one layer that is recomputed.
        per_token = 4 * shape.hidden * layers + num_bytes * per_layer
    else:
        per_token = num_bytes * per_layer * layers
    logits = 2 * 4 * _LOGIT_ROWS * shape.vocabulary  # a chunk of logits, and its gradient
    return train.micro_batch_tokens * per_token + logits


def generation_needs(size: Size, policy: PolicyConfig) -> int:
    """Return the bytes of weights and full cache of a local policy."""
    num_bytes = 2 if policy.dtype in ("bfloat16", "float16") else 4
    weights = num_bytes * size.num_parameters
    if size.shape is None:
        return weights
    per_token = 2 * size.shape.kv_size * size.shape.layers * num_bytes
    return weights + per_token * policy.max_batch_tokens * _CACHE_BATCHES


def memory_available() -> tuple[int, str]:
    """Return the free memory in bytes and its location: GPU memory if there are GPUs, else that of the machine."""
    try:
        import torch
    except ImportError:
        return available_bytes(), "free on this machine"
    if not torch.cuda.is_available():
        return available_bytes(), "free on this machine"
    gpus = [int(torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count())]
    return max(gpus), "free on the largest GPU"


def count_parameters(folder: Path) -> Counter[str]:
    """Count the parameters in the safetensors files of a folder, by dtype (F32, BF16, ...); no weights are read."""
    counts: Counter[str] = Counter()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_slice(name)
                counts[tensor.get_dtype()] += math.prod(tensor.get_shape())
    return counts


def _read_shape(folder: Path) -> Shape | None:
    """Read the sizes in config.json, under the names of Llama-like or GPT-2-like models; None if one is missing."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None

    def read(*names: str) -> int | None:
        values: list[Any] = [config.get(name) for name in names]
        return next((value for value in values if type(value) is int and value > 0), None)

    hidden, layers = read("hidden_size", "n_embd", "d_model"), read("num_hidden_layers", "n_layer", "num_layers")
    heads, vocabulary = read("num_attention_heads", "n_head"), read("vocab_size")
    if hidden is None or layers is None or heads is None or vocabulary is None:
        return None
    head_size = read("head_dim") or hidden // heads
    # A token of a mixture goes through several experts.
    experts = read("num_experts_per_tok") or 1
    intermediate = (read("intermediate_size", "moe_intermediate_size", "n_inner") or 4 * hidden) * experts
    kv_size = head_size * (read("num_key_value_heads") or heads)
    return Shape(hidden, intermediate, layers, kv_size, vocabulary)

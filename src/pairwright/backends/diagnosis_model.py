"""How large a model is, told from the headers of its files, and what training it takes."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from pairwright.config.train import TrainConfig

_MAX_HEADER = 100 * 2**20
_LORA_BYTES_SHARE = 0.05  # an adapter with its gradients and optimizer, as a share of the weights: generous


@dataclass(frozen=True)
class Size:
    num_parameters: int


@dataclass(frozen=True)
class Needs:
    memory_bytes: int
    disk_bytes: int


def model_size(folder: Path) -> Size | None:
    """The parameters in a folder's safetensors files; None where there are none, or they cannot be read."""
    files = sorted(folder.glob("*.safetensors"))
    counts = [_num_parameters(path) for path in files]
    return Size(sum(counts)) if counts and all(counts) else None


def needs(size: Size, train: TrainConfig) -> Needs:
    """Weights are trained in float32, whatever they are computed in. Activations come on top, by batch and length."""
    weights = 4 * size.num_parameters
    if train.finetuning_type == "all_weights":
        moments = {"adamw": 2.0, "adamw_8bit": 0.5, "adafactor": 0.1}[train.optimizer]
        has_reference = train.reference != "none" and train.channels.dpo > 0
        memory = weights * (2 + moments + has_reference)
        checkpoint = weights * (1 + moments)
    else:
        share = 0.25 if train.quantization == "nf4" else 1.0
        memory = weights * (share + _LORA_BYTES_SHARE)
        checkpoint = weights * _LORA_BYTES_SHARE
    result = weights if train.finetuning_type != "lora" else weights * _LORA_BYTES_SHARE
    return Needs(int(memory), int(checkpoint * (train.keep_top_k + 1) + result))


def memory_available(*, shared: bool = False) -> tuple[int, str]:
    """Memory that a training on this machine could take: of its GPUs if it has some, else of the machine. `shared`: by
    processes that have the model in shards, one on each GPU."""
    gpus = _gpu_memory()
    if gpus and shared:
        return sum(gpus), f"free on {len(gpus)} GPUs"
    if gpus:
        return max(gpus), "free on the largest GPU"
    return _machine_memory(), "free on this machine"


def _gpu_memory() -> list[int]:
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    return [int(torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count())]


def _machine_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")  # a container may have less than the machine
    try:
        return min(found, int(limit.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return found


def _num_parameters(path: Path) -> int:
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _MAX_HEADER:
                return 0
            header = json.loads(file.read(length))
    except (OSError, ValueError):
        return 0
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__" and "shape" in entry]
    return sum(math.prod(shape) for shape in shapes)

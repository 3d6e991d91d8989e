"""The device of models: a CUDA GPU, Apple's GPU (mps), or the CPU; and the types that each supports.

`mps` has no float64, and bfloat16 only from macOS 14 on. `check_precision` and `dtype_on` handle this; if `has_float64`
is False, float64 sums move to the CPU.
"""

import os
from typing import Any

from pairwright.errors import ConfigError

KINDS = ("cuda", "mps", "cpu")


def choose_device(name: str | None = None) -> str:
    """Return the named device, or the best available one: cuda, then mps, then cpu. With several GPUs, one per process.

    name: cpu, cuda, cuda:1, mps, ...; None chooses.
    """
    if name is None:
        name = find_device()[0]
    elif (problem := _why_not(name.partition(":")[0])) is not None:
        raise ConfigError(f"device {name}: {problem}; here is {find_device()[0]}")
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name


def find_device() -> tuple[str, str]:
    """Return the kind of device that is chosen here, and why."""
    reasons: list[str] = []
    for kind in KINDS:
        problem = _why_not(kind)
        if problem is None:
            return kind, "; ".join([*reasons, f"{kind}: {_describe(kind)}"])
        reasons.append(f"{kind}: {problem}")
    raise AssertionError("there is always a CPU")


def has_float64(device: Any) -> bool:
    """Whether a device computes in float64."""
    return getattr(device, "type", str(device).partition(":")[0]) in ("cpu", "cuda")


def check_precision(device: str, precision: str) -> None:
    """Raise where a training precision is not available on a device."""
    if precision == "bf16" and device == "mps" and not _has_bfloat16():
        raise ConfigError("train.precision bf16: this macOS has no bfloat16 on mps (14 or later has): set fp32")


def dtype_on(device: str, dtype: str) -> str:
    """Return the type to load a model in. "auto" is float32 on a CPU, so that a greedy answer does not depend on the
    rest of the batch, and the checkpoint's type elsewhere; float16 on mps without bfloat16."""
    if device == "mps" and dtype in ("auto", "bfloat16") and not _has_bfloat16():
        return "float16"
    return "float32" if dtype == "auto" and device == "cpu" else dtype


def _why_not(kind: str) -> str | None:
    """Explain why the device is not available; None if it is."""
    import torch

    if kind == "cuda":
        if torch.cuda.is_available():
            return None
        return "this torch was built without CUDA" if torch.version.cuda is None else "no GPU is visible"
    if kind == "mps":
        if torch.backends.mps.is_available():
            return None
        return "macOS 12.3 or later is needed" if torch.backends.mps.is_built() else "this torch was built without MPS"
    try:
        torch.device(kind)
    except RuntimeError:
        return f"torch has no such device; expected {', '.join(KINDS)}"
    return None


def _describe(kind: str) -> str:
    import torch

    if kind == "cuda":
        return f"{torch.cuda.get_device_name(0)}, {torch.cuda.device_count()} in all"
    return "Apple's GPU" if kind == "mps" else f"{torch.get_num_threads()} threads"


def _has_bfloat16() -> bool:
    import torch

    return bool(torch.backends.mps.is_macos_or_newer(14, 0))

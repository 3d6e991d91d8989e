"""16-bit arithmetic of the CPU, if usable; and the available memory.

Some virtual machines announce AMX but do not allow it: the first instruction kills the process. `guard_amx` tries it in
a separate process, and on failure keeps oneDNN from using it. `prepare_16_bits` must run before the first 16-bit
product.
"""

import logging
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

_log = logging.getLogger(__name__)
_VARIABLE = "ONEDNN_MAX_CPU_ISA"  # the newest instructions that oneDNN may use; read at its first product
_WITHOUT_AMX = "AVX512_CORE_FP16"
_TRIAL = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(a, a); print('good')"


@cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction sets that the CPU announces; empty if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


def has_bfloat16() -> bool:
    """Whether the CPU multiplies 16-bit numbers faster than 32-bit ones."""
    return bool(cpu_flags() & {"avx512_bf16", "amx_bf16"})


@cache
def prepare_16_bits() -> None:
    """Turn off unusable AMX, and warn once if the CPU has no 16-bit arithmetic."""
    guard_amx()
    if cpu_flags() and not has_bfloat16():
        _log.warning(
            "this CPU has no 16-bit arithmetic (avx512_bf16, amx_bf16): bfloat16 and float16 are several times slower "
            "than float32 here"
        )


@cache
def guard_amx() -> bool:
    """Try AMX if the CPU announces it, and turn it off if unusable; return whether it may be used."""
    if "amx_bf16" not in cpu_flags() or _VARIABLE in os.environ:
        return "amx_bf16" in cpu_flags()
    trial = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, check=False, timeout=120)
    if trial.stdout.strip() == b"good":
        return True
    os.environ[_VARIABLE] = _WITHOUT_AMX
    _log.warning("this CPU announces AMX but does not allow it: AMX is turned off (%s=%s)", _VARIABLE, _WITHOUT_AMX)
    return False


def available_bytes() -> int:
    """Return the free memory of this machine, or of its container."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        num_bytes = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")  # a container may have less than the machine
    try:
        return min(num_bytes, int(limit.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return num_bytes

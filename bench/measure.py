"""Measurements for a shared machine: the least CPU time of several alternating rounds; figures of a child process."""

import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def best_cpu(*functions: Callable[[], Any], rounds: int = 5) -> list[float]:
    """Return the least CPU seconds of each function. They alternate, so that noise affects all of them equally."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for number, function in enumerate(functions):
            gc.collect()
            start = time.process_time()
            function()
            best[number] = min(best[number], time.process_time() - start)
    return best


def best_wall(*functions: Callable[[], Any], rounds: int = 5) -> list[float]:
    """Return the least wall-clock seconds of each function, for functions that wait for the disk."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for number, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def in_child(code: str, *arguments: str) -> dict[str, Any]:
    """Run code in a child process; returns the JSON of its last line, with `cpu_seconds` of the process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"cpu_seconds": cpu}


def row(what: str, ours: float, theirs: float, unit: str, target: str, *, higher_is_better: bool = True) -> str:
    """Format a row of docs/benchmarks.md. The ratio is theirs / ours, or ours / theirs without `higher_is_better`.

    >>> row("decode", 2.0, 5.0, "s", "≥ 2×")
    '| decode | 2 s | 5 s | **2.50×** | ≥ 2× |'
    """
    ratio = theirs / ours if higher_is_better else ours / theirs
    return f"| {what} | {ours:.4g} {unit} | {theirs:.4g} {unit} | **{ratio:.2f}×** | {target} |"

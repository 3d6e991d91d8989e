"""Pairs of 1 M, 3 M and 10 M candidates: this machine alone, and Ray with one and two workers.

`python -m bench.scale [MILLIONS ...]`. Each run is a separate process, of which CPU seconds and peak memory
(including its workers) and the bytes written to files and to the object store are measured. Tables are kept in
BENCH_FOLDER (by default a temporary folder) and reused.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from bench.candidates import write_candidates
from pairwright.config import EngineConfig
from pairwright.engines import Engine, open_ray
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.workers import BucketPlan
from pairwright.store.table import Table

SIZES = (1, 3, 10)
ROWS_PER_PART = 125_000
MEMORY_MEGABYTES = 1024
_COLUMNS = (
    "candidates", "engine", "start s", "build s", "CPU s command", "CPU s workers", "peak MB command",
    "peak MB a worker", "MB rows", "MB plans", "MB texts", "MB returned", "largest MB returned",
)  # fmt: skip
_KINDS = {
    "rows": "rows", "put": "plans", "plans": "plans", "experiences": "plans", "texts": "texts", "drafts": "texts",
}  # fmt: skip


def main(sizes: Iterable[float] = SIZES) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("BENCH_FOLDER", temporary))
        print("| " + " | ".join(_COLUMNS) + " |\n" + "|---" * len(_COLUMNS) + "|", flush=True)
        for size in sizes:
            num = int(size * 1e6)
            table = folder / f"candidates-{num}"
            if not table.exists():
                write_candidates(table, num, rows_per_part=ROWS_PER_PART)
            digests = {_measured(table, folder / "pairs", num, workers) for workers in (0, 1, 2)}
            assert len(digests) == 1, "every engine writes the same bytes"


def _measured(table: Path, output: Path, num: int, workers: int) -> str:
    command = [sys.executable, "-m", "bench.scale", "--one", str(table), str(output), str(workers)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    name = "alone" if not workers else f"ray, {workers}"
    cells = [f"{num:,}", name, *(f"{found[column]:,.1f}" for column in _COLUMNS[2:])]
    print("| " + " | ".join(cells) + " |", flush=True)
    return str(found["digest"])


def one(table: Path, output: Path, workers: int) -> dict[str, Any]:
    """Build the pairs of a table in this process; returns its figures."""
    begin = time.perf_counter()
    options = PairOptions(strategy="best-worst", validation=0.1, memory_megabytes=MEMORY_MEGABYTES)
    with open_ray(EngineConfig(name="ray", workers=workers)) if workers else nullcontext() as engine:
        counting = None if engine is None else _Counting(engine)
        ready = time.perf_counter()
        with _Watch(output) as watch:
            build_pairs([Table(table, create=False)], output, options, engine=counting)
        done = time.perf_counter()
    returned = [0] if counting is None else counting.returned
    used = resource.getrusage(resource.RUSAGE_SELF)
    files = sorted(path for path in output.iterdir() if path.is_file())
    return {
        "start s": ready - begin, "build s": done - ready, "CPU s command": used.ru_utime + used.ru_stime,
        "CPU s workers": sum(watch.cpu.values()), "peak MB command": used.ru_maxrss / 1024,
        "peak MB a worker": max(watch.memory.values(), default=0) / 1e6,
        **{f"MB {name}": size / 1e6 for name, size in watch.files.items()},
        "MB returned": sum(returned) / 1e6, "largest MB returned": max(returned) / 1e6,
        "digest": sha256(b"".join(sha256(path.read_bytes()).digest() for path in files)).hexdigest(),
    }  # fmt: skip


class _Counting:
    """An engine that counts the bytes that its workers return."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.num_workers = engine.num_workers
        self.returned = [0]

    def map(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for found in self._engine.map(function, tasks):
            self.returned.append(_num_bytes(found))
            yield found


def _num_bytes(found: Any) -> int:
    if isinstance(found, list):
        return sum(map(_num_bytes, found))
    if isinstance(found, pa.RecordBatch):
        return int(found.get_total_buffer_size())
    if isinstance(found, BucketPlan):
        return sum(int(frame.estimated_size()) for frame in (found.narrow, found.plan.steps, found.plan.tasks))
    return 0


class _Watch:
    """Samples the memory of the workers and the files of the build a few times per second."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._done = threading.Event()
        self.cpu: dict[int, float] = {}
        self.memory: dict[int, float] = {}
        self.files = dict.fromkeys(("rows", "plans", "texts"), 0)

    def __enter__(self) -> "_Watch":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.25):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("ray::"):
                        times, memory = process.cpu_times(), process.memory_info()
                        self.cpu[process.pid] = times.user + times.system
                        own = memory.rss - memory.shared  # the object store is shared
                        self.memory[process.pid] = max(own, self.memory.get(process.pid, 0))
                except psutil.Error:
                    continue
            sizes = dict.fromkeys(self.files, 0)
            for path in self._output.glob(".build.*/*.arrow"):
                kind = _KINDS.get(path.name.split(".")[0].split("-")[0])
                try:
                    if kind is not None:
                        sizes[kind] += path.stat().st_size
                except FileNotFoundError:
                    continue
            self.files = {name: max(size, sizes[name]) for name, size in self.files.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))))
    else:
        main([float(size) for size in sys.argv[1:]] or SIZES)

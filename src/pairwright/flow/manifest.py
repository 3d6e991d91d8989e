"""The manifest of a run: the state of every stage, with a hash of everything that the stage depends on.

    RUN/manifest.json    command, versions, seed, git revision, and for each stage: key, state, cost, result

A stage whose key is unchanged and whose state is done is skipped. The file is written atomically after every change.
"""

import contextlib
import platform
import resource
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from pairwright.errors import PairwrightError
from pairwright.paths import write_json
from pairwright.records.messages import Json
from pairwright.sources.redact import redact

# Packages whose versions are recorded, since they affect results
_PACKAGES = ("pairwright", "torch", "transformers", "peft", "polars", "pyarrow", "tokenizers", "numpy", "openai", "ray")


class StageRecord(msgspec.Struct, kw_only=True):
    """The state of one stage; `key` is the hash of its inputs and settings. CPU time covers all threads and ended child
    processes; peak memory is that of the largest process. A resumed stage has the figures of its last part."""

    key: str
    state: str = "running"
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    result: Json = {}
    error: str | None = None
    inputs: dict[str, str] = {}  # inputs outside of the key: user files, such as agent.py, with their hashes


class Meter:
    """Measures time and memory since its creation."""

    def __init__(self) -> None:
        # Linux: 5 resets the peak that VmHWM counts. Elsewhere the peak is that of the whole process.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._started, self._cpu = time.monotonic(), _cpu_seconds()
        self._children = _peak_of(resource.RUSAGE_CHILDREN)

    def read(self) -> dict[str, Any]:
        """Return the cost fields of a StageRecord."""
        children = _peak_of(resource.RUSAGE_CHILDREN)
        return {
            "seconds": round(time.monotonic() - self._started, 3),
            "cpu_seconds": round(_cpu_seconds() - self._cpu, 3),
            # a child's peak counts only if it exceeds those before the meter started
            "peak_memory_bytes": max(_peak_memory(), children if children > self._children else 0),
        }


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _peak_memory() -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return _peak_of(resource.RUSAGE_SELF)


def _peak_of(who: int) -> int:
    peak = resource.getrusage(who).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes, except on macOS


class Manifest:
    def __init__(self, path: Path, *, seed: int) -> None:
        self.path = path
        self.stages: dict[str, StageRecord] = {}
        self._about: Json = {"seed": seed, "versions": _versions(), "git": _revision(), "started": time.time()}
        program = "pairwright" if Path(sys.argv[0]).stem == "__main__" else Path(sys.argv[0]).name
        # keys in KEY=VALUE words are not stored
        self._about["command"], _ = redact(shlex.join([program, *sys.argv[1:]]))
        if path.exists():
            try:
                known = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
                self.stages = msgspec.convert(known.get("stages", {}), dict[str, StageRecord])
                # a resumed run keeps the time of its first start
                self._about["started"] = known.get("started", self._about["started"])
            except (OSError, msgspec.MsgspecError) as error:
                raise PairwrightError(
                    f"{path}: cannot be read: {error}; remove it and every stage is done again"
                ) from error

    def is_done(self, name: str, key: str) -> bool:
        # an interrupted or failed stage has the same key, so the state is checked as well
        known = self.stages.get(name)
        return known is not None and known.key == key and known.state == "done"

    def has_other(self, name: str, key: str) -> bool:
        known = self.stages.get(name)
        return known is not None and known.key != key

    def write(self, name: str, record: StageRecord) -> None:
        self.stages[name] = record
        write_json(self.path, {**self._about, "stages": self.stages}, error=PairwrightError)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _revision() -> str | None:
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None

"""A pytest plugin for Trinity's tests of its experiences: `trinity.common.experience` is `pairwright.trinity`."""

import importlib.util
import os
import sys
import types
from pathlib import Path

import pairwright.trinity


class ExperienceModel:
    """Replaces Trinity's SQL model; stores the bytes of an experience."""

    def __init__(self, experience_bytes: bytes) -> None:
        self.experience_bytes = experience_bytes

    @classmethod
    def from_experience(cls, experience: pairwright.trinity.Experience) -> "ExperienceModel":
        return cls(experience.serialize())

    def to_experience(self) -> pairwright.trinity.Experience:
        return pairwright.trinity.Experience.deserialize(self.experience_bytes)


for name in (
    "trinity",
    "trinity.common",
    "trinity.buffer",
    "trinity.buffer.schema",
    "trinity.buffer.schema.sql_schema",
):
    sys.modules[name] = types.ModuleType(name)
sys.modules["trinity.common.experience"] = pairwright.trinity
sys.modules["trinity.buffer.schema.sql_schema"].ExperienceModel = ExperienceModel  # type: ignore[attr-defined]

# Newer tests also call the checkout's own printer of experiences, which takes ours.
printer = Path(os.environ.get("PAIRWRIGHT_TRINITY", ".")) / "trinity" / "common" / "experience_visualizer.py"
if printer.exists():
    spec = importlib.util.spec_from_file_location("trinity.common.experience_visualizer", printer)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])

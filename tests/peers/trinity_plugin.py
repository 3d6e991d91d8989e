"""A pytest plugin for Trinity's tests of its experiences: `trinity.common.experience` is `pairwright.trinity`."""

import sys
import types

import pairwright.trinity


class ExperienceModel:
    """In the place of Trinity's SQL model: what it keeps of an experience is its bytes."""

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

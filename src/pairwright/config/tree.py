"""The whole configuration of a run: one section a stage, in the order of the flow."""

from pydantic import Field

from pairwright.config.section import Section
from pairwright.config.sources import SourcesConfig


class Config(Section):
    """A run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; its files are in runs/<name>."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of everything that is drawn."""
    sources: SourcesConfig = SourcesConfig()

"""`engine`: where the pieces of import, pairs, tokens and train run."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pairwright.config.section import Section


class EngineConfig(Section):
    """Processes of this machine, or a Ray cluster. `engine: ray` is short for `engine: {name: ray}`."""

    name: Literal["embedded", "ray"] = "embedded"
    """embedded: processes of this machine. ray: tasks of a Ray cluster; needs the extra `ray`."""
    address: str | None = None
    """ray: the cluster, as `auto`, `HOST:PORT` or `ray://HOST:PORT`; by default one is started here for the command."""
    workers: Annotated[int, Field(ge=1)] | None = None
    """How many work at once; by default one a core, of this machine or of the cluster."""
    max_retries: Annotated[int, Field(ge=0)] = 3
    """How often a piece is done again after the worker that had it has died."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _address_needs_ray(self) -> "EngineConfig":
        if self.address is not None and self.name != "ray":
            raise ValueError("address: only the engine ray has one")
        return self

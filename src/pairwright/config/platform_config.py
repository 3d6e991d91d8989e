"""`backend.nemo_platform`: the open successor of NeMo Customizer."""

import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator

from pairwright.config.sections import Section


def _check_name(name: str, pattern: str) -> str:
    # With `re`: pydantic's own patterns cannot look ahead.
    if not re.fullmatch(pattern, name):
        raise ValueError("expected a lowercase letter, then lowercase letters, digits and single hyphens")
    return name


# Names of workspaces, filesets and models.
_PLATFORM_NAME = r"^[a-z](?!.*--)[a-z0-9\-@.+_]{1,62}(?<!-)$"
_PlatformName = Annotated[str, Field(max_length=63), AfterValidator(partial(_check_name, pattern=_PLATFORM_NAME))]


class NemoPlatformConfig(Section):
    """NeMo Platform: workspaces, filesets and DPO jobs over HTTP."""

    base_url: str | None = None
    """Address of the platform."""
    api_token: SecretStr | None = None
    """Token for the platform."""
    workspace: _PlatformName = "default"
    """Workspace of filesets, jobs and models."""
    dataset_name: _PlatformName = Field(default="pairwright-dpo", max_length=34)
    """Names of filesets and of tuned models begin with this; every run has its own."""
    model: str | None = None
    """Model entity that is tuned, NAME or WORKSPACE/NAME; else the job's model."""
    project: str | None = None
    """Project of the job."""
    tool_calls: Literal["refuse", "text"] = "refuse"
    """Its rows hold no tool calls: refuse such pairs, or write calls, results and schemas as text (Hermes tags)."""
    validation: float = Field(default=0.2, gt=0, lt=1)
    """Share of the groups held out where the pairs have no validation split; the platform needs some."""
    training: dict[str, Any] = Field(default={})
    """Fields of a DPO training in the platform's names, sent as they are: {epochs: 2, batch_size: 16, learning_rate:
    1e-5}. Fields that are left out have the platform's defaults, the seed that of the configuration."""
    poll_interval_seconds: float = Field(default=15, gt=0)
    """Between two status calls."""
    training_timeout_seconds: float | None = Field(default=7 * 86_400, gt=0)
    """How long a job is waited for; null: for ever."""
    wait_for_completion: bool = True
    """Wait for the job after submitting it."""

    @field_validator("base_url")
    @classmethod
    def _no_slash(cls, value: str | None) -> str | None:
        return value.rstrip("/") if value else None

    @field_validator("api_token", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value

    @property
    def has_anchor(self) -> bool:
        """Whether something holds the likelihood of chosen sides."""
        return bool(self.training.get("sft_loss_weight"))

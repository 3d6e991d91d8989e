"""`backend.nemo_platform`: the open successor of NeMo Customizer."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from pairwright.config.sections import Section, ServiceToken, ServiceUrl


def _check_name(name: str) -> str:
    # With `re`: pydantic's own patterns cannot look ahead.
    if not re.fullmatch(r"[a-z](?!.*--)[a-z0-9\-@.+_]{1,62}(?<!-)", name):
        raise ValueError("expected a lowercase letter, then lowercase letters, digits and single hyphens")
    return name


# Names of workspaces, filesets and models.
_PlatformName = Annotated[str, Field(max_length=63), AfterValidator(_check_name)]


class NemoPlatformConfig(Section):
    """NeMo Platform: workspaces, filesets and DPO jobs over HTTP."""

    base_url: ServiceUrl = None
    """Address of the platform."""
    api_token: ServiceToken = None
    """Token for the platform."""
    workspace: _PlatformName = "default"
    """Workspace of filesets, jobs and models."""
    dataset_name: _PlatformName = Field(default="pairwright-dpo", max_length=34)
    """Prefix of the names of filesets and tuned models; every run has its own fileset and model."""
    model: str | None = None
    """Model entity to tune, NAME or WORKSPACE/NAME; by default the job's model."""
    project: str | None = None
    """Project of the job."""
    tool_calls: Literal["refuse", "text"] = "refuse"
    """The platform's rows cannot hold tool calls: refuse pairs with calls, or write calls, results and schemas as text
    (Hermes tags)."""
    validation: float = Field(default=0.2, gt=0, lt=1)
    """Share of the groups to hold out if the pairs have no validation split; the platform requires one."""
    training: dict[str, Any] = Field(default={})
    """Fields of a DPO training in the platform's names, sent unchanged: {epochs: 2, batch_size: 16, learning_rate:
    1e-5}. Other fields have the platform's defaults; the seed is that of the configuration."""
    poll_interval_seconds: float = Field(default=15, gt=0)
    """Seconds between two status calls."""
    training_timeout_seconds: float | None = Field(default=7 * 86_400, gt=0)
    """Longest time to wait for a job, in seconds; null: no limit."""
    wait_for_completion: bool = True
    """Wait for the job after submitting it."""

    @property
    def has_anchor(self) -> bool:
        """Whether a term keeps the likelihood of chosen sides from falling."""
        return bool(self.training.get("sft_loss_weight"))

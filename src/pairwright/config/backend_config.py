"""`backend`: where a job trains, and the options of each place."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from pairwright.config.customizer_config import NemoCustomizerConfig
from pairwright.config.sections import Section, ServiceToken, ServiceUrl
from pairwright.config.user_code import BACKENDS, check_name


def _check_platform_name(name: str) -> str:
    # With `re`: pydantic's own patterns cannot look ahead.
    if not re.fullmatch(r"[a-z](?!.*--)[a-z0-9\-@.+_]{1,62}(?<!-)", name):
        raise ValueError("expected a lowercase letter, then lowercase letters, digits and single hyphens")
    return name


# Names of workspaces, filesets and models
_PlatformName = Annotated[str, Field(max_length=63), AfterValidator(_check_platform_name)]


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


class TrlConfig(Section):
    """TRL's trainers on our rows of tokens; their options come from the section `train`."""

    command: tuple[str, ...] = ()
    """Command that starts pairwright.trl, such as [accelerate, launch, -m]; by default this Python with -m."""
    validation: float = Field(default=0.2, ge=0, lt=1)
    """Share of the groups to hold out if the pairs have no validation split."""
    options: dict[str, Any] = Field(default={})
    """More arguments of TRL's trainer (DPOConfig, SFTConfig, KTOConfig), passed unchanged."""


class NemoRlConfig(Section):
    """NeMo RL as the trainer; its options come from the section train."""

    directory: str | None = None
    """A checkout of NeMo RL; needed to launch."""
    gpus_per_node: int = Field(default=1, ge=1)
    """GPUs per node."""
    num_nodes: int = Field(default=1, ge=1)
    """Nodes; more than one are not launched from here."""
    dataset: Literal["preference", "binary"] = "preference"
    """PreferenceDataset (messages) or BinaryPreferenceDataset (text answers)."""
    max_total_sequence_length: int = Field(default=4096, ge=8)
    """Longest sequence; NeMo RL ignores longer pairs."""
    validation: float = Field(default=0.2, ge=0, lt=1)
    """Share of the groups to hold out if the pairs have no validation split."""
    accept_other_data: bool = False
    """Continue although NeMo RL would train only a part of what the model generated, or render it without tools."""
    overrides: dict[str, Any] = Field(default={})
    """More keys of NeMo RL's configuration, dotted; data, model and tokenizer cannot be overridden."""


BACKEND_NAMES = ("local", "ray", "nemo-customizer", "nemo-platform", "nemo-rl", "trl")  # same names as jobs.BACKENDS


class BackendConfig(Section):
    """Where jobs train."""

    name: str = "local"
    """Where to train: local, ray, nemo-customizer, nemo-platform, nemo-rl, trl, or your own as file.py:BACKEND."""
    nemo_customizer: NemoCustomizerConfig = NemoCustomizerConfig()
    nemo_platform: NemoPlatformConfig = NemoPlatformConfig()
    nemo_rl: NemoRlConfig = NemoRlConfig()
    trl: TrlConfig = TrlConfig()

    @field_validator("name")
    @classmethod
    def _name_exists(cls, name: str) -> str:
        return check_name(name, BACKEND_NAMES, BACKENDS)

    @property
    def is_followed(self) -> bool:
        """Whether to wait for a job after submitting it."""
        if self.name == "nemo-customizer":
            return self.nemo_customizer.wait_for_completion
        return self.name != "nemo-platform" or self.nemo_platform.wait_for_completion

"""`backend`: where a job trains, and the options of each place."""

from typing import Any, Literal

from pydantic import Field, field_validator

from pairwright.config.customizer_config import NemoCustomizerConfig
from pairwright.config.platform_config import NemoPlatformConfig
from pairwright.config.sections import Section
from pairwright.config.user_code import BACKENDS, check_name


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

"""`backend`: where a job trains, and what that place wants to know."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pairwright.config.customizer_config import NemoCustomizerConfig
from pairwright.config.platform_config import NemoPlatformConfig
from pairwright.config.sections import Section
from pairwright.config.user_code import BACKENDS, check_name


class LocalConfig(Section):
    """Training on this machine, in a process of its own."""

    poll_interval_seconds: float = Field(default=1, gt=0)
    """Between two looks at the run."""
    training_timeout_seconds: float | None = Field(default=None, gt=0)
    """How long a job is waited for; null: for ever."""
    cancel_grace_seconds: float = Field(default=60, ge=0)
    """How long a cancelled job may take to save its checkpoint before it is killed."""


class TrlConfig(Section):
    """TRL's trainers on our rows of tokens; their options come from the section train."""

    command: tuple[str, ...] = ()
    """How the module pairwright.trl is started, such as [accelerate, launch, -m]; by default this Python with -m."""
    validation: float = Field(default=0.2, ge=0, lt=1)
    """Share of the groups held out where the pairs have no validation split."""
    options: dict[str, Any] = Field(default={})
    """More arguments of TRL's trainer (DPOConfig, SFTConfig, KTOConfig), as they are."""


# ray.sub of NeMo RL hands both to srun as words, unquoted: white space or a pattern would become other words.
_SrunValue = Annotated[str, Field(pattern=r"^[^\s*?\[\]'\"\\]+$")]
_Mount = Annotated[str, Field(pattern=r"^[^\s*?\[\]'\"\\,:]+(:[^\s*?\[\]'\"\\,:]+){1,2}$")]


class SlurmConfig(Section):
    """Where a Slurm launch goes."""

    account: str | None = None
    """--account."""
    partition: str | None = None
    """--partition."""
    time: str = "4:00:00"
    """--time."""
    container: _SrunValue | None = None
    """Container image that NeMo RL runs in."""
    mounts: tuple[_Mount, ...] = ()
    """More mounts, as HOST:CONTAINER."""
    gres: bool = True
    """Ask for GPUs with --gres; some clusters want none."""


class NemoRlConfig(Section):
    """NeMo RL as the trainer; its options come from the section train."""

    directory: str | None = None
    """A checkout of NeMo RL; needed to launch."""
    gpus_per_node: int = Field(default=1, ge=1)
    """GPUs a node."""
    num_nodes: int = Field(default=1, ge=1)
    """Nodes."""
    launcher: Literal["local", "slurm"] = "local"
    """Run here, or hand in to Slurm."""
    slurm: SlurmConfig = SlurmConfig()
    dataset: Literal["preference", "binary"] = "preference"
    """PreferenceDataset (messages) or BinaryPreferenceDataset (text answers)."""
    max_total_sequence_length: int = Field(default=4096, ge=8)
    """Longest sequence; NeMo RL ignores longer pairs."""
    validation: float = Field(default=0.2, ge=0, lt=1)
    """Share of the groups held out where the pairs have no validation split."""
    accept_other_data: bool = False
    """Go on where NeMo RL would train less than the model wrote, or without its tools."""
    overrides: dict[str, Any] = Field(default={})
    """More keys of NeMo RL's configuration, dotted; data, model and tokenizer are not for overriding."""

    @model_validator(mode="after")
    def _nodes_need_slurm(self) -> "NemoRlConfig":
        if self.num_nodes > 1 and self.launcher == "local":
            raise ValueError("num_nodes: more than one node needs launcher: slurm")
        return self


BACKEND_NAMES = ("local", "ray", "nemo-customizer", "nemo-platform", "nemo-rl", "trl")  # those of jobs.BACKENDS


class BackendConfig(Section):
    """Where jobs train."""

    name: str = "local"
    """Where to train: local, ray, nemo-customizer, nemo-platform, nemo-rl, trl, or your own as file.py:BACKEND."""
    local: LocalConfig = LocalConfig()
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
        """Whether a job is waited for after it was submitted."""
        if self.name == "nemo-customizer":
            return self.nemo_customizer.wait_for_completion
        return self.name != "nemo-platform" or self.nemo_platform.wait_for_completion

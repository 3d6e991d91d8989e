"""`backend`: where a job trains, and what that place wants to know."""

import difflib
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from pairwright.config.sections import Section
from pairwright.config.user_code import BACKENDS, check_name

# Names that are safe in URLs and paths
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _check_name(name: str, pattern: str) -> str:
    # With `re`: pydantic's own patterns cannot look ahead.
    if not re.fullmatch(pattern, name):
        raise ValueError("expected a lowercase letter, then lowercase letters, digits and single hyphens")
    return name


# `backend.nemo_customizer`: hyperparameters, deployment, and the service itself.


class DpoHyperparameters(Section):
    """DPO, in the names of NeMo Customizer."""

    ref_policy_kl_penalty: float = Field(default=0.1, ge=0)
    """Beta: how strongly the policy is held to its reference."""
    preference_loss_weight: float = Field(default=1.0, ge=0)
    """Weight of the preference loss."""
    preference_average_log_probs: bool = False
    """Average log-probs over tokens in the preference loss."""
    sft_loss_weight: float = Field(default=0.0, ge=0)
    """Weight of an SFT loss on the chosen side."""
    sft_average_log_probs: bool | None = None
    """Average log-probs over tokens in the SFT loss; null: as preference_average_log_probs."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Largest norm of a gradient."""


def follow_average(dpo: Mapping[str, Any]) -> dict[str, Any]:
    """DPO options with `sft_average_log_probs` as NeMo RL sets it: equal to `preference_average_log_probs` unless set.

    >>> follow_average({"preference_average_log_probs": True, "sft_average_log_probs": None})
    {'sft_average_log_probs': True, 'preference_average_log_probs': True}
    """
    options = {name: value for name, value in dpo.items() if value is not None}
    return {"sft_average_log_probs": options.get("preference_average_log_probs", False), **options}


# Hyperparameters of the service that need nothing of us.
SENT_AS_THEY_ARE = (
    "lora", "seed", "max_steps", "warmup_steps", "weight_decay", "optimizer", "adam_beta1", "adam_beta2",
    "min_learning_rate", "val_check_interval", "log_every_n_steps", "sequence_packing_enabled",
)  # fmt: skip


class CustomizerHyperparameters(Section):
    """What the job is asked to do. What is left out is the service's choice. The keys of `SENT_AS_THEY_ARE` may stand
    beside these; the service checks their values."""

    model_config = ConfigDict(extra="allow")

    training_type: Literal["dpo", "sft"] = "dpo"
    """dpo trains on pairs; sft trains on their chosen sides."""
    finetuning_type: Literal["lora", "lora_merged", "all_weights"] = "all_weights"
    """What is trained."""
    epochs: int = Field(default=3, ge=1)
    """Passes over the training file."""
    batch_size: int = Field(default=4, ge=1)
    """Pairs a step."""
    learning_rate: float = Field(default=5e-5, gt=0)
    """Learning rate."""
    dpo: DpoHyperparameters = DpoHyperparameters()

    @model_validator(mode="after")
    def _names_are_known(self) -> "CustomizerHyperparameters":
        known = (*type(self).model_fields, *SENT_AS_THEY_ARE)
        for name in self.model_extra or {}:
            if name not in SENT_AS_THEY_ARE:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
                raise ValueError(f"unknown key {name!r}; {hint}")
        return self

    def options(self) -> dict[str, Any]:
        """The options that are set, by name; sft has none of DPO's."""
        options = self.model_dump(exclude_none=True, mode="json")
        if self.training_type == "sft":
            del options["dpo"]
        else:
            options["dpo"] = follow_average(options["dpo"])
        return options


class DeploymentConfig(Section):
    """How the tuned model is deployed."""

    image_name: str | None = None
    """Container image of the model server; our own service needs none."""
    image_tag: str = "latest"
    """Tag of the image."""
    gpu: int = Field(default=1, ge=0)
    """GPUs a replica."""
    deployment_name: str | None = Field(default=None, pattern=_NAME)
    """Name of the deployment; without one it is made from the job's id."""
    description: str = "Deployed by pairwright"
    """Shown by the service."""


class NemoCustomizerConfig(Section):
    """A service that speaks NeMo Customizer's protocol: NVIDIA's, or `pairwright serve jobs`."""

    # addresses and secrets
    entity_host: str | None = Field(default=None, pattern=r"^https?://")
    """Address of namespaces, datasets, jobs and deployments."""
    datastore_host: str | None = Field(default=None, pattern=r"^https?://")
    """Address of the data store; the entity host if not set."""
    hf_token: SecretStr | None = None
    """Token of the data store, sent to the entity host too where that is the same host."""
    api_token: SecretStr | None = None
    """Token of the entity host, where it wants one of its own."""
    # names on the service
    namespace: str = Field(default="default", pattern=_NAME)
    """Namespace of dataset, job and model."""
    dataset_name: str = Field(default="pairwright-dpo", pattern=_NAME)
    """Name of the dataset; each run is a revision of it, and its job is pinned to that revision."""
    dataset_output_dir: str | None = None
    """Folder for the files before they are uploaded; in the run's folder if not set."""
    create_namespace_if_missing: bool = True
    """Create the namespace in both stores if it is not there."""
    # the job and its data
    customization_config: str | None = None
    """What is tuned, e.g. meta/llama-3.2-1b-instruct@v1.0.0+A100; else the job's model."""
    hyperparameters: CustomizerHyperparameters = CustomizerHyperparameters()
    use_full_message_history: bool = False
    """Upload prompts as lists of messages instead of one text."""
    validation: float = Field(default=0.2, ge=0, lt=1)
    """Share of the groups held out where the pairs have no validation split."""
    pin_revision: bool = True
    """Name the uploaded revision in the job. Off for a service that cannot read it."""
    # deployment
    deploy_on_completion: bool = False
    """Deploy the tuned model when the job is completed."""
    deployment_config: DeploymentConfig = DeploymentConfig()
    # waiting for the job and for the deployment
    poll_interval_seconds: float = Field(default=30, gt=0)
    """Between two status calls."""
    training_timeout_seconds: float | None = Field(default=7 * 86_400, gt=0)
    """How long a job is waited for; null: for ever."""
    deployment_timeout_seconds: float = Field(default=1800, gt=0)
    """How long a deployment is waited for."""
    max_status_failures: int = Field(default=10, ge=0)
    """Status calls that may fail in a row before waiting ends."""
    wait_for_completion: bool = True
    """Wait for the job after submitting it."""

    @model_validator(mode="before")
    @classmethod
    def _nat_counts_the_last(cls, data: Any) -> Any:
        """NAT's max_consecutive_status_failures is the failure that ends the wait, ours are those before it."""
        theirs = data.get("max_consecutive_status_failures") if isinstance(data, dict) else None
        if theirs is None:
            return data
        if "max_status_failures" in data:
            raise ValueError("max_consecutive_status_failures: give it or max_status_failures, not both")
        if not isinstance(theirs, int) or theirs < 1:
            raise ValueError(f"max_consecutive_status_failures: got {theirs!r}, expected a number of at least 1")
        own = {name: value for name, value in data.items() if name != "max_consecutive_status_failures"}
        return {**own, "max_status_failures": theirs - 1}

    @field_validator("entity_host", "datastore_host")
    @classmethod
    def _no_slash(cls, value: str | None) -> str | None:
        return value.rstrip("/") if value else None

    @field_validator("hf_token", "api_token", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value

    @property
    def has_anchor(self) -> bool:
        """Whether something holds the likelihood of chosen sides."""
        return self.hyperparameters.training_type == "sft" or self.hyperparameters.dpo.sft_loss_weight > 0


# `backend.nemo_platform`: the open successor of NeMo Customizer. Names and defaults of its training fields are its own.

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


# The other places: this machine, TRL, NeMo RL.


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

"""`backend`: where a job trains, and what that place wants to know."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

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


class LoraHyperparameters(Section):
    """LoRA, in the names of NeMo Customizer."""

    adapter_dim: int | None = Field(default=None, ge=1)
    """Rank."""
    alpha: int | None = Field(default=None, ge=1)
    """Scale."""
    adapter_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout."""
    target_modules: tuple[str, ...] | None = None
    """Modules that get an adapter."""


class CustomizerHyperparameters(Section):
    """What the job is asked to do. What is not set is not sent, and is the service's choice."""

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
    lora: LoraHyperparameters | None = None
    """LoRA, where the job trains an adapter."""
    seed: int | None = None
    """Seed of the service's own draws."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many steps."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps of warm-up."""
    weight_decay: float | None = Field(default=None, ge=0)
    """Weight decay."""
    optimizer: str | None = None
    """Optimizer."""
    adam_beta1: float | None = None
    """Adam."""
    adam_beta2: float | None = None
    """Adam."""
    min_learning_rate: float | None = Field(default=None, ge=0)
    """Where a decaying learning rate ends."""
    val_check_interval: float | None = Field(default=None, gt=0)
    """Steps, or share of an epoch, between validations."""
    log_every_n_steps: int | None = Field(default=None, ge=1)
    """Steps between log lines."""
    sequence_packing_enabled: bool | None = None
    """Pack sequences."""

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
    request_timeout_seconds: float = Field(default=60, gt=0)
    """Of one request; uploads may take ten times as long."""
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


class PlatformParallelism(Section):
    """GPUs of a job."""

    num_gpus_per_node: int = Field(default=1, ge=1)
    """GPUs a node."""
    num_nodes: int = Field(default=1, ge=1)
    """Nodes."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share a layer."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share the layers."""
    context_parallel_size: int = Field(default=1, ge=1)
    """GPUs that share a sequence."""
    sequence_parallel: bool = False
    """Share activations along the sequence, too."""


class PlatformTraining(Section):
    """DPO, in the names and with the defaults of NeMo Platform 0.6."""

    # the loss
    ref_policy_kl_penalty: float = Field(default=0.05, ge=0)
    """Beta: how strongly the policy is held to its reference."""
    preference_average_log_probs: bool = False
    """Average log-probs over tokens in the preference loss."""
    sft_average_log_probs: bool = False
    """Average log-probs over tokens in the SFT loss."""
    preference_loss_weight: float = Field(default=1.0, ge=0)
    """Weight of the preference loss."""
    sft_loss_weight: float = Field(default=0.0, ge=0)
    """Weight of an SFT loss on the chosen side."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Largest norm of a gradient."""
    # steps and batches
    epochs: int = Field(default=1, ge=1)
    """Passes over the data."""
    max_steps: int | None = Field(default=None, ge=1)
    """Steps, whatever the epochs say."""
    batch_size: int = Field(default=32, ge=1)
    """Pairs a step, over all GPUs."""
    micro_batch_size: int = Field(default=1, ge=1)
    """Pairs a pass on a GPU."""
    max_seq_length: int = Field(default=2048, ge=1)
    """Longest sequence, in tokens."""
    activation_checkpointing: bool = False
    """Compute activations again instead of keeping them."""
    seed: int | None = None
    """Seed; the configuration's if not set."""
    # optimizer
    optimizer_type: (
        Literal["adamw_with_cosine_annealing", "adam_with_cosine_annealing", "adamw_with_flat_lr", "adam_with_flat_lr"]
        | None
    ) = None
    """Optimizer and schedule; AdamW with cosine annealing if not set."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Peak learning rate."""
    min_learning_rate: float | None = Field(default=None, ge=0)
    """Learning rate at the end."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Of the first moment."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """Of the second moment."""
    adam_eps: float = Field(default=1e-5, gt=0)
    """Added to the denominator."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""
    # validation and checkpoints
    val_check_interval: float | None = Field(default=None, ge=0)
    """Steps between validations, up to 1 a share of an epoch."""
    val_at_end: bool = True
    """Validate after the last step."""
    keep_top_k: int = Field(default=1, ge=1)
    """Best checkpoints to keep."""
    # where it runs
    parallelism: PlatformParallelism = PlatformParallelism()
    execution_profile: str | None = Field(default=None, min_length=1)
    """Profile of the GPU step; the service's if not set."""

    @model_validator(mode="after")
    def _fit_together(self) -> "PlatformTraining":
        """What the service refuses when it compiles the job is said before anything is sent."""
        gpus = self.parallelism
        if self.min_learning_rate is not None and self.min_learning_rate > self.learning_rate:
            raise ValueError(f"min_learning_rate: {self.min_learning_rate} is more than learning_rate")
        share = gpus.tensor_parallel_size * gpus.pipeline_parallel_size * gpus.context_parallel_size
        total = gpus.num_gpus_per_node * gpus.num_nodes
        if total % share:
            raise ValueError(f"parallelism: {total} GPUs cannot be shared by models on {share} GPUs each")
        if gpus.context_parallel_size > 1 and gpus.sequence_parallel and gpus.tensor_parallel_size > 1:
            raise ValueError("parallelism: context and sequence parallelism do not go together with tensor parallelism")
        if self.batch_size % (self.micro_batch_size * (total // share)):
            raise ValueError(
                f"batch_size: {self.batch_size} pairs cannot be shared by {total // share} models of "
                f"micro_batch_size {self.micro_batch_size}"
            )
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ValueError("preference_loss_weight: this and sft_loss_weight are 0: nothing would be trained")
        return self


class NemoPlatformConfig(Section):
    """NeMo Platform: workspaces, filesets and DPO jobs over HTTP."""

    base_url: str | None = None
    """Address of the platform."""
    api_token: SecretStr | None = None
    """Token for the platform."""
    workspace: _PlatformName = "default"
    """Workspace of filesets, jobs and models."""
    dataset_name: _PlatformName = Field(default="pairwright-dpo", max_length=34)
    """Filesets begin with this; every run has its own."""
    model: str | None = None
    """Model entity that is tuned, NAME or WORKSPACE/NAME; else the job's model."""
    output_name: _PlatformName | None = Field(default=None, max_length=34)
    """The model that a run makes begins with this; dataset_name if not set."""
    project: str | None = None
    """Project of the job."""
    tool_calls: Literal["refuse", "text"] = "refuse"
    """Its rows hold no tool calls: refuse such pairs, or write calls, results and schemas as text (Hermes tags)."""
    validation: float = Field(default=0.2, gt=0, lt=1)
    """Share of the groups held out where the pairs have no validation split; the platform needs some."""
    training: PlatformTraining = PlatformTraining()
    poll_interval_seconds: float = Field(default=15, gt=0)
    """Between two status calls."""
    training_timeout_seconds: float | None = Field(default=7 * 86_400, gt=0)
    """How long a job is waited for; null: for ever."""
    max_status_failures: int = Field(default=10, ge=0)
    """Status calls that may fail in a row before waiting ends."""
    request_timeout_seconds: float = Field(default=60, gt=0)
    """Of one request; uploads may take ten times as long."""
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
        return self.training.sft_loss_weight > 0


# The other places: this machine, TRL, NeMo RL.


class LocalConfig(Section):
    """Training on this machine, in a process of its own."""

    poll_interval_seconds: float = Field(default=1, gt=0)
    """Between two looks at the run."""
    training_timeout_seconds: float | None = Field(default=None, gt=0)
    """How long a job is waited for; null: for ever."""
    cancel_grace_seconds: float = Field(default=60, ge=0)
    """How long a cancelled job may take to save its checkpoint before it is killed."""
    deployment_timeout_seconds: float = Field(default=300, gt=0)
    """How long a model server may take to answer."""


class TrlConfig(Section):
    """`trl dpo` as the trainer; its options come from the section train."""

    command: tuple[str, ...] = Field(default=("trl",), min_length=1)
    """How TRL is called."""
    validation: float = Field(default=0.2, ge=0, lt=1)
    """Share of the groups held out where the pairs have no validation split."""
    accept_other_data: bool = False
    """Go on where TRL would train more than the model wrote (tool results, other answers)."""
    options: dict[str, Any] = Field(default={})
    """More options of `trl dpo`, as they are."""


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

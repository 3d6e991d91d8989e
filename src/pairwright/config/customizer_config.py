"""`backend.nemo_customizer`: hyperparameters, deployment, and the service itself."""

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from pairwright.config.sections import Section, ServiceToken, ServiceUrl

# Names that are safe in URLs and paths
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class DpoHyperparameters(Section):
    """DPO, in the names of NeMo Customizer."""

    ref_policy_kl_penalty: float = Field(default=0.1, ge=0)
    """Beta: how strongly the policy is pulled to its reference."""
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


# Hyperparameters that are passed to the service unchanged.
SENT_AS_THEY_ARE = (
    "lora", "seed", "max_steps", "warmup_steps", "weight_decay", "optimizer", "adam_beta1", "adam_beta2",
    "min_learning_rate", "val_check_interval", "log_every_n_steps", "sequence_packing_enabled",
)  # fmt: skip


class CustomizerHyperparameters(Section):
    """Hyperparameters of the job. The service chooses those that are left out. The keys of `SENT_AS_THEY_ARE` are also
    allowed; the service checks their values."""

    model_config = ConfigDict(extra="allow")

    training_type: Literal["dpo", "sft"] = "dpo"
    """dpo trains on pairs; sft trains on their chosen sides."""
    finetuning_type: Literal["lora", "lora_merged", "all_weights"] = "all_weights"
    """What is trained."""
    epochs: int = Field(default=3, ge=1)
    """Passes over the training file."""
    batch_size: int = Field(default=4, ge=1)
    """Pairs per step."""
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
        """The options that are set, by name; without those of DPO for sft."""
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
    """GPUs per replica."""
    deployment_name: str | None = Field(default=None, pattern=_NAME)
    """Name of the deployment; by default made from the job's id."""
    description: str = "Deployed by pairwright"
    """Shown by the service."""


class NemoCustomizerConfig(Section):
    """A service that speaks NeMo Customizer's protocol: NVIDIA's, or `pairwright serve jobs`."""

    entity_host: ServiceUrl = Field(default=None, pattern=r"^https?://")
    """Address of namespaces, datasets, jobs and deployments."""
    datastore_host: ServiceUrl = Field(default=None, pattern=r"^https?://")
    """Address of the data store; the entity host if not set."""
    hf_token: ServiceToken = None
    """Token of the data store; also sent to the entity host if both have the same address."""
    api_token: ServiceToken = None
    """Token of the entity host, if it differs from that of the data store."""
    namespace: str = Field(default="default", pattern=_NAME)
    """Namespace of dataset, job and model."""
    dataset_name: str = Field(default="pairwright-dpo", pattern=_NAME)
    """Name of the dataset; each run is a revision of it, and its job is pinned to that revision."""
    dataset_output_dir: str | None = None
    """Folder for the files to upload; by default in the run's folder."""
    create_namespace_if_missing: bool = True
    """Create the namespace in both stores if it is missing."""
    customization_config: str | None = None
    """Model to tune, e.g. meta/llama-3.2-1b-instruct@v1.0.0+A100; by default the job's model."""
    hyperparameters: CustomizerHyperparameters = CustomizerHyperparameters()
    use_full_message_history: bool = False
    """Upload prompts as lists of messages instead of one text."""
    validation: float = Field(default=0.2, ge=0, lt=1)
    """Share of the groups to hold out if the pairs have no validation split."""
    pin_revision: bool = True
    """Name the uploaded revision in the job. Off for a service that cannot read it."""
    deploy_on_completion: bool = False
    """Deploy the tuned model when the job is completed."""
    deployment_config: DeploymentConfig = DeploymentConfig()
    poll_interval_seconds: float = Field(default=30, gt=0)
    """Seconds between two status calls."""
    training_timeout_seconds: float | None = Field(default=7 * 86_400, gt=0)
    """Longest time to wait for a job, in seconds; null: no limit."""
    deployment_timeout_seconds: float = Field(default=1800, gt=0)
    """Longest time to wait for a deployment, in seconds."""
    max_status_failures: int = Field(default=10, ge=0)
    """Status calls that may fail in a row before waiting ends."""
    wait_for_completion: bool = True
    """Wait for the job after submitting it."""

    @model_validator(mode="before")
    @classmethod
    def _nat_counts_the_last(cls, data: Any) -> Any:
        """NAT counts the failure that ends the wait, we count the failures before it: ours is one less."""
        theirs = data.get("max_consecutive_status_failures") if isinstance(data, dict) else None
        if theirs is None:
            return data
        if "max_status_failures" in data:
            raise ValueError("max_consecutive_status_failures: give it or max_status_failures, not both")
        if not isinstance(theirs, int) or theirs < 1:
            raise ValueError(f"max_consecutive_status_failures: got {theirs!r}, expected a number of at least 1")
        own = {name: value for name, value in data.items() if name != "max_consecutive_status_failures"}
        return {**own, "max_status_failures": theirs - 1}

    @property
    def has_anchor(self) -> bool:
        """Whether a term keeps the likelihood of chosen sides from falling."""
        return self.hyperparameters.training_type == "sft" or self.hyperparameters.dpo.sft_loss_weight > 0

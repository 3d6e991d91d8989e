"""Options of the three components: those of NAT 1.9 with its names and defaults, and our own.

`pairs`, `train` and `tokens` are the sections of our configuration and are declared there. If an option exists in both
(NAT's `min_score_diff` and `pairs.min_gap`), setting both is an error, so that no value is ignored.
"""

from pathlib import Path
from typing import Literal

from nat.data_models.finetuning import TrainerAdapterConfig, TrainerConfig, TrajectoryBuilderConfig
from pydantic import AliasChoices, ConfigDict, Field, SecretStr, model_validator

from pairwright.config import Config, EngineConfig, PairsConfig, TokensConfig, TrainConfig
from pairwright.config.config_file import adjust_config
from pairwright.config.customizer_config import (
    CustomizerHyperparameters,
    DeploymentConfig,
    DpoHyperparameters,
    follow_average,
)
from pairwright.config.nat_keys import IMAGE
from pairwright.config.pairs_names import own_names
from pairwright.config.plain_yaml import merge_trees
from pairwright.errors import ConfigError

__all__ = [
    "CustomizerHyperparameters",
    "DpoHyperparameters",
    "NimDeploymentConfig",
    "PairwrightTrainerAdapterConfig",
    "PairwrightTrainerConfig",
    "PairwrightTrajectoryBuilderConfig",
]

# NAT assigns `reward` and its tests change options, so these models are not frozen; unknown keys are errors.
_MUTABLE = ConfigDict(extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)
_NAT_PAIR_OPTIONS = ("exhaustive_pairs", "min_score_diff", "max_pairs_per_turn")


class PairwrightTrajectoryBuilderConfig(TrajectoryBuilderConfig, name="pairwright_traj_builder"):  # type: ignore[misc,call-arg]
    """`dpo_traj_builder` with our funnel."""

    model_config = _MUTABLE

    # NAT's example uses the old name, which NAT 1.9 ignores
    ttc_step_name: str = Field(
        default="dpo_candidate_move", validation_alias=AliasChoices("ttc_step_name", "custom_step_name")
    )
    """Name of the TTC_END steps that are candidates."""
    exhaustive_pairs: bool = True
    """Pair all candidates of a turn; false pairs only the best with the worst."""
    min_score_diff: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Smallest difference of scores. A tie is never a pair."""
    max_pairs_per_turn: int | None = Field(default=None, ge=1)
    """Most pairs per turn; the largest differences are kept."""
    reward_from_score_diff: bool = True
    """Use the difference of scores as the reward of a trajectory; false uses the score of the chosen candidate."""
    require_multiple_candidates: bool = True
    """Count turns with one candidate in `skipped_single_candidate`. A pair needs two in either case, as in NAT."""
    pairs: PairsConfig = PairsConfig()
    """Further options of pair building (docs/reference/pairs.md), such as near_duplicates. As in NAT, a run keeps
    repeated and contradicting pairs unless `dedupe` or `contradictions` is set here."""
    seed: int = Field(default=0, ge=0)
    """Seed of random samples."""
    redact: bool = False
    """Replace API keys, tokens and private keys in the steps before they are stored."""
    output_dir: Path | None = None
    """Folder of the runs; by default `pairwright` in finetuning.output_dir."""

    @model_validator(mode="after")
    def _fit_together(self) -> "PairwrightTrajectoryBuilderConfig":
        for name in _NAT_PAIR_OPTIONS:
            twice = own_names({name: getattr(self, name)}).keys() & self.pairs.model_fields_set
            if name in self.model_fields_set and twice:
                raise ValueError(f"{name}: give it or pairs.{twice.pop()}, not both")
        if self.pairs.strategy in ("imported", "teachers"):
            raise ValueError(f"pairs.strategy: {self.pairs.strategy!r} does not compare the candidates of a turn")
        return self

    def pair_config(self) -> Config:
        """Return our configuration, with NAT's options as those of `pairs`."""
        own = {name: getattr(self.pairs, name) for name in self.pairs.model_fields_set}
        theirs = own_names({name: getattr(self, name) for name in _NAT_PAIR_OPTIONS})
        pairs = {**theirs, "dedupe": False, "contradictions": "keep", **own}
        # as in NAT, several evaluations of one example are not compared with each other
        if pairs["strategy"] != "divergence" and not self.pairs.across_groups and self.pairs.votes is None:
            pairs = {"within_run": True, **pairs}
        return adjust_config(Config(), seed=self.seed, pairs=pairs)


class NimDeploymentConfig(DeploymentConfig):
    """How the tuned model is deployed, with NAT's defaults."""

    image_name: str | None = IMAGE
    description: str = "Fine-tuned model deployment"


class PairwrightTrainerAdapterConfig(TrainerAdapterConfig, name="pairwright_trainer_adapter"):  # type: ignore[misc,call-arg]
    """`nemo_customizer_trainer_adapter` that also trains on this machine and on Ray."""

    model_config = _MUTABLE

    backend: Literal["nemo-customizer", "local", "ray"] = "nemo-customizer"
    """Where to train: a service with the Customizer protocol, a process on this machine, or a Ray cluster."""
    entity_host: str | None = None
    """nemo-customizer: address of namespaces, datasets, jobs and deployments."""
    datastore_host: str | None = None
    """nemo-customizer: address of the data store."""
    hf_token: str = Field(default="", repr=False)
    """nemo-customizer: token of the data store; also sent to the entity host if both have the same address."""
    api_token: SecretStr | None = None
    """nemo-customizer: token of the entity host, if it differs from that of the data store."""
    namespace: str | None = None
    """nemo-customizer: namespace of dataset, job and model."""
    dataset_name: str = "nat-dpo"
    """nemo-customizer: name of the dataset; each run is a revision of it."""
    dataset_output_dir: str | None = None
    """nemo-customizer: folder for the uploaded files, with a subfolder per run; by default the job's folder."""
    create_namespace_if_missing: bool = True
    """nemo-customizer: create the namespace in both stores if it is missing."""
    customization_config: str | None = None
    """nemo-customizer: model to tune, e.g. meta/llama-3.2-1b-instruct@v1.0.0+A100."""
    pin_revision: bool = True
    """nemo-customizer: name the uploaded revision in the job. Off for a service that cannot read it."""
    use_full_message_history: bool = False
    """nemo-customizer: upload prompts as lists of messages; false uploads the text of the last message, as NAT does,
    and reports how many prompts lost messages. The other backends always train on the whole prompt."""
    model: str | None = None
    """local, ray: folder of the model to train."""
    train: TrainConfig = TrainConfig()
    """local, ray: options of training (docs/reference/training.md); they override the hyperparameters."""
    tokens: TokensConfig = TokensConfig()
    """local, ray: how messages become tokens (docs/reference/tokens.md)."""
    engine: EngineConfig = EngineConfig()
    """ray: address and number of workers."""
    hyperparameters: CustomizerHyperparameters = CustomizerHyperparameters()
    """Hyperparameters of the job."""
    validation: float = Field(default=0.2, ge=0, lt=1)
    """Share of the pairs held out for validation, in whole tasks and prompts."""
    seed: int = Field(default=0, ge=0)
    """Seed of the split and of training."""
    deploy_on_completion: bool = False
    """Deploy the tuned model when the job is completed."""
    deployment_config: NimDeploymentConfig = NimDeploymentConfig()
    """nemo-customizer: how it is deployed."""
    poll_interval_seconds: float = Field(default=30.0, gt=0)
    """Seconds between two status calls."""
    training_timeout_seconds: float | None = Field(default=7 * 86_400, gt=0)
    """Longest time to wait for a job, in seconds; null: no limit."""
    deployment_timeout_seconds: float = Field(default=1800.0, gt=0)
    """nemo-customizer: longest time to wait for a deployment, in seconds."""
    max_consecutive_status_failures: int = Field(default=3, ge=1, le=10)
    """Number of failed status calls in a row that ends the wait."""
    output_dir: Path | None = None
    """Folder of the jobs; by default `pairwright` in finetuning.output_dir."""

    @model_validator(mode="after")
    def _fit_together(self) -> "PairwrightTrainerAdapterConfig":
        needs = (
            ("entity_host", "datastore_host", "namespace", "customization_config")
            if self.backend == "nemo-customizer"
            else ("model",)
        )
        missing = [name for name in needs if not getattr(self, name)]
        if missing:
            raise ValueError(f"{', '.join(missing)}: needed by backend: {self.backend}")
        self.entity_host = self.entity_host and self.entity_host.rstrip("/")
        self.datastore_host = self.datastore_host and self.datastore_host.rstrip("/")
        try:
            self.job_config()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def job_config(self) -> Config:
        """Return our configuration of a job."""
        if self.backend == "nemo-customizer":
            own = (
                "entity_host", "datastore_host", "namespace", "dataset_name", "customization_config", "pin_revision",
                "create_namespace_if_missing", "use_full_message_history", "deployment_timeout_seconds",
                "poll_interval_seconds", "training_timeout_seconds",
            )  # fmt: skip
            service = {
                **{name: getattr(self, name) for name in own},
                "hf_token": self.hf_token or None,
                "api_token": None if self.api_token is None else self.api_token.get_secret_value(),
                "hyperparameters": self.hyperparameters.model_dump(exclude_none=True),
                "validation": 0.0,  # the pairs already have a split
                "deployment_config": self.deployment_config.model_dump(),
                "max_status_failures": self.max_consecutive_status_failures - 1,
            }
            return adjust_config(Config(), seed=self.seed, backend={"name": self.backend, "nemo_customizer": service})
        # values of `train` replace hyperparameters of the same name; sections are merged key by key
        asked = self.hyperparameters.model_dump(exclude_none=True)
        if "channels" in self.train.model_fields_set:
            del asked["training_type"]  # `channels` replaces it
        train = merge_trees(asked, self.train.model_dump(exclude_unset=True))
        train["dpo"] = follow_average(train["dpo"])
        return adjust_config(
            Config(),
            seed=self.seed,
            backend={"name": self.backend},
            train=train,
            tokens=self.tokens.model_dump(exclude_unset=True),
            engine={**self.engine.model_dump(exclude_unset=True), **({"name": "ray"} if self.backend == "ray" else {})},
        )


class PairwrightTrainerConfig(TrainerConfig, name="pairwright_trainer"):  # type: ignore[misc,call-arg]
    """`nemo_customizer_trainer` that resumes."""

    model_config = _MUTABLE

    num_runs: int = Field(default=1, ge=1)
    """Number of evaluation runs that collect pairs."""
    continue_on_collection_error: bool = False
    """Continue with the other runs if one fails."""
    deduplicate_pairs: bool = True
    """Keep equal pairs once."""
    max_pairs: int | None = Field(default=None, ge=1)
    """Most pairs; more are reduced to a seeded sample."""
    wait_for_completion: bool = True
    """Wait for the end of training; false submits the job and returns."""
    contradictions: Literal["drop", "majority", "keep"] = "keep"
    """A over B in one run and B over A in another: keep both, as NAT does, drop both, or keep the more frequent."""
    seed: int = Field(default=0, ge=0)
    """Seed of the sample."""
    resume: bool = True
    """Continue with a collection in finetuning.output_dir that was interrupted, if it has the same configuration."""

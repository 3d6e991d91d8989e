"""Request bodies as pydantic models. Unknown keys are refused."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Validate that a value survives a JSON round trip and is at most 50 levels deep."""
    try:
        # A round trip detects values that JSON cannot represent: NaN, lone surrogates, non-text keys.
        same = bool(msgspec.json.decode(msgspec.json.encode(value)) == value)
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
        same = False
    if not same or _depth(value) > 50:
        raise ValueError("expected JSON of finite numbers, valid text and at most 50 levels")
    return value


def _depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, items), default=0)


def _no_bool(value: Any) -> Any:
    # Otherwise pydantic accepts true as 1.
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _model_name(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    name, namespace = value.get("name"), value.get("namespace")
    return f"{namespace}/{name}" if namespace and name else str(name or value.get("id") or "")


# Lengths are bounded, since these values are stored and displayed.
Text = Annotated[str, Field(max_length=10_000)]
Name = Annotated[str, Field(max_length=300)]
ModelName = Annotated[str, Field(max_length=500)]
Json = Annotated[dict[str, Any], AfterValidator(_plain)]
# A model given by name, or as an object with its name.
ModelReference = Annotated[ModelName, BeforeValidator(_model_name, json_schema_input_type=ModelName | Json)]
Number = Annotated[float, BeforeValidator(_no_bool)]
Count = Annotated[int, BeforeValidator(_no_bool)]


class Body(BaseModel):
    # protected_namespaces: fields may begin with `model_`.
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class Described(Body):
    """Optional fields that every entity has."""

    description: Text | None = None
    project: Name | None = None
    custom_fields: Json = {}
    ownership: Json | None = None


class NamespaceBody(Described):
    id: Name


class DatasetFields(Body):
    format: Name | None = None
    hf_endpoint: Name | None = None
    # 2**53: the largest integer that every JSON client reads exactly.
    limit: Count | None = Field(default=None, ge=1, le=2**53)
    split: Name | None = None


class DatasetBody(DatasetFields, Described):
    """A dataset and where its files are: `hf://datasets/<namespace>/<name>`, with `@<commit>` for one revision."""

    name: Name
    namespace: Name = "default"
    files_url: Name


class DatasetReference(Body):
    name: Name | None = None
    namespace: Name = "default"
    files_url: Name | None = None


class Lora(Body):
    adapter_dim: Count = Field(default=16, ge=1, le=65_536)
    alpha: Number = Field(default=32, gt=0)
    adapter_dropout: Number = Field(default=0.0, ge=0, lt=1)
    target_modules: list[Name] | None = Field(default=None, max_length=1000)


class Dpo(Body):
    # NeMo Customizer's name for beta; `train.dpo` accepts it as an alias.
    ref_policy_kl_penalty: Number = Field(default=0.1, gt=0)
    preference_loss_weight: Number = Field(default=1.0, ge=0)
    preference_average_log_probs: bool = False
    sft_loss_weight: Number = Field(default=0.0, ge=0)
    # As in NeMo RL: null means the value of preference_average_log_probs.
    sft_average_log_probs: bool | None = None
    max_grad_norm: Number = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _something(self) -> "Dpo":
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ValueError("preference_loss_weight and sft_loss_weight are both 0: nothing would be trained")
        return self


class Sft(Body):
    attention_dropout: Number | None = Field(default=None, ge=0, le=1)
    hidden_dropout: Number | None = Field(default=None, ge=0, le=1)


class Hyperparameters(Body):
    """Hyperparameters of a job. Unsupported training types are refused when the job is submitted."""

    training_type: Literal["sft", "dpo", "grpo", "distillation"] = "sft"
    finetuning_type: Literal["lora", "lora_merged", "all_weights"]
    epochs: Count = Field(default=1, ge=1, le=100_000)
    batch_size: Count = Field(default=16, ge=1, le=100_000)
    learning_rate: Number = Field(default=9e-6, gt=0)
    seed: Count = Field(default=0, ge=0, lt=2**53)
    # -1 means no limit, as in the protocol.
    max_steps: Count | None = Field(default=None, ge=-1, lt=2**53)
    warmup_steps: Count = Field(default=0, ge=0, lt=2**53)
    weight_decay: Number = Field(default=0.0, ge=0)
    optimizer: Literal[
        "adamw_with_cosine_annealing", "adamw_with_flat_lr", "adam_with_cosine_annealing", "adam_with_flat_lr"
    ] = "adamw_with_cosine_annealing"
    adam_beta1: Number = Field(default=0.9, ge=0, lt=1)
    adam_beta2: Number = Field(default=0.999, ge=0, lt=1)
    min_learning_rate: Number | None = Field(default=None, ge=0)
    val_check_interval: Number | None = Field(default=None, gt=0)
    # 0 means the default, as in the protocol.
    log_every_n_steps: Count = Field(default=1, ge=0, lt=2**53)
    sequence_packing_enabled: bool = False
    lora: Lora | None = None
    dpo: Dpo | None = None
    sft: Sft | None = None
    # Parsed, so that the refusal names the training type instead of an unknown key.
    grpo: Json | None = None
    distillation: Json | None = None


class JobConfig(Body):
    """An inline configuration of a job: a base model and its maximum sequence length."""

    target: Name | Json | None = None
    name: Name | None = None
    namespace: Name | None = None
    max_seq_length: Count | None = Field(default=None, ge=1, lt=2**31)
    training_options: list[Json] = Field(default=[], max_length=100)
    training_precision: Name | None = None
    description: Text | None = None
    project: Name | None = None
    pod_spec: Json | None = None
    ownership: Json | None = None
    custom_fields: Json = {}
    dataset_schemas: list[Json] | None = Field(default=None, max_length=100)
    # Parsed, so that the refusal can say why: training uses the model's own chat template.
    prompt_template: Text | None = None
    chat_prompt_template: Text | None = None


class JobBody(Body):
    # The order of fields must not change: it is part of the hash by which a repeated request finds its job.
    config: Name | JobConfig
    dataset: Name | DatasetReference
    hyperparameters: Hyperparameters
    name: Name | None = None
    namespace: Name | None = None
    project: Name | None = None
    output_model: Annotated[str, Field(max_length=500)] | None = None
    description: Text | None = None
    integrations: list[Json] = Field(default=[], max_length=100)
    ownership: Json | None = None
    custom_fields: Json = {}
    dataset_parameters: Json | None = None


class ExternalEndpoint(Body):
    """An external server that a deployment forwards to. The operator decides which hosts are allowed."""

    host_url: Annotated[str, Field(max_length=500)]
    api_key: Annotated[str, Field(max_length=500, pattern=r"^[!-~]*$")] | None = None
    enabled_models: list[ModelName] = Field(default=[], max_length=100)


class Served(Body):
    """What a deployment serves: a model of this service, or an external endpoint."""

    model: ModelReference | None = None
    # Container settings of NVIDIA's platform; only stored and returned, since models run in this service's server.
    nim_deployment: Json | None = None
    external_endpoint: ExternalEndpoint | None = None


class InlineConfig(Served, Described):
    name: Name | None = None
    namespace: Name | None = None
    schema_version: Name | None = None


class DeploymentConfigBody(Served, Described):
    name: Name | None = None
    namespace: Name = "default"


class DeploymentBody(Described):
    name: Name | None = None
    namespace: Name = "default"
    config: ModelName | InlineConfig
    models: list[ModelName] = Field(default=[], max_length=100)
    # Models are local; a token for another hub is not stored.
    hf_token: Annotated[str, Field(max_length=500)] | None = Field(default=None, exclude=True)
    async_enabled: bool | None = None


class ProjectBody(Described):
    name: Name
    namespace: Name = "default"


class ModelEntry(Body):
    """Metadata of a model, entered by clients. Only models of jobs and base models can be served."""

    api_endpoint: Json | None = None
    artifact: Json | None = None
    base_model: ModelName | Json | None = None
    guardrails: Json | None = None
    model_providers: list[ModelName] | None = Field(default=None, max_length=100)
    peft: Json | None = None
    prompt: Json | None = None
    spec: Json | None = None


class ModelBody(ModelEntry, Described):
    name: Name
    namespace: Name = "default"


class NamespaceUpdate(Described):
    # In every update, missing keys keep their values.
    schema_version: Name | None = Field(default=None, exclude=True)


class DatasetUpdate(DatasetFields, NamespaceUpdate):
    files_url: Name | None = None


class ModelUpdate(ModelEntry, NamespaceUpdate):
    pass


class DeploymentConfigUpdate(Served, NamespaceUpdate):
    pass


class DeploymentUpdate(NamespaceUpdate):
    config: ModelName | InlineConfig | None = None
    models: list[ModelName] | None = Field(default=None, max_length=100)
    async_enabled: bool | None = None
    hf_token: Annotated[str, Field(max_length=500)] | None = Field(default=None, exclude=True)

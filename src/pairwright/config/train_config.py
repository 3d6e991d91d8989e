"""`train`: channels, batches, optimizer, model and checkpoints, with NeMo Customizer's and NeMo RL's names accepted.

Foreign names of a field are listed in `AliasChoices`; `training_type` and `sequence_packing_enabled` have no field of
their own and are translated before the section is validated.
"""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, field_validator, model_validator

from pairwright.config.model_config import JudgeConfig
from pairwright.config.sections import Count, Section, Share
from pairwright.config.user_code import LOSSES, check_name

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PREFERENCE_LOSS_NAMES = (  # as in losses.PREFERENCE_LOSSES; repeated here so that completion does not load torch
    "sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "simpo", "orpo", "kto",
)  # fmt: skip


def _also(*names: str, **options: Any) -> Any:
    return Field(validation_alias=AliasChoices(*names), **options)


class Named(Section):
    """A section whose fields also have foreign names."""

    model_config = ConfigDict(populate_by_name=True)


LEARNING_RATE = 5e-6  # for 7 billion parameters
NO_ANCHOR = (
    "no SFT term (sft_loss_weight 0): the likelihood of good answers may fall with that of bad ones, and nothing holds "
    "turns that are not compared"
)


class ChannelWeights(Section):
    """Weight of each channel; 0 removes a channel and its cost."""

    dpo: Amount = 1.0
    """Preference pairs."""
    sft: Amount = 0.0
    """The chosen sides of pairs, by negative log-likelihood alone."""
    grpo: Amount = 0.0
    """Scored runs, by advantage within their group."""
    sdpo: Amount = 0.0
    """Error turns, distilled from the same model with a hint."""
    kto: Amount = 0.0
    """Scored runs, each labelled desirable or undesirable."""

    @model_validator(mode="after")
    def _something(self) -> "ChannelWeights":
        if not any(self.model_dump().values()):
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"every channel has weight 0: give one of {names} a weight")
        return self


# `*Terms` are the options of a loss, declared once for the configuration, the command line and `pairwright.losses`;
# `*Config` adds what only the trainer reads.


class PreferenceTerms(Named):
    """Options of a preference loss: `L = w_p · mean(ℓ(Δ)) + w_s · NLL(chosen)`."""

    beta: Annotated[float, Field(gt=0)] = _also(
        "beta", "ref_policy_kl_penalty", "reference_policy_kl_penalty", default=0.1
    )
    """Strength of the pull to the reference (β)."""
    preference_loss_weight: Amount = 1.0
    """Weight of the preference term (w_p)."""
    preference_average_log_probs: bool = False
    """Divide each side's log-probability by its number of tokens."""
    sft_loss_weight: Amount = 0.0
    """Weight of the chosen side's negative log-likelihood (w_s)."""
    sft_average_log_probs: bool = False
    """Divide the chosen side's log-likelihood by its number of tokens."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Assumed share of wrong labels (cDPO; robust)."""
    gamma: Amount = 0.5
    """simpo: target margin."""
    use_margin: bool = False
    """Use the pair's reward gap as the target margin."""
    desirable_weight: Amount = 1.0
    """kto: weight of chosen sides."""
    undesirable_weight: Amount = 1.0
    """kto: weight of rejected sides."""


class PreferenceLossName(Named):
    """Selects the preference loss."""

    loss: str = _also("loss", "preference_loss", "loss_type", default="sigmoid")
    """Preference loss, by its name in docs/reference/losses.md (dpo is sigmoid), or your own as file.py:FUNCTION."""
    mixture: dict[str, Amount] = Field(default={})
    """Several losses, each with its weight, in place of `loss`: {sigmoid: 0.8, apo_zero: 0.2}."""

    @model_validator(mode="before")
    @classmethod
    def _translate_mixture(cls, data: Any) -> Any:
        """Convert TRL's lists `loss_type` and `loss_weights` to `mixture`."""
        if not isinstance(data, dict) or not isinstance(names := data.get("loss_type"), list | tuple):
            return data
        data = dict(data)
        del data["loss_type"]
        weights = data.pop("loss_weights", None) or [1.0] * len(names)
        if len(weights) != len(names):
            raise ValueError(f"loss_weights: got {len(weights)} weights for {len(names)} losses")
        return data | {"mixture": dict(zip(names, weights, strict=True))}

    @field_validator("mixture")
    @classmethod
    def _check_mixture(cls, mixture: dict[str, float]) -> dict[str, float]:
        if "sft" in mixture:
            raise ValueError(f"sft is a channel of its own: set train.channels.sft={mixture['sft']:g}")
        for name in mixture:
            check_name(name, PREFERENCE_LOSS_NAMES, LOSSES)
        if mixture and not any(mixture.values()):
            raise ValueError("every loss has weight 0: give one of them a weight")
        return mixture

    @field_validator("loss")
    @classmethod
    def _check_loss(cls, name: str) -> str:
        if name == "dpo":  # the common name of DPO's own loss
            return "sigmoid"
        if name in ("grpo", "sdpo", "sft"):
            raise ValueError(
                f"{name} is a channel, not a preference loss: set train.channels.{name}=1 and train.channels.dpo=0"
            )
        return check_name(name, PREFERENCE_LOSS_NAMES, LOSSES)


class PreferenceConfig(PreferenceTerms, PreferenceLossName):  # keys of the last base class come first
    """The preference channel."""

    sft_loss_weight: Amount = 1.0
    """Weight of the chosen side's negative log-likelihood (w_s); 0 leaves it out, with a warning. For other trainers
    and services the default is 0."""
    sft_average_log_probs: bool = True
    """Divide the chosen side's log-likelihood by its number of tokens. For other trainers and services the default is
    preference_average_log_probs."""
    contrast: Literal["single", "all", "decisions"] = "single"
    """Turns of rejected sides to push away. single: sides of one generated turn; if most pairs have longer sides, the
    chosen sides of all pairs train by sft instead, without tokens sampled with a probability below 0.02, unless `loss`,
    `mixture` or `anchor_weight` is set. all: every turn. decisions: the last turn only if no earlier turn of the pair
    differs, because a report that follows from wrong decisions may be right. Other trainers and services: all."""
    anchor_weight: Amount = 0.0
    """Weight of the negative log-likelihood, per trained token, of generated turns in the prompts of pairs (steps,
    divergence). Pairs do not compare these turns; the term keeps their likelihood. 0 leaves it out."""

    @property
    def foreign_sft_weight(self) -> float:
        """`sft_loss_weight` for other trainers, whose own default is 0."""
        return self.sft_loss_weight if "sft_loss_weight" in self.model_fields_set else 0.0

    @property
    def losses(self) -> dict[str, float]:
        return {name: weight for name, weight in self.mixture.items() if weight} or {self.loss: 1.0}


class PolicyTerms(Named):
    """Options of the policy loss."""

    loss: Literal["token", "gspo"] = "token"
    """Importance ratio per token, or per sequence (gspo)."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Divisor of the sum over tokens."""
    constant_length: Count = 1024
    """aggregation constant: the divisor of every sequence."""
    clip_low: Amount = 0.2
    """Clip range below 1 (ε)."""
    clip_high: Amount = 0.2
    """Clip range above 1 (ε)."""
    kl_weight: Amount = 0.0
    """Weight of the divergence from the reference."""


class AdvantageName(Named):
    """Selects the advantage."""

    advantage: Literal["grpo", "dr_grpo"] = "grpo"
    """How rewards of a group become advantages."""


class PolicyConfig(PolicyTerms, AdvantageName):
    """The policy channel."""

    sft_loss_weight: Amount = 1.0
    """Weight of the negative log-likelihood of runs with a positive advantage, averaged per trained token; runs with
    advantages or rewards per token have no such term. 0 leaves it out, with a warning."""


class KtoConfig(Named):
    """The channel of runs that are labelled desirable or undesirable."""

    loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    """kto compares with the mean divergence from the reference, apo_zero_unpaired with 0."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """Strength of the pull to the reference (β)."""
    label_by: Literal["threshold", "group", "best", "best-worst"] = "threshold"
    """How a run is labelled desirable: its reward reaches `threshold`, is above the mean of its group (same task, step
    and prompt), or is the highest of its group (best, best-worst). best-worst leaves out the runs between the highest
    and the lowest reward. All but threshold leave out groups whose rewards are equal."""
    unique: bool = False
    """Count runs with the same tokens and label once."""
    threshold: float | None = None
    """Lowest reward of a desirable run; null: halfway between the lowest and the highest reward."""
    desirable_weight: Amount = 1.0
    """Weight of desirable runs (λ_D)."""
    undesirable_weight: Amount = 1.0
    """Weight of the others (λ_U)."""
    sft_loss_weight: Amount | None = None
    """Weight of the negative log-likelihood of desirable runs, added to the loss. It has no default: no measured value
    kept the base model's reports honest. 0 leaves the term out, with a warning. Other trainers use 0 if it is not
    set."""
    sft_average_log_probs: bool = True
    """Divide the log-likelihood of a desirable run by its number of tokens."""


class DistillTerms(Named):
    """Options of the distillation loss."""

    beta: Share = 0.5
    """0 is KL(teacher‖student), 1 is KL(student‖teacher), between them the generalised JSD."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature: divides the logits of teacher and student."""
    top_k: Count | None = 100
    """Compare the student's k likeliest tokens and one bucket for the rest; null compares all."""
    ratio_clip: Amount | None = 2.0
    """Largest importance ratio, for runs with recorded log-probabilities."""


class DistillConfig(DistillTerms):
    """The distillation channel."""

    teacher: str = "initial"
    """The teacher: the weights before training (initial), the current weights (same), or the folder of another model
    with the same vocabulary."""
    context: tuple[Literal["hints"], ...] = ("hints",)
    """Context that only the teacher reads: hints at error turns. Empty: no extra context; the teacher must then be
    another model, and teaches whole runs."""
    templates: dict[str, str] = Field(default={})
    """Hints by error kind, in addition to the built-in ones."""
    hint: str | None = None
    """Function of (messages, site) that returns a hint or null: module:function or path/file.py:function."""
    judge: JudgeConfig = JudgeConfig()
    """Model that writes hints: an endpoint or a folder; without `model`, no model is asked."""
    hint_sources: tuple[Literal["function", "kind", "environment", "judge"], ...] = (
        "function",
        "kind",
        "environment",
        "judge",
    )
    """Sources of hints; the first that has a hint is used: `hint`, the templates, the reported error, `judge`."""
    hint_cache: str | None = None
    """Folder of the judge's answers; null: pairwright/hints in the user's cache folder."""

    @model_validator(mode="after")
    def _check_context(self) -> "DistillConfig":
        if not self.context and self.teacher == "same":
            raise ValueError("teacher: the same weights in the same context teach nothing: name a model, or a context")
        return self


class LoraConfig(Named):
    """Low-rank adapters."""

    adapter_dim: Count = _also("adapter_dim", "r", "dim", default=16)
    """Rank."""
    alpha: Annotated[float, Field(gt=0)] = 32
    """Scale of the update is alpha / rank."""
    adapter_dropout: Annotated[float, Field(ge=0, lt=1)] = _also("adapter_dropout", "dropout", default=0.0)
    """Dropout before the adapter."""
    target_modules: tuple[str, ...] | None = None
    """Names of linear layers; null: all except the output head."""


class TrainConfig(Named):
    """How the model is trained on the pairs or runs of the earlier stages."""

    # channels and their losses
    channels: ChannelWeights = ChannelWeights()
    dpo: PreferenceConfig = PreferenceConfig()
    grpo: PolicyConfig = PolicyConfig()
    sdpo: DistillConfig = DistillConfig()
    kto: KtoConfig = KtoConfig()
    credit: Literal["off", "value"] = "off"
    """value: weight the trained tokens of a turn by the turn's value (tokens.credit), at least 0; turns without a value
    have weight 1."""
    min_probability: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """dpo and sft: tokens of runs and chosen sides that were sampled with a lower probability have weight 0, so that
    noise of the sampling is not imitated. Needs log-probabilities recorded with the token ids. 0: off."""
    # epochs, batches and order of the data
    epochs: Count = _also("epochs", "max_num_epochs", default=1)
    """Passes over the data of the first channel."""
    max_steps: Count | None = _also("max_steps", "max_num_steps", default=None)
    """Stop after this many updates."""
    batch_size: Count = _also("batch_size", "train_global_batch_size", "global_batch_size", default=8)
    """Pairs (or sequences) per update, over all processes."""
    micro_batch_size: Count | None = _also("micro_batch_size", "train_micro_batch_size", default=None)
    """Most pairs in memory at once; does not change the update."""
    micro_batch_tokens: Count = 4096
    """Most tokens in memory at once; tokens that sequences share count once. A longer pair gets a batch of its own."""
    gradient_accumulation_steps: Count | None = None
    """Cut each update into this many micro-batches, instead of `micro_batch_size`."""
    where: str | None = None
    """Condition on columns of the pairs or experience table that selects the rows to train on: 'gap > 0.2'."""
    score: str | None = None
    """Training on runs (grpo, kto, sft): the stored score that counts as the reward, as in `pairs.score`."""
    shuffle: bool = True
    """Draw a new order each epoch; false keeps the order of the table. A curriculum keeps its stages."""
    shuffle_by: Literal["item", "run", "group"] | None = None
    """What stays together when items are shuffled, so that shared prefixes are computed once: nothing (item), the
    sequences of a run, or of a group of runs (for pairs: of a task). null: group for grpo, run for sft and kto of runs,
    item for pairs."""
    # optimizer
    learning_rate: Annotated[float, Field(gt=0)] | None = _also("learning_rate", "lr", default=None)
    """Largest learning rate; null: 5e-6 for 7 billion trained parameters, scaled by one over the square root of their
    number, at most 1e-3. For other trainers and services the default is 5e-6."""
    schedule: Literal["linear", "cosine", "constant"] = _also("schedule", "lr_scheduler_type", default="linear")
    """How the learning rate falls after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Warm-up: number of updates in which the learning rate rises from 0."""
    min_learning_rate: Amount = 0.0
    """Learning rate at the end."""
    optimizer: Literal["adamw", "adafactor", "adamw_8bit"] = "adamw"
    """adamw_8bit needs bitsandbytes."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW: decay of the first moment."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """AdamW: decay of the second moment."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW: added to the square root of the second moment."""
    weight_decay: Amount = 0.0
    """Weight decay of matrices; vectors (norms, biases) have none."""
    max_grad_norm: Amount = _also("max_grad_norm", "gradient_clip", default=1.0)
    """Clip the gradient's norm; 0 does not clip."""
    max_loss: Annotated[float, Field(gt=0)] = 1e4
    """A loss above this, or NaN, stops the run; the batch is saved."""
    # precision, memory, and which weights are trained
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 computes in bfloat16 on float32 weights."""
    device: str | None = None
    """cuda, mps or cpu; null: a CUDA GPU, else Apple's GPU (mps), else the CPU."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, for less memory."""
    dropout: bool = False
    """Keep the model's dropout during training."""
    prefix_sharing: bool = True
    """Compute shared prefixes of sequences once, if the model supports it."""
    threads: Count | None = None
    """CPU threads; null: the number of idle cores at the start of the run; a resumed run keeps that number."""
    finetuning_type: Literal["all_weights", "lora", "lora_merged"] = "all_weights"
    """All weights, an adapter, or an adapter merged into the result."""
    quantization: Literal["none", "nf4"] = "none"
    """nf4: base weights in 4 bits under an adapter (QLoRA); needs bitsandbytes and a GPU."""
    lora: LoraConfig = LoraConfig()
    reference: str = "initial"
    """Reference model: initial (the weights before training), none, or a model's folder."""
    # validation, checkpoints and logs
    val_check_interval: Annotated[float, Field(gt=0)] | None = _also("val_check_interval", "val_period", default=None)
    """Updates between validations, or a share of an epoch if below 1; null: at the end of each epoch."""
    log_every_n_steps: Count = 1
    """Updates between lines of metrics."""
    save_every: Count | None = _also("save_every", "save_period", default=None)
    """Updates between checkpoints; null: at each validation and at the end of each epoch."""
    keep_top_k: Count = 1
    """Number of best checkpoints to keep, in addition to the newest."""
    metric: str = _also("metric", "metric_name", default="eval_loss")
    """Metric that decides which checkpoint is best: smaller is better if its name ends in loss, else larger."""
    early_stopping_patience: Count | None = None
    """Validations without a better metric after which training stops."""
    early_stop: bool = False
    """Stop if the likelihood of chosen sides falls below its initial value while only rejected sides change; by default
    a warning is logged."""
    dump_batches: Annotated[int, Field(ge=0)] = 0
    """Number of first updates whose exact batches are written for replay."""
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    """tensorboard, wandb, mlflow, trackio; metrics.jsonl is always written."""

    @model_validator(mode="before")
    @classmethod
    def _translate_names(cls, data: Any) -> Any:
        """Translate names of the Customizer protocol that have no field of their own."""
        if not isinstance(data, dict):
            return data
        # a copy: the caller's dict is not changed
        data = dict(data)
        for name in ("max_length", "truncation"):
            if name in data:
                raise ValueError(f"{name}: sequences are cut where they are encoded: set tokens.{name}")
        kind = data.pop("training_type", None)
        if kind is not None:
            if kind not in ("dpo", "sft", "grpo", "kto"):
                raise ValueError(f"training_type: got {kind!r}, expected dpo, sft, grpo or kto")
            if "channels" in data:
                raise ValueError("training_type: give it or channels, not both")
            data["channels"] = {"dpo": 0.0, kind: 1.0}
            if kind == "dpo" and isinstance(data.setdefault("dpo", {}), dict):
                data["dpo"] = {"contrast": "all"} | data["dpo"]
        data.pop("sequence_packing_enabled", None)  # sequences are always packed
        preference = data.get("dpo")
        # NeMo Customizer has max_grad_norm in its dpo section, we have it for all channels
        if isinstance(preference, dict) and "max_grad_norm" in preference:
            preference = dict(preference)
            data.setdefault("max_grad_norm", preference.pop("max_grad_norm"))
            data["dpo"] = preference
        return data

    @model_validator(mode="after")
    def _fit_together(self) -> "TrainConfig":
        if self.gradient_accumulation_steps is not None and self.micro_batch_size is not None:
            raise ValueError("gradient_accumulation_steps and micro_batch_size: give one of them")
        if self.quantization != "none" and self.finetuning_type == "all_weights":
            raise ValueError("quantization: 4-bit weights cannot be trained: set finetuning_type to lora")
        if self.kto.label_by != "threshold" and self.kto.threshold is not None:
            raise ValueError("kto.threshold: labels by group have none: leave it out, or set label_by to threshold")
        if self.learning_rate is not None and self.min_learning_rate > self.learning_rate:
            raise ValueError("min_learning_rate: more than learning_rate")
        return self

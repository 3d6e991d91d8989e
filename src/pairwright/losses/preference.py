"""Preference losses: log-probabilities of pairs in, one weighted loss per pair out.

    B  pairs

The loop sums `loss_B` over every micro-batch and rank of an update and divides by the sum of `weight_B`. So the loss is
the weighted mean over pairs, independent of how pairs are distributed to micro-batches.

Invariant: a pair without trained tokens on a side has no preference. Its weight, loss and gradient are exactly 0, and
it is counted in `num_empty`: padding never adds ln 2.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pairwright.config.problems import CheckedSection
from pairwright.config.train_config import PreferenceTerms
from pairwright.config.user_code import LOSSES, is_own, load_object
from pairwright.errors import ConfigError
from pairwright.losses import pairwise
from pairwright.losses.pairwise import Scores, Strength
from pairwright.tokens.batch.collate import as_torch


@dataclass(frozen=True)
class PairLogps:
    """For each pair, in float32 or wider: sums of log-probabilities over trained tokens, and numbers of tokens."""

    chosen_B: Tensor
    rejected_B: Tensor
    num_chosen_B: Tensor
    num_rejected_B: Tensor
    ref_chosen_B: Tensor | None = None
    """The same sums under the reference; None for losses without one."""
    ref_rejected_B: Tensor | None = None
    weight_B: Tensor | None = None
    """Weight of each pair; None: 1."""
    margin_B: Tensor | None = None
    """The reward gap, chosen minus rejected; needed with `use_margin`."""
    noise_B: Tensor | None = None
    """Probability that the label of each pair is wrong, replaces `label_smoothing`; NaN: unknown."""
    reference_point: Tensor | None = None
    """kto: z₀ of the whole update, see `reference_point`."""


class PreferenceOptions(CheckedSection, PreferenceTerms):
    """Options of a preference loss; `PreferenceTerms` has their defaults and bounds."""


@dataclass(frozen=True)
class PairLosses:
    loss_B: Tensor
    """w · (w_p ℓ + w_s NLL), with gradient."""
    weight_B: Tensor
    """w, 0 for an empty pair; the sum of losses is divided by the sum of weights."""
    preference_B: Tensor
    """ℓ alone, without weight or gradient; 0 for an empty pair."""
    sft_B: Tensor
    """NLL of chosen alone, without weight or gradient; 0 for an empty pair."""
    chosen_rewards_B: Tensor
    """β · s as used by the loss (averaged if it averages), without gradient."""
    rejected_rewards_B: Tensor
    num_empty: int


@dataclass(frozen=True)
class PreferenceLoss:
    """A loss and its inputs. `options` are those that only some losses understand."""

    function: Callable[[Scores, Strength], Tensor]
    needs_reference: bool = True
    always_averages: bool = False
    needs_reference_point: bool = False
    options: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Mixture:
    """A weighted sum of losses, usually of one."""

    terms: tuple[tuple[str, PreferenceLoss, float], ...]

    @property
    def needs_reference(self) -> bool:
        return any(loss.needs_reference for _, loss, _ in self.terms)

    @property
    def needs_reference_point(self) -> bool:
        return any(loss.needs_reference_point for _, loss, _ in self.terms)


# Options that only some losses understand: `check_preference` refuses them for the others.
_MARGIN = frozenset({"use_margin"})
_SPECIAL = sorted(_MARGIN | {"label_smoothing", "gamma", "desirable_weight", "undesirable_weight"})

# By name in the configuration. Defaults: with a reference, sums, no margin.
PREFERENCE_LOSSES: dict[str, PreferenceLoss] = {
    "sigmoid": PreferenceLoss(pairwise.sigmoid, options=_MARGIN | {"label_smoothing"}),
    "robust": PreferenceLoss(pairwise.robust, options=_MARGIN | {"label_smoothing"}),
    "hinge": PreferenceLoss(pairwise.hinge, options=_MARGIN),
    "ipo": PreferenceLoss(pairwise.ipo, always_averages=True),
    "apo_zero": PreferenceLoss(pairwise.apo_zero),
    "apo_down": PreferenceLoss(pairwise.apo_down),
    "simpo": PreferenceLoss(
        pairwise.sigmoid, needs_reference=False, always_averages=True, options=_MARGIN | {"label_smoothing", "gamma"}
    ),
    "orpo": PreferenceLoss(pairwise.orpo, needs_reference=False, always_averages=True),
    "kto": PreferenceLoss(
        pairwise.kto, needs_reference_point=True, options=frozenset({"desirable_weight", "undesirable_weight"})
    ),
}


def find_preference_loss(name: str) -> PreferenceLoss:
    """Return a loss of `PREFERENCE_LOSSES`, or the user's `file.py:NAME` or entry point.

    The user's object is a PreferenceLoss, or a function of Scores and Strength, used with a reference and sums.

    Raises:
        ConfigError: There is no such loss.
    """
    if name in PREFERENCE_LOSSES:
        return PREFERENCE_LOSSES[name]
    if not is_own(name, LOSSES):
        raise ConfigError(
            f"loss: got {name!r}, expected one of {', '.join(sorted(PREFERENCE_LOSSES))}, or file.py:NAME"
        )
    own = load_object(name, group=LOSSES)
    if not isinstance(own, PreferenceLoss) and not callable(own):
        raise ConfigError(f"{name}: expected a function or a PreferenceLoss, got {type(own).__name__}")
    return own if isinstance(own, PreferenceLoss) else PreferenceLoss(own)


def preference_loss(name: str | Mapping[str, float], logps: PairLogps, options: PreferenceTerms) -> PairLosses:
    """Compute the losses of pairs, unreduced. Raises ConfigError for a name or option that `check_preference` refuses.

    Args:
        name: A loss of `PREFERENCE_LOSSES`, or several with the weight of each; rewards are then those of the first.
        logps: The sums of the pairs.
        options: What the losses take.
    """
    mixture = check_preference(name, options)
    full_B = (logps.num_chosen_B > 0) & (logps.num_rejected_B > 0)
    strength = Strength(
        beta=options.beta,
        label_smoothing=_smoothing(mixture, logps, options),
        desirable_weight=options.desirable_weight,
        undesirable_weight=options.undesirable_weight,
    )
    each = [(_scores(term, loss, logps, options, full_B), loss, weight) for term, loss, weight in mixture.terms]
    scores = each[0][0]
    zeros_B = torch.zeros_like(scores.chosen_B)
    preference_B = zeros_B
    for own_scores, loss, weight in each:
        preference_B = preference_B + weight * torch.where(full_B, loss.function(own_scores, strength), zeros_B)
    sft_B = torch.where(full_B, _per_token(-logps.chosen_B, logps.num_chosen_B, options.sft_average_log_probs), zeros_B)
    weight_B = full_B.to(zeros_B.dtype)  # 1, or 0 for an empty pair
    if logps.weight_B is not None:
        weight_B = torch.where(full_B, logps.weight_B.to(zeros_B.dtype), zeros_B)
    total_B = options.preference_loss_weight * preference_B
    if options.sft_loss_weight:
        total_B = total_B + options.sft_loss_weight * sft_B
    return PairLosses(
        loss_B=weight_B * total_B,
        weight_B=weight_B,
        preference_B=preference_B.detach(),
        sft_B=sft_B.detach(),
        chosen_rewards_B=torch.where(full_B, options.beta * scores.chosen_B.detach(), zeros_B),
        rejected_rewards_B=torch.where(full_B, options.beta * scores.rejected_B.detach(), zeros_B),
        num_empty=int((~full_B).sum()),
    )


def sft_loss(
    logps_S: Tensor, num_S: Tensor, weight_S: Tensor | None = None, *, average: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the weighted negative log-likelihood of each sequence, and the weights to divide the sum by; 0 if empty.

    `average` divides by a sequence's number of tokens, so that long sequences do not dominate.

    >>> sft_loss(torch.tensor([-6.0, 0.0]), torch.tensor([3, 0]), average=True)  # the second sequence is empty
    (tensor([2., 0.]), tensor([1., 0.]))
    """
    full_S = num_S > 0
    zeros_S = torch.zeros_like(logps_S)
    weight_S = full_S.to(logps_S.dtype) if weight_S is None else torch.where(full_S, weight_S, zeros_S)
    return weight_S * torch.where(full_S, _per_token(-logps_S, num_S, average), zeros_S), weight_S


def dpo(model: Any, batch: Any, reference: Any = None, *, loss: str = "sigmoid", **options: Any) -> Tensor:
    """Compute the mean preference loss of a batch, with gradient.

    Args:
        model: A Hugging Face causal language model: ids and attention mask in, `logits` out.
        batch: One of `Encoded.batches(size)`, or its arrays as a dict of tensors.
        reference: The model to stay close to, e.g. `copy.deepcopy(model)` from before training. A PEFT model is its
            own reference without the adapter, and "simpo" and "orpo" need none.
        loss: One of `PREFERENCE_LOSSES`; "sigmoid" is DPO.
        **options: Fields of `PreferenceOptions`: `beta`, `label_smoothing`, `sft_loss_weight`, ...

    >>> import copy, transformers, pairwright as pw
    >>> model = transformers.AutoModelForCausalLM.from_pretrained("models/tiny")
    >>> batch = next(pw.Encoded("runs/first/tokens").batches(4))
    >>> f"{pw.losses.dpo(model, batch, copy.deepcopy(model)):.4f}"
    '0.6931'
    """
    settings = PreferenceOptions(**options)
    needs_reference = check_preference(loss, settings).needs_reference
    device = next(model.parameters()).device
    # Besides tensors, a batch has the origins of its rows.
    arrays = batch if isinstance(batch, dict) else as_torch(batch)
    tensors = {name: value.to(device) for name, value in arrays.items() if isinstance(value, Tensor)}
    chosen_B, num_chosen_B = _sum_logps(model, tensors, "chosen")
    rejected_B, num_rejected_B = _sum_logps(model, tensors, "rejected")
    known: dict[str, Tensor] = {}
    if needs_reference:
        if reference is None and not hasattr(model, "disable_adapter"):
            raise ConfigError(
                f"reference: {loss} compares with the model from before training: pass copy.deepcopy(model) of that "
                "time as `reference`, use a PEFT adapter, or take loss='simpo', which needs none"
            )
        # A PEFT model without its adapter is the initial model: no second copy is needed.
        with torch.no_grad(), model.disable_adapter() if reference is None else nullcontext():
            for side in ("chosen", "rejected"):
                known[f"ref_{side}_B"], _ = _sum_logps(reference or model, tensors, side)
    pairs = PairLogps(chosen_B, rejected_B, num_chosen_B, num_rejected_B, **known)
    losses = preference_loss(loss, pairs, settings)
    # A pair that is empty on one side has weight 0; `clamp` handles a batch of only such pairs.
    return losses.loss_B.sum() / losses.weight_B.sum().clamp(min=1)


def _sum_logps(model: Any, tensors: dict[str, Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Return sums (B,) of the log-probabilities of a side's trained tokens, and their number (B,)."""
    ids_BT, mask_BT = tensors[f"{side}_ids"], tensors[f"{side}_mask"][:, 1:]
    # The logits at position t predict token t + 1: drop the last logits and the first token.
    logits_BTV = model(input_ids=ids_BT, attention_mask=tensors[f"{side}_attention_mask"]).logits[:, :-1].float()
    logps_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    return (logps_BT * mask_BT).sum(-1), mask_BT.sum(-1).to(logps_BT.dtype)


def check_preference(name: str | Mapping[str, float], options: PreferenceTerms) -> Mixture:
    """Return the named losses with their weights; raise ConfigError for an option that is set but not used by any."""
    weights = {name: 1.0} if isinstance(name, str) else dict(name)
    mixture = Mixture(tuple((one, find_preference_loss(one), weight) for one, weight in weights.items()))
    names = " + ".join(weights)
    for option in _SPECIAL:
        value = getattr(options, option)
        is_used = any(option in loss.options for _, loss, _ in mixture.terms)
        if value != PreferenceTerms.model_fields[option].default and not is_used:
            those = sorted(other for other, entry in PREFERENCE_LOSSES.items() if option in entry.options)
            verb = "does not use it" if len(weights) == 1 else "do not use it"
            raise ConfigError(f"{option}: got {value!r}, but {names} {verb}: it is for {', '.join(those)}")
    return mixture


def _smoothing(mixture: Mixture, logps: PairLogps, options: PreferenceTerms) -> float | Tensor:
    """Return ε: the label noise of each pair if known, else `label_smoothing`."""
    if logps.noise_B is None:
        return options.label_smoothing
    without = [name for name, loss, _ in mixture.terms if "label_smoothing" not in loss.options]
    if without:
        raise ConfigError(
            f"loss: {without[0]} has no label smoothing, but the pairs have label noise (pairs --reliability "
            "noise): use sigmoid or robust, or build the pairs with --reliability weight"
        )
    return torch.where(logps.noise_B.isnan(), options.label_smoothing, logps.noise_B)


def _scores(name: str, loss: PreferenceLoss, logps: PairLogps, options: PreferenceTerms, full_B: Tensor) -> Scores:
    """Return both sides' scores, 0 for an empty pair, so that its gradient is 0 and not NaN."""
    chosen_B, rejected_B = logps.chosen_B, logps.rejected_B
    if loss.needs_reference:
        chosen_B = chosen_B - _require(name, "ref_chosen_B", logps.ref_chosen_B)
        rejected_B = rejected_B - _require(name, "ref_rejected_B", logps.ref_rejected_B)
    average = loss.always_averages or options.preference_average_log_probs
    chosen_B = _per_token(chosen_B, logps.num_chosen_B, average)
    rejected_B = _per_token(rejected_B, logps.num_rejected_B, average)
    zeros_B = torch.zeros_like(chosen_B)
    # `where` instead of a product: 0 · inf would be NaN in the backward pass.
    chosen_B, rejected_B = torch.where(full_B, chosen_B, zeros_B), torch.where(full_B, rejected_B, zeros_B)
    # simpo's γ is a constant margin; `use_margin` adds the reward gap.
    margin_B = zeros_B + options.gamma if "gamma" in loss.options else zeros_B
    if options.use_margin and "use_margin" in loss.options:
        gap_B = _require(name, "margin_B", logps.margin_B).to(zeros_B.dtype)
        margin_B = margin_B + torch.where(full_B, gap_B, zeros_B)
    point = logps.reference_point
    return Scores(
        chosen_B=chosen_B,
        rejected_B=rejected_B,
        margin_B=margin_B,
        nll_B=-chosen_B,
        reference_point=_require(name, "reference_point", point).detach() if loss.needs_reference_point else zeros_B,
    )


def _per_token(values_B: Tensor, num_B: Tensor, average: bool) -> Tensor:
    # Divide the sum of an empty side by 1, not 0, to keep its gradient finite. Weights may sum to less than 1.
    return values_B / torch.where(num_B > 0, num_B, 1) if average else values_B


def _require(name: str, field: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise ConfigError(f"{field}: {name} needs it and the batch has none")
    return value

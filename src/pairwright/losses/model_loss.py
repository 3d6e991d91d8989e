"""A preference loss of a model on a batch, for training loops outside pairwright."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pairwright.errors import ConfigError
from pairwright.losses.preference import PairLogps, PreferenceOptions, check_preference, preference_loss
from pairwright.tokens.batch.collate import as_torch


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
    # Sums (B,) over the trained tokens of each side, and their number.
    chosen_B, num_chosen_B = _logps(model, tensors, "chosen")
    rejected_B, num_rejected_B = _logps(model, tensors, "rejected")
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
                known[f"ref_{side}_B"], _ = _logps(reference or model, tensors, side)
    pairs = PairLogps(chosen_B, rejected_B, num_chosen_B, num_rejected_B, **known)
    losses = preference_loss(loss, pairs, settings)
    # A pair that is empty on one side has weight 0; `clamp` handles a batch of only such pairs.
    return losses.loss_B.sum() / losses.weight_B.sum().clamp(min=1)


def _logps(model: Any, tensors: dict[str, Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Return sums (B,) of the log-probabilities of a side's trained tokens, and their number (B,)."""
    ids_BT, mask_BT = tensors[f"{side}_ids"], tensors[f"{side}_mask"][:, 1:]
    # The logits at position t predict token t + 1: drop the last logits and the first token.
    logits_BTV = model(input_ids=ids_BT, attention_mask=tensors[f"{side}_attention_mask"]).logits[:, :-1].float()
    logps_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BT[:, 1:, None]).squeeze(-1)
    return (logps_BT * mask_BT).sum(-1), mask_BT.sum(-1).to(logps_BT.dtype)

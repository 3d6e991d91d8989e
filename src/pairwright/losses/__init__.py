"""Losses: pure functions of tensors. Only `dpo` takes a model and a batch.

    dpo                  the loss of a model on a batch of pairs, for custom training loops
    masked_logps         log-probabilities at selected positions, without holding all logits
    preference_loss      a loss of PREFERENCE_LOSSES for each pair; kto_loss for unpaired examples
    sft_loss             negative log-likelihood of each sequence
    group_advantages     advantages from the rewards of a task's runs
    policy_loss          clipped policy loss, of tokens or of sequences
    distill_loss         generalised JSD between student and teacher at each position

Except `dpo`, which returns the mean of its batch, a loss is not averaged over a batch: it returns terms to sum over an
update, with the weights or the normaliser to divide their sum by.
"""

from pairwright.losses.advantages import Advantages, group_advantages
from pairwright.losses.distill import DistillLosses, DistillOptions, distill_loss, generalised_jsd
from pairwright.losses.logps import masked_logps, sum_by_sequence
from pairwright.losses.policy import PolicyLoss, PolicyOptions, PolicyTokens, policy_loss
from pairwright.losses.preference import (
    PREFERENCE_LOSSES,
    Mixture,
    PairLogps,
    PairLosses,
    PreferenceLoss,
    PreferenceOptions,
    check_preference,
    dpo,
    preference_loss,
    sft_loss,
)
from pairwright.losses.unpaired import ExampleLosses, kto_loss, mismatch_sums, reference_point

__all__ = [
    "PREFERENCE_LOSSES",
    "Advantages",
    "DistillLosses",
    "DistillOptions",
    "ExampleLosses",
    "Mixture",
    "PairLogps",
    "PairLosses",
    "PolicyLoss",
    "PolicyOptions",
    "PolicyTokens",
    "PreferenceLoss",
    "PreferenceOptions",
    "check_preference",
    "distill_loss",
    "dpo",
    "generalised_jsd",
    "group_advantages",
    "kto_loss",
    "masked_logps",
    "mismatch_sums",
    "policy_loss",
    "preference_loss",
    "reference_point",
    "sft_loss",
    "sum_by_sequence",
]

"""The preference channel: computes the configured loss of pairs.

B  pairs of a part      S  branches, 2·B: chosen and rejected alternate      N  trained tokens
"""

import numpy as np
import torch
from torch import Tensor

from pairwright.config.train_config import NO_ANCHOR, PreferenceConfig
from pairwright.losses.preference import PairLogps, PairLosses, check_preference, preference_loss
from pairwright.records.arrays import Array
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.mismatched_prompts import MismatchingChannel
from pairwright.training.data import PairData
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.policy_model import Policy, Scored

NUM_SAMPLED = 64  # pairs sampled for the length of sides
FEW_TOKENS = 8  # sides with fewer trained tokens are short


class PreferenceChannel(MismatchingChannel):
    name = "dpo"
    data: PairData

    def __init__(
        self, data: PairData, options: PreferenceConfig, weight: float, order: BatchOrder, limits: Limits
    ) -> None:
        self.options, self.kind = options, check_preference(options.losses, options)
        self.data, self.weight, self.order, self._limits = data, weight, order, limits
        self.validation, self.counts = data.validation, data.counts
        self.notes = self._describe_terms()

    def _describe_terms(self) -> list[str]:
        """Warn about a loss without an SFT term, and about a small β for sides of a few tokens."""
        notes = []
        if not self.options.sft_loss_weight and "orpo" not in self.options.losses:
            notes.append(f"warning: dpo: {NO_ANCHOR}")
        sample = self.data.train[:NUM_SAMPLED]
        sizes = [int(mask.sum()) for item in sample for mask in self.data.tree(item).masks]
        if "beta" not in self.options.model_fields_set and sizes and np.median(sizes) < FEW_TOKENS:
            notes.append(
                f"warning: dpo: sides have {np.median(sizes):g} trained tokens (median), and with beta "
                f"{self.options.beta:g} their probabilities may move far: try train.dpo.beta=1"
            )
        return notes

    @property
    def needs_reference(self) -> bool:
        return self.kind.needs_reference

    @property
    def needs_point(self) -> bool:
        return self.kind.needs_reference_point

    def find_other(self, item: int) -> int:
        # Half the table away: another pair, deterministic across epochs and processes.
        return (item + max(1, len(self.data.pairs) // 2)) % len(self.data.pairs)

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        part = self.score(policy, items)
        sums_S, num_S, known_S = part.sums_S, part.num_S, None
        if self.kind.needs_reference:
            known_S = part.sum_branches(self.reference_logps(part.trees, policy))
        # Branches alternate: even ones are chosen sides, odd ones rejected.
        logps = PairLogps(
            chosen_B=sums_S[0::2],
            rejected_B=sums_S[1::2],
            num_chosen_B=num_S[0::2],
            num_rejected_B=num_S[1::2],
            ref_chosen_B=None if known_S is None else known_S[0::2],
            ref_rejected_B=None if known_S is None else known_S[1::2],
            weight_B=torch.from_numpy(self.data.weights[items]).to(policy.device),
            margin_B=torch.from_numpy(self.data.gaps[items]).to(policy.device),
            noise_B=None if self.data.noise is None else torch.from_numpy(self.data.noise[items]).to(policy.device),
            reference_point=self.point,
        )
        losses = preference_loss(self.options.losses, logps, self.options)
        sums = _measure(losses, sums_S.detach(), policy, part.scored) | part.counts
        sums["mask_fraction"] = (float(len(part.scored.logps_N)), part.num_tokens)
        return losses.loss_B.sum() / max(total, 1e-12), sums


def _measure(losses: PairLosses, sums_S: Tensor, policy: Policy, scored: Scored) -> Sums:
    """Return sums and counts of TRL's metrics over pairs that are not empty."""
    full_B = losses.weight_B > 0
    num = float(full_B.sum())
    chosen_B, rejected_B = losses.chosen_rewards_B[full_B], losses.rejected_rewards_B[full_B]
    is_chosen_N = scored.branch_N % 2 == 0
    logits_N = policy.mean_logits(scored.hidden_NH)
    sums = {
        "rewards/chosen": (chosen_B.sum(), num),
        "rewards/rejected": (rejected_B.sum(), num),
        "rewards/margins": ((chosen_B - rejected_B).sum(), num),
        "rewards/accuracies": ((chosen_B > rejected_B).sum(), num),
        "logps/chosen": (sums_S[0::2][full_B].sum(), num),
        "logps/rejected": (sums_S[1::2][full_B].sum(), num),
        "logits/chosen": (logits_N[is_chosen_N].sum(), float(is_chosen_N.sum())),
        "logits/rejected": (logits_N[~is_chosen_N].sum(), float((~is_chosen_N).sum())),
        "empty_pairs": (losses.num_empty, 0.0),
    }
    return {name: (float(value), count) for name, (value, count) in sums.items()}

"""The policy channel: scored runs, trained by their advantage over the other runs of their group.

Advantages are computed over whole groups when the data is loaded. Groups with equal rewards teach nothing: they are
counted, and their runs are never drawn. Recorded advantages or rewards of tokens replace the advantages of their run
(token_signals.py); such a run is drawn if a trained token has an advantage. The ratio is relative to recorded
log-probabilities; without them it is 1, and a note counts the runs that have none.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pairwright.config.train_config import NO_ANCHOR, PolicyConfig
from pairwright.errors import PairwrightError
from pairwright.ledger.trained import HeldTurns
from pairwright.losses.advantages import group_advantages
from pairwright.losses.policy import PolicyTokens, policy_loss
from pairwright.records.arrays import Array
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.channel import Channel
from pairwright.training.data import PolicyData
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.policy_model import Policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.run_dir import Signals


class PolicyChannel(Channel):
    name = "grpo"
    data: PolicyData

    def __init__(
        self,
        data: PolicyData,
        options: PolicyConfig,
        weight: float,
        order: Callable[[Array], BatchOrder],
        limits: Limits,
    ) -> None:
        self.options, self.data, self.weight, self._limits = options, data, weight, limits
        # Over all data: the runs of a group may be in different batches.
        grouped = group_advantages(
            torch.from_numpy(data.rewards), torch.from_numpy(data.groups), kind=options.advantage
        )
        self._advantages = grouped.values_S.numpy()
        self._by_token = data.signals.by_token(data.ids, data.groups, kind=options.advantage)
        # Train runs of groups with different rewards, and runs with a nonzero advantage at a trained token.
        is_active = grouped.is_active_S.numpy()
        for item in self._by_token:
            trained = self._advantage(item)
            is_active[item] = trained.any()
            self._advantages[item] = trained.mean() if len(trained) else 0.0
        active = np.flatnonzero(is_active)
        self._active = set(active.tolist())  # for `list_held`, which is called for each item
        if not len(active):
            problem = f"{grouped.num_groups} groups, and the rewards differ in none"
            raise PairwrightError(f"grpo: {data.left_out}{problem}: nothing to learn from")
        self.order = order(active)
        self.counts = {**data.counts, "flat_groups": grouped.num_flat_groups, "groups": grouped.num_groups}
        if self._by_token:
            self.counts["runs_by_token"] = len(self._by_token)
        # Runs whose token rewards are unused, since others of their group have none.
        left = [item for item, uid in enumerate(data.ids) if data.signals.has(uid) and item not in self._by_token]
        unscored = int(np.isnan(data.rewards[left]).sum())  # read because they have token rewards, but these are unused
        for name, num in (("token_rewards_unused", len(left)), ("unscored", unscored)):
            if num:
                self.counts[name] = self.counts.get(name, 0) + num
        missing = len({data.ids[item] for item in active if data.sequences[int(item)].logprobs is None})
        num_runs = len({data.ids[item] for item in active})
        note = f"grpo: {missing} of {num_runs} runs have no recorded log-probabilities: their ratio is 1"
        self.notes = [note] if missing else []
        self.notes += [] if options.sft_loss_weight or options.kl_weight else [f"warning: grpo: {NO_ANCHOR}"]
        self._num_good = 0.0  # trained tokens of the update's runs with a positive advantage

    @property
    def needs_reference(self) -> bool:
        return self.options.kl_weight > 0

    def total(self, items: Array) -> float:
        """Return the number of tokens, of sequences, or of sequences times a constant length, by `aggregation`."""
        counts = np.array([self.data.num_counted(item) for item in items])
        weights = self.data.weights[items]
        if self.options.aggregation == "token":
            return float((weights * counts).sum())
        scale = self.options.constant_length if self.options.aggregation == "constant" else 1
        return float((weights * (counts > 0)).sum() * scale)

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:
        # `items` has the items of all processes.
        self._num_good = float(sum(self._count_good(item) for item in items))

    def _count_good(self, item: int) -> float:
        """Return the weighted number of a run's tokens in the SFT term."""
        return float(self.data.weights[item]) * self.data.num_counted(item) if self._is_good(item) else 0.0

    def _is_good(self, item: int) -> bool:
        """Return whether a run was better than its group; False with advantages of single tokens."""
        return bool(self._advantages[item] > 0) and item not in self._by_token

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        part = self.score(policy, items)
        advantages, recorded = (
            torch.from_numpy(np.concatenate([values(item) for item in items])).to(policy.device)
            for values in (self._advantage, self._get_logps)
        )
        tokens = PolicyTokens(
            logps_N=part.scored.logps_N,
            advantages_N=advantages,
            sequence_N=part.scored.branch_N,
            num_sequences=part.scored.num_branches,
            old_logps_N=recorded,
            ref_logps_N=self.reference_logps(part.trees, policy) if self.options.kl_weight else None,
            weights_S=torch.from_numpy(self.data.weights[items]).to(policy.device),
            weights_N=part.weights_N,
        )
        losses = policy_loss(tokens, self.options)
        num, rewards = float(losses.num_tokens), self.data.rewards[items]
        sums: Sums = part.counts | {
            "grpo/ratio": (float(losses.ratio_sum), num),
            "grpo/clipped": (float(losses.num_clipped_low + losses.num_clipped_high), num),
            "grpo/unrecorded": (float(losses.num_unrecorded), num),
            "grpo/advantage": (float(self._advantages[items].sum()), float(len(items))),
            # NaN: the run is trained by token rewards and has no reward itself.
            "grpo/reward": (float(np.nansum(rewards)), float(np.isfinite(rewards).sum())),
        }
        if self.options.kl_weight:
            sums["grpo/kl"] = (float(losses.kl_sum), num)
        loss = losses.total / max(total, 1e-12)
        if self.options.sft_loss_weight and self._num_good:
            sums_S = part.sums_S
            good_S = sums_S.new_tensor([self.data.weights[item] if self._is_good(item) else 0.0 for item in items])
            loss = loss - self.options.sft_loss_weight * (good_S * sums_S).sum() / self._num_good
            good_tokens = sum(self._count_good(item) for item in items)
            sums["grpo/nll"] = (-float((good_S * sums_S.detach()).sum()), float(good_tokens))
        return loss, sums

    def list_held(self, item: int) -> list[HeldTurns]:
        unused = None
        if item not in self._active:
            is_scored = bool(np.isfinite(self.data.rewards[item]))
            unused = "no advantage: equal rewards" if is_scored else "unscored"
        return self.data.list_held(item, unused)

    def signals(self, item: int) -> Signals:
        return {"logprobs": self._get_logps(item), "advantages": self._advantage(item)}

    def _advantage(self, item: int) -> Array:
        tree = self.data.tree(item)
        mask = tree.masks[0]
        if item in self._by_token:
            return self._by_token[item][len(tree.prompt) :][mask]
        return np.full(int(mask.sum()), self._advantages[item], np.float32)

    def _get_logps(self, item: int) -> Array:
        # Arrays cover the whole sequence; the tree's mask starts after its prompt.
        tree, known = self.data.tree(item), self.data.sequences[item].logprobs
        mask = tree.masks[0]
        if known is None:
            return np.full(int(mask.sum()), np.nan, np.float32)
        return known[len(tree.prompt) :][mask].astype(np.float32)

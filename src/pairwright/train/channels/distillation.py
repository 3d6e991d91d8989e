"""The distillation channel: the student learns, without the hint, the distribution that the teacher has with it.

    K  tokens of hinted turns      V  vocabulary

Student and teacher stand on different contexts and the same completion; rows are aligned by index
(tokens/teacher_sequences.py). Logits are made at those rows only, a few hundred at a time, and made again in the
backward pass.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pairwright.config.train_config import DistillConfig, TrainConfig
from pairwright.ledger.trained import Held
from pairwright.losses.distill import DistillLosses, distill_loss
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree, tree_of
from pairwright.tokens.sequence import Origin
from pairwright.tokens.teacher_sequences import Distillation
from pairwright.train.batch_schedule import Order, micro_batches
from pairwright.train.data import DistillData
from pairwright.train.metrics import Sums
from pairwright.train.model.distributed import Ranks
from pairwright.train.model.load_model import trainable
from pairwright.train.model.policy_model import Policy, follow, open_policy

ROWS_AT_ONCE = 256


class DistillChannel:
    name = "sdpo"
    has_validation = False
    needs_reference = False

    def __init__(self, data: DistillData, options: DistillConfig, weight: float, order: Order, limits: Any) -> None:
        self.options, self._ema_rate = options, options.ema_rate
        self.data, self.weight, self.order, self._limits = data, weight, order, limits
        self.validation = np.zeros(0, np.int64)
        self.reference = None
        self.counts, self.notes = data.counts, [f"sdpo: {len(data.items)} hinted turns"]
        self._kind = options.teacher
        self.teacher: Policy | None = None  # a second model, where `open_teacher` has one

    @property
    def fingerprint(self) -> str:
        return f"{self.name} {self.data.fingerprint}"

    def reference_trees(self) -> list[Any]:
        return []

    def total(self, items: Array) -> float:
        """Rows of the batch."""
        return float(sum(len(self.data.items[item].student_index) for item in items))

    def parts(self, items: Array, num_all: int) -> list[Array]:
        sizes = [len(self.data.items[item].student) + len(self.data.items[item].teacher) for item in items]
        return micro_batches(items, sizes, max_items=self._limits.items(num_all), max_tokens=self._limits.tokens)

    def prepare(self, policy: Policy, items: Array, ranks: Ranks) -> None:
        pass

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        chosen = [self.data.items[item] for item in items]
        students, teachers = [_student_tree(item) for item in chosen], [_teacher_tree(item) for item in chosen]
        # Rows of both are the tokens of hinted turns in the same order, so row k is the same token in both contexts.
        student_KH, target_K, _, _ = policy.compute_hidden(students)
        teacher = policy if self.teacher is None else self.teacher

        # The initial weights as teacher: a model with an adapter is its own, with the adapter off.
        def bare() -> Any:
            is_adapter_off = self._kind == "initial" and self.teacher is None
            return policy.without_adapter() if is_adapter_off else nullcontext()

        with torch.no_grad(), bare():
            teacher_KH, _, _, _ = teacher.compute_hidden(teachers)
        recorded_K = torch.from_numpy(np.concatenate([_get_logps(item) for item in chosen])).to(policy.device)
        sums = dict.fromkeys(("loss", "divergence", "clipped"), torch.zeros((), device=policy.device))
        for start in range(0, max(1, len(target_K)), ROWS_AT_ONCE):  # once at least: all processes use the head
            rows = slice(start, start + ROWS_AT_ONCE)
            with torch.no_grad(), bare():
                teacher_KV = teacher.logits(teacher_KH[rows])
            # Logits (rows, V) are not kept: the backward pass computes them again.
            losses: DistillLosses = checkpoint(
                self._rows, policy, student_KH[rows], teacher_KV, target_K[rows], recorded_K[rows], use_reentrant=False
            )
            sums["loss"] = sums["loss"] + losses.loss_K.sum()
            sums["divergence"] = sums["divergence"] + losses.divergence_K.sum()
            sums["clipped"] = sums["clipped"] + losses.num_clipped
        num = float(len(target_K))
        tokens = sum(tree.num_tokens for tree in (*students, *teachers))
        measured: Sums = {
            "sdpo/divergence": (float(sums["divergence"]), num),
            "sdpo/clipped": (float(sums["clipped"]), num),
            "num_tokens": (float(tokens), 0.0),
            "trained_tokens": (num, 0.0),
        }
        return sums["loss"] / max(total, 1e-12), measured

    def after_update(self, policy: Policy, num_updates: int) -> None:
        if self.teacher is not None:
            self.teacher.settle()
        if self._kind == "ema" and self.teacher is not None:
            follow(self.teacher, policy, self._ema_rate)

    def followers(self) -> dict[str, Any]:
        """The weights of a teacher that follows the policy."""
        if self._kind != "ema" or self.teacher is None:
            return {}
        return {f"teacher.{name}": tensor for name, tensor in trainable(self.teacher.model).items()}

    @property
    def num_items(self) -> int:
        return len(self.data.items)

    def list_held(self, item: int) -> list[Held]:
        one = self.data.items[item]
        return [Held(self.data.ids[item], "", one.student.ids, one.student_mask, one.student.message_index)]

    @property
    def refusals(self) -> dict[str, str]:
        return self.data.refusals

    def trees_of(self, items: Array) -> tuple[list[str], list[Tree]]:
        return [self.data.ids[item] for item in items], [_student_tree(self.data.items[item]) for item in items]

    def _rows(
        self, policy: Policy, student_KH: Tensor, teacher_KV: Tensor, target_K: Tensor, recorded_K: Tensor
    ) -> DistillLosses:
        return distill_loss(
            policy.logits(student_KH), teacher_KV, self.options, targets_K=target_K, old_logps_K=recorded_K
        )


def open_teacher(settings: TrainConfig, policy: Policy, model: Path, ranks: Ranks) -> Policy | None:
    """A second model where the teacher is not the policy's own weights: none where the adapter can be switched off."""
    kind, is_adapter = settings.sdpo.teacher, policy.model is not policy.plain
    if kind == "same" or (kind == "initial" and is_adapter):
        return None
    teacher = open_policy(model, settings, ranks, is_trained=kind == "ema")
    teacher.model.eval()
    if kind == "ema":
        follow(teacher, policy, 1.0)  # adapters begin at random: at the policy's own
    return teacher


def _student_tree(item: Distillation) -> Tree:
    return tree_of(item.student.ids, item.student_mask, (Origin(item.student.report.uid, tuple(item.targets)),))


def _teacher_tree(item: Distillation) -> Tree:
    return tree_of(item.teacher.ids, item.teacher_mask)


def _get_logps(item: Distillation) -> Array:
    if item.student.logprobs is None:
        return np.full(len(item.student_index), np.nan, np.float32)
    return item.student.logprobs[item.student_index].astype(np.float32)

"""The distillation channel: the student learns, in its own context, the teacher's distribution in another context.

    K  tokens of distilled turns      V  vocabulary

Student and teacher have different contexts, or are different models, with the same completion; rows are aligned by
index (tokens/teacher_sequences.py). Logits are computed only at these rows, a few hundred at a time, and recomputed in
the backward pass.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pairwright.config.train_config import DistillConfig, TrainConfig
from pairwright.losses.distill import DistillLosses, distill_loss
from pairwright.paths.model_folders import find_model
from pairwright.records.arrays import Array
from pairwright.tokens.batch.collate import Tree, count_distinct, tree_of
from pairwright.tokens.teacher_sequences import Distillation
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.training.batch_schedule import BatchOrder
from pairwright.training.channels.channel import Channel
from pairwright.training.data import DataError
from pairwright.training.distill_data import DistillData
from pairwright.training.metrics import Sums
from pairwright.training.micro_batches import Limits
from pairwright.training.model.policy_model import Policy, open_policy

ROWS_AT_ONCE = 256  # rows of logits (rows, V) in memory at a time


class DistillChannel(Channel):
    name = "sdpo"
    data: DistillData

    def __init__(
        self, data: DistillData, options: DistillConfig, weight: float, order: BatchOrder, limits: Limits
    ) -> None:
        self.options, self.data, self.weight, self.order, self._limits = options, data, weight, order, limits
        what, reads = ("hinted turns", ", which reads hints") if options.context else ("sequences", "")
        self.counts = data.counts
        self.notes = [f"sdpo: {len(data.items)} {what}, teacher {options.teacher}{reads}"]
        self._kind = options.teacher
        self.teacher: Policy | None = None  # a second model, set from `open_teacher`

    def total(self, items: Array) -> float:
        """Return the weighted number of distilled tokens of the batch."""
        return float(sum(_get_weights(self.data.items[item]).sum() for item in items))

    def loss(self, policy: Policy, items: Array, total: float) -> tuple[Tensor, Sums]:
        chosen = [self.data.items[item] for item in items]
        students, teachers = [self.data.tree(item) for item in items], self.teacher_trees(items)
        teacher = policy if self.teacher is None else self.teacher

        # Teacher "initial": a model with an adapter is its own teacher, with the adapter disabled.
        def bare() -> Any:
            is_adapter_off = self._kind == "initial" and self.teacher is None
            return policy.model.disable_adapter() if is_adapter_off else nullcontext()

        # Rows of both are the tokens of hinted turns in the same order, so row k is the same token in both contexts.
        if self._kind == "same" and policy.can_share and _is_cheaper_together(students, teachers):
            both_H, both = policy.compute_hidden([*students, *teachers])
            # Students come first; both halves have K rows.
            student_KH, teacher_KH = both_H.chunk(2)
            teacher_KH, target_K = teacher_KH.detach(), both[: len(student_KH)]
        else:
            student_KH, target_K = policy.compute_hidden(students)
            with torch.no_grad(), bare():
                teacher_KH, _ = teacher.compute_hidden(teachers)
        # (K,) log-probabilities recorded at sampling, NaN if missing.
        recorded_K = torch.from_numpy(np.concatenate([_get_logps(item) for item in chosen])).to(policy.device)
        weights_K = torch.from_numpy(np.concatenate([_get_weights(item) for item in chosen])).to(policy.device)
        sums = dict.fromkeys(("loss", "divergence"), torch.zeros((), device=policy.device))
        for start in range(0, max(1, len(target_K)), ROWS_AT_ONCE):  # at least once: the loss has a gradient
            rows = slice(start, start + ROWS_AT_ONCE)
            with torch.no_grad(), bare():
                teacher_KV = teacher.logits(teacher_KH[rows])
            # Logits (rows, V) are not kept: the backward pass recomputes them.
            known = target_K[rows], recorded_K[rows], weights_K[rows]
            losses: DistillLosses = checkpoint(
                self._rows, policy, student_KH[rows], teacher_KV, *known, use_reentrant=False
            )
            sums["loss"] = sums["loss"] + losses.loss_K.sum()
            sums["divergence"] = sums["divergence"] + losses.divergence_K.sum()
        num = float(len(target_K))
        tokens = sum(tree.num_tokens for tree in (*students, *teachers))
        measured: Sums = {
            "sdpo/divergence": (float(sums["divergence"]), num),
            "num_tokens": (float(tokens), 0.0),
            "trained_tokens": (num, 0.0),
        }
        return sums["loss"] / max(total, 1e-12), measured

    def teacher_trees(self, items: Array) -> list[Tree]:
        return [_teacher_tree(self.data.items[item]) for item in items]

    def trees_in_memory(self, item: int) -> list[Tree]:
        return [self.data.tree(item), _teacher_tree(self.data.items[item])]

    def _rows(
        self,
        policy: Policy,
        student_KH: Tensor,
        teacher_KV: Tensor,
        target_K: Tensor,
        recorded_K: Tensor,
        weights_K: Tensor,
    ) -> DistillLosses:
        # Models with the same vocabulary may have different numbers of spare embedding rows.
        student_KV = policy.logits(student_KH)
        size = min(student_KV.shape[-1], teacher_KV.shape[-1])
        return distill_loss(
            student_KV[:, :size],
            teacher_KV[:, :size],
            self.options,
            targets_K=target_K,
            old_logps_K=recorded_K,
            weights_K=weights_K,
        )


def open_teacher(settings: TrainConfig, policy: Policy, model: Path) -> Policy | None:
    """Open a second model unless the policy can be the teacher: with its own weights, or with its adapter disabled."""
    kind, is_adapter = settings.sdpo.teacher, policy.model is not policy.plain
    if kind == "same" or (kind == "initial" and is_adapter):
        return None
    folder = model if kind == "initial" else find_model(kind)
    if folder is not model:
        _check_same_tokens(model, folder)
    return open_policy(folder, settings, is_trained=False)


def _check_same_tokens(model: Path, teacher: Path) -> None:
    """Refuse a teacher with another vocabulary: distributions over different tokens are not comparable."""
    ours, theirs = (ChatTokenizer.from_folder(folder).backend.get_vocab() for folder in (model, teacher))
    if ours != theirs:
        differ = sorted(ours.items() ^ theirs.items())[:1]
        example = f"{differ[0][0]!r} is {ours.get(differ[0][0])} and {theirs.get(differ[0][0])}"
        raise DataError(
            f"train.sdpo.teacher: {teacher} has other tokens than {model} ({example}): "
            "a teacher needs the vocabulary of the student"
        )


def _is_cheaper_together(students: list[Tree], teachers: list[Tree]) -> bool:
    """Return whether one pass over both is cheaper than two: the shared prefix is computed once, but the backward pass,
    worth about two forward passes, then also covers the teacher's tokens."""
    alone, others = count_distinct(students), count_distinct(teachers)
    # Forward passes per token: 3 with gradients, 1 without.
    return 3 * count_distinct([*students, *teachers]) < 3 * alone + others


def _teacher_tree(item: Distillation) -> Tree:
    return tree_of(item.teacher.ids, item.teacher_mask)


def _get_logps(item: Distillation) -> Array:
    if item.student.logprobs is None:
        return np.full(len(item.student_index), np.nan, np.float32)
    return item.student.logprobs[item.student_index].astype(np.float32)


def _get_weights(item: Distillation) -> Array:
    if item.student.weights is None:
        return np.ones(len(item.student_index), np.float32)
    return item.student.weights[item.student_index]

"""Sequences to batches, one collator for each channel: preference (DPO), policy (GRPO), distill (SDPO), and combined.

Shapes: B rows, T tokens, K index pairs. Numpy; `as_torch(batch)` gives tensors. Every mask is laid out as the sequences
have it: position t is True where ids[t] was generated.
"""

from collections.abc import Sequence as Items

import msgspec
import numpy as np

from pairwright.arrays import Array
from pairwright.errors import RecordError
from pairwright.tokens.batches import IGNORE_INDEX, attention, padded
from pairwright.tokens.distill import Distillation
from pairwright.tokens.pairs import EncodedPair
from pairwright.tokens.sequence import Sequence


class PreferenceBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    chosen_ids: Array
    chosen_attention_mask: Array
    chosen_mask: Array
    rejected_ids: Array
    rejected_attention_mask: Array
    rejected_mask: Array
    prompt_lengths: Array


class PolicyBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    input_ids: Array
    attention_mask: Array
    response_mask: Array
    labels: Array
    lengths: Array
    rewards: Array
    advantages: Array
    logprobs: Array | None = None


class DistillBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    student_ids: Array
    student_attention_mask: Array
    sdpo_mask: Array
    teacher_ids: Array
    teacher_attention_mask: Array
    student_index: Array
    teacher_index: Array
    index_valid: Array


class CombinedBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the three channels need of one batch of traces; a channel that is off, or has nothing, is None."""

    policy: PolicyBatch | None
    distill: DistillBatch | None
    preference: PreferenceBatch | None


def collate_preference(pairs: Items[EncodedPair], *, pad_id: int, multiple_of: int = 1) -> PreferenceBatch:
    """Chosen and rejected sides, each with its own mask; the prompt ids of a row are equal on both sides.

    >>> def side(ids, mask):
    ...     return Sequence(ids=ids, mask=mask, message_index=[0] * len(ids), paint=[0] * len(ids))
    >>> chosen, rejected = side([1, 2, 7, 8], [0, 0, 1, 1]), side([1, 2, 9], [0, 0, 1])
    >>> pair = EncodedPair(chosen=chosen, rejected=rejected, prompt_length=2)
    >>> batch = collate_preference([pair], pad_id=0)
    >>> batch.chosen_ids, batch.chosen_mask
    (array([[1, 2, 7, 8]]), array([[False, False,  True,  True]]))
    >>> batch.rejected_ids, batch.rejected_mask, batch.rejected_attention_mask
    (array([[1, 2, 9]]), array([[False, False,  True]]), array([[1, 1, 1]]))
    """
    sides = {}
    for name in ("chosen", "rejected"):
        rows: list[Sequence] = [getattr(pair, name) for pair in pairs]
        ids = padded([row.ids for row in rows], pad_id, dtype="int64", multiple_of=multiple_of)
        sides[f"{name}_ids"] = ids
        sides[f"{name}_attention_mask"] = attention([len(row) for row in rows], ids.shape[1])
        sides[f"{name}_mask"] = padded([row.mask for row in rows], 0, dtype="bool", length=ids.shape[1])
    return PreferenceBatch(**sides, prompt_lengths=np.array([pair.prompt_length for pair in pairs], dtype=np.int64))


def collate_policy(
    sequences: Items[Sequence],
    rewards: Items[float],
    *,
    pad_id: int,
    advantages: Items[float] | None = None,
    multiple_of: int = 1,
    ignore_index: int = IGNORE_INDEX,
) -> PolicyBatch:
    """Sequences with a reward each; the advantage (the reward where none is given) stands at every generated token.

    >>> one = Sequence(ids=[1, 0, 7], mask=[0, 0, 1], message_index=[0] * 3, paint=[0] * 3)
    >>> two = Sequence(ids=[1, 8], mask=[0, 1], message_index=[0] * 2, paint=[0] * 2)
    >>> batch = collate_policy([one, two], [1.0, 0.5], pad_id=0)
    >>> batch.input_ids, batch.attention_mask  # the pad id in the first row is text
    (array([[1, 0, 7],
           [1, 8, 0]]), array([[1, 1, 1],
           [1, 1, 0]]))
    >>> batch.labels
    array([[-100, -100,    7],
           [-100,    8, -100]])
    >>> batch.rewards, batch.advantages
    (array([1. , 0.5], dtype=float32), array([[0. , 0. , 1. ],
           [0. , 0.5, 0. ]], dtype=float32))
    """
    values = rewards if advantages is None else advantages
    if not len(sequences) == len(rewards) == len(values):
        raise RecordError("rewards", len(rewards), f"one for each of {len(sequences)} sequences")
    ids = padded([row.ids for row in sequences], pad_id, dtype="int64", multiple_of=multiple_of)
    mask = padded([row.mask for row in sequences], 0, dtype="bool", length=ids.shape[1])
    lengths = [len(row) for row in sequences]
    known = [row.logprobs for row in sequences if row.logprobs is not None]
    logprobs = padded(known, 0, dtype="float32", length=ids.shape[1]) if len(known) == len(sequences) else None
    return PolicyBatch(
        input_ids=ids,
        attention_mask=attention(lengths, ids.shape[1]),
        response_mask=mask,
        labels=np.where(mask, ids, ignore_index),
        lengths=np.array(lengths, dtype=np.int64),
        rewards=np.array(rewards, dtype=np.float32),
        advantages=mask * np.array(values, dtype=np.float32)[:, None],
        logprobs=logprobs,
    )


def collate_distill(items: Items[Distillation], *, pad_id: int, multiple_of: int = 1) -> DistillBatch:
    """Student and hinted teacher; student_index[b, k] and teacher_index[b, k] are the same token where valid.

    >>> student = Sequence(ids=[1, 7, 8], mask=[0, 1, 1], message_index=[0, 1, 1], paint=[0] * 3)
    >>> teacher = Sequence(ids=[1, 5, 7, 8], mask=[0, 0, 1, 1], message_index=[0, 0, 1, 1], paint=[0] * 4)
    >>> same = {"student_index": np.array([1, 2]), "teacher_index": np.array([2, 3])}
    >>> item = Distillation(student=student, teacher=teacher, **same)
    >>> batch = collate_distill([item], pad_id=0)
    >>> batch.student_ids, batch.sdpo_mask
    (array([[1, 7, 8]]), array([[False,  True,  True]]))
    >>> batch.teacher_ids, batch.student_index, batch.teacher_index, batch.index_valid
    (array([[1, 5, 7, 8]]), array([[1, 2]]), array([[2, 3]]), array([[ True,  True]]))
    """
    student = padded([item.student.ids for item in items], pad_id, dtype="int64", multiple_of=multiple_of)
    teacher = padded([item.teacher.ids for item in items], pad_id, dtype="int64", multiple_of=multiple_of)
    sdpo = np.zeros(student.shape, dtype=bool)
    for number, item in enumerate(items):
        sdpo[number, item.student_index] = True
    counts = [len(item.student_index) for item in items]
    width = max(counts)
    return DistillBatch(
        student_ids=student,
        student_attention_mask=attention([len(item.student) for item in items], student.shape[1]),
        sdpo_mask=sdpo,
        teacher_ids=teacher,
        teacher_attention_mask=attention([len(item.teacher) for item in items], teacher.shape[1]),
        student_index=padded([item.student_index for item in items], 0, dtype="int64"),
        teacher_index=padded([item.teacher_index for item in items], 0, dtype="int64"),
        index_valid=attention(counts, width).astype(bool),
    )

"""Student and teacher: the same completion ids, once as it happened and once with hints in the context.

The teacher's context differs only by the hints; the completions are not rendered again but copied id by id, and the
alignment is a list of index pairs for which `student.ids[s] == teacher.ids[t]` is checked.
"""

from collections.abc import Sequence as Items
from typing import Any

import msgspec
import numpy as np

from pairwright.arrays import Array
from pairwright.messages import Json, Message
from pairwright.tokens.encode import encode_chat
from pairwright.tokens.hints import Hint, addendum, with_hint
from pairwright.tokens.recorded import RecordedTurn, encode_recorded
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Sequence


class Distillation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """`student_index[k]` and `teacher_index[k]` are the same token of a hinted turn."""

    student: Sequence
    teacher: Sequence
    student_index: Array
    teacher_index: Array

    def __post_init__(self) -> None:
        same = len(self.student_index) == len(self.teacher_index) and np.array_equal(
            self.student.ids[self.student_index], self.teacher.ids[self.teacher_index]
        )
        if not same:
            raise Refusal("recorded_ids", "student and teacher differ at an index pair")


def encode_distillation(
    tokenizer: Any,
    messages: Items[Message],
    hints: Items[Hint],
    tools: Items[Json] | None = None,
    *,
    train_from: int = 0,
    recorded: dict[int, RecordedTurn] | None = None,
) -> Distillation:
    """A conversation with hints. `recorded`: what was sampled, where it is known; else the student is rendered and
    split at the turns, so that no token reaches across the start of one."""
    if not hints:
        raise Refusal("not_generated", "there is no hint to distil")
    if recorded:
        student = encode_recorded(tokenizer, messages, recorded, tools)
    else:
        student = encode_chat(tokenizer, messages, tools, train_from=train_from, boundaries="split")
    told = list(messages)
    for hint in hints:
        told[hint.target - 1] = with_hint(told[hint.target - 1], hint.text)
    sampled = recorded or {
        int(turn): RecordedTurn(tuple(student.ids[student.mask & (student.message_index == turn)].tolist()))
        for turn in np.unique(student.message_index[student.mask])
    }
    added = {hint.target - 1: addendum(hint.text) for hint in hints}
    teacher = encode_recorded(tokenizer, told, sampled, tools, added=added)
    targets = [hint.target for hint in hints if hint.target in sampled]
    if not targets:
        raise Refusal("not_generated", "no hint belongs to a turn that is trained")
    return Distillation(
        student=student,
        teacher=teacher,
        student_index=_positions(student, targets),
        teacher_index=_positions(teacher, targets),
    )


def _positions(sequence: Sequence, targets: list[int]) -> Array:
    return np.flatnonzero(sequence.mask & np.isin(sequence.message_index, targets)).astype(np.int32)

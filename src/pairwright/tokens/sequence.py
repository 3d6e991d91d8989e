"""Sequences: token ids with a mask of the generated tokens, and a report of how they were made."""

from collections.abc import Sequence as Items
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from pairwright.errors import RecordError
from pairwright.pairs.turn_credit import TurnCredit
from pairwright.records.arrays import Array, as_array, same_array
from pairwright.records.messages import Message, weight_of
from pairwright.tokens.refusals import Refusal


class Paint(IntEnum):
    """The kind of a token, for display."""

    TEMPLATE = 0
    SYSTEM = 1
    USER = 2
    TOOL = 3
    ASSISTANT = 4  # an assistant's turn that is not trained
    GENERATED = 5
    REASONING = 6
    CALL = 7
    STOP = 8
    HINT = 9
    TEXT = 10  # raw text that is not trained


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a sequence was made, and what a user should know about it."""

    uid: str = ""  # of the experience that the sequence or the pair's side comes from
    source: str = "rendered"  # origin of the ids: rendered by the template, recorded, or raw text
    template: str = ""
    mode: dict[str, Any] = {}  # variables that switch thinking on or off, because the record has reasoning or lacks it
    num_turns: int = 0
    rules: tuple[int, ...] = ()  # rule of the law (1, 2 or 3; spans/law.py) of each trained turn, in order
    # Tokens that the model did not generate: the closing of a thought before a turn (not trained), and a stop token
    # that no render shows (trained).
    added_tokens: int = 0
    declared: tuple[int, ...] = ()  # turns whose text comes from a declared row that no render shows
    dropped: tuple[tuple[int, str], ...] = ()  # (message, field) of trained turns that is not rendered
    prompt_dropped: tuple[tuple[int, str], ...] = ()  # of untrained messages, and (-1, "tools") for tool schemas
    images: int = 0  # content parts other than text, which no channel trains on
    rewritten_ids: int = 0  # call ids that were shortened, in calls and results, because the template refuses them
    merged: int = 0  # tokens that begin before a turn and reach into it: BPE merged across the boundary
    unstopped: tuple[int, ...] = ()  # turns that end without a stop token
    stops: tuple[str, ...] = ()
    control_tokens: int = 0
    probed: int = 0  # turns that had to be judged on the whole conversation
    split: bool = False
    left_out: tuple[int, ...] = ()  # untrained turns of a pair's side, which come after the first ones that differ
    truncated: int = 0  # tokens cut off
    text_differs: tuple[int, ...] = ()  # turns whose recorded ids do not spell the message's text
    # Turns that `train_turns` (`accepted`: their credit) does not select; only on a record's first sequence.
    not_selected: tuple[int, ...] = ()
    masked_by_credit: tuple[int, ...] = ()
    credit: tuple[TurnCredit, ...] = ()  # of the trained turns, and on the first sequence of those not selected

    @property
    def is_exact(self) -> bool:
        """Whether every trained token was generated, as shown by a render of the template or by recorded ids."""
        return not (self.dropped or self.added_tokens or self.declared)


class Origin(NamedTuple):
    """The origin of a row: the experience, and the indices of its trained messages."""

    uid: str
    turns: tuple[int, ...]


_DTYPES: dict[str, np.dtype[Any]] = {
    "ids": np.dtype("int32"),
    "mask": np.dtype("bool"),
    "message_index": np.dtype("int32"),
    "paint": np.dtype("int8"),
    "logprobs": np.dtype("float32"),
    "weights": np.dtype("float32"),
}


class Sequence(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Token ids (S,), the mask of generated tokens, and the message index of each token (-1: template text)."""

    ids: Array
    mask: Array
    message_index: Array
    paint: Array
    logprobs: Array | None = None
    weights: Array | None = None  # loss weight of each token, 0 if untrained; None: 1 for trained tokens
    report: Report = Report()

    def __post_init__(self) -> None:
        shape = (len(self.ids),)
        for name, dtype in _DTYPES.items():
            value = getattr(self, name)
            if value is None and name in ("logprobs", "weights"):
                continue
            # Most arrays need no conversion, and this check is cheaper than a conversion.
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape and value.flags.c_contiguous:
                continue
            array = as_array(value, f"sequence.{name}", dtype=dtype.name)
            if array.shape != shape:
                raise RecordError(f"sequence.{name}.shape", array.shape, f"({len(self.ids)},), one for each token")
            force_setattr(self, name, np.ascontiguousarray(array.astype(dtype, copy=False)))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Sequence:
            return NotImplemented
        same: Any = all(same_array(getattr(self, name), getattr(other, name)) for name in _DTYPES)
        return bool(same) and self.report == other.report

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_trained(self) -> int:
        return int(self.mask.sum())

    @property
    def origin(self) -> Origin:
        """The experience of the sequence, and which of its messages are trained.

        >>> sequence = Sequence(ids=[1, 2, 3, 4], mask=[0, 1, 0, 1], message_index=[0, 1, 2, 3], paint=[0] * 4)
        >>> sequence.with_report(uid="t-1").origin
        Origin(uid='t-1', turns=(1, 3))
        """
        return Origin(self.report.uid, tuple(np.unique(self.message_index[self.mask]).tolist()))

    def renumber(self, origins: Items[int]) -> "Sequence":
        """Map message indices: n becomes `origins[n]`; -1 (no message) stays."""
        # The last entry maps index -1 (template text) to -1.
        numbers = np.array([*origins, -1], np.int32)
        pairs = {
            name: tuple((origins[n] if n >= 0 else n, field) for n, field in getattr(self.report, name))
            for name in ("dropped", "prompt_dropped")
        }
        names = ("declared", "unstopped", "text_differs")
        turns = {name: tuple(origins[n] for n in getattr(self.report, name)) for name in names}
        moved = msgspec.structs.replace(self, message_index=numbers[self.message_index])
        return moved.with_report(**pairs, **turns)

    def with_report(self, **changes: Any) -> "Sequence":
        """Return the sequence with changed fields of its report."""
        return msgspec.structs.replace(self, report=msgspec.structs.replace(self.report, **changes))

    def take(self, positions: Array) -> "Sequence":
        """Return the tokens at these positions; the others are counted as truncated."""
        arrays = {name: getattr(self, name) for name in _DTYPES}
        taken = {name: None if array is None else array[positions] for name, array in arrays.items()}
        cut = msgspec.structs.replace(self, **taken)
        return cut.with_report(truncated=self.report.truncated + len(self) - len(positions))


def weigh_turns(sequence: Sequence, messages: Items[Message]) -> Sequence:
    """Give trained tokens the weights of their messages; unchanged if all weights are 1.

    >>> half = Message("assistant", "no", extra={"turn_weight": 0.5})
    >>> sequence = Sequence(ids=[1, 2, 3], mask=[0, 1, 1], message_index=[0, 1, 2], paint=[0] * 3)
    >>> weigh_turns(sequence, [Message("user", "hi"), half, Message("assistant", "yes")]).weights
    array([0. , 0.5, 1. ], dtype=float32)
    """
    weights = np.array([*map(weight_of, messages), 1.0], np.float32)  # last entry: index -1, template text
    if (weights == 1).all() or (weights[sequence.message_index[sequence.mask]] == 1).all():
        return sequence
    own = np.where(sequence.mask, weights[sequence.message_index], np.float32(0))
    return msgspec.structs.replace(sequence, weights=own)


Truncation = Literal["keep_start", "keep_end", "drop"]


def truncate(
    sequence: Sequence,
    max_length: int,
    truncation: Truncation = "keep_end",
    *,
    keep_first: int = 0,
) -> Sequence:
    """Cut a sequence to at most `max_length` tokens; the first `keep_first` (BOS, the system prompt) are always kept.

    >>> long = Sequence(ids=[1, 2, 3, 4, 5, 6], mask=[0, 0, 1, 1, 0, 1], message_index=[0] * 6, paint=[0] * 6)
    >>> truncate(long, 3).ids.tolist()  # the cut would run through the turn (3, 4)
    [5, 6]
    >>> truncate(long, 4, keep_first=1).ids.tolist()
    [1, 5, 6]
    >>> truncate(long, 5, "keep_start").ids.tolist()
    [1, 2, 3, 4, 5]
    """
    length = len(sequence)
    if length <= max_length:
        return sequence
    if truncation == "drop":
        raise Refusal("too_long", f"{length} tokens of at most {max_length}")
    if truncation == "keep_start":
        stop = max_length  # moved left until it is outside trained turns
        while stop > 0 and sequence.mask[stop - 1] and stop < length and _same_turn(sequence, stop):
            stop -= 1
        positions = np.arange(stop)
    else:
        # The first tokens count towards `max_length`: the cut moves right by their number.
        start = cut_position(sequence, length - max_length + keep_first, has_context=keep_first > 0)
        positions = np.concatenate([np.arange(min(keep_first, start)), np.arange(start, length)])
    cut = sequence.take(positions)
    if not cut.mask.any():
        raise Refusal("too_long", f"{length} tokens; no trained turn fits into {max_length}")
    return cut


def cut_position(sequence: Sequence, position: int, *, has_context: bool) -> int:
    """Return where to cut the beginning off: `position`, or the end of the trained turn that contains it. A trained
    turn directly after the cut is cut off as well, unless context before it predicts its first token."""
    while 0 < position < len(sequence) and (
        _same_turn(sequence, position) or (sequence.mask[position] and not has_context)
    ):
        position += 1
    return position


def _same_turn(sequence: Sequence, position: int) -> bool:
    """Return whether a cut before `position` is inside a trained turn."""
    return bool(sequence.mask[position - 1] and sequence.mask[position]) and bool(
        sequence.message_index[position - 1] == sequence.message_index[position]
    )

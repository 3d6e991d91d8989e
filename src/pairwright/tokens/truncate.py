"""Sequences that are too long: cut between turns, never through one, and counted.

"keep_end" keeps the last tokens: the cut moves on to the end of a trained turn that it would run through, or that would
be left without a token before it.
"keep_start" keeps the first tokens: what is left of a trained turn that does not fit is cut too.
"drop" refuses. A sequence in which no trained turn is left is refused, too.
"""

from typing import Literal

import numpy as np

from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Sequence

Truncation = Literal["keep_start", "keep_end", "drop"]


def truncate(
    sequence: Sequence,
    max_length: int,
    truncation: Truncation = "keep_end",
    *,
    keep_first: int = 0,
) -> Sequence:
    """At most `max_length` tokens; `keep_first` tokens (a BOS token, the system prompt) stay in any case.

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
        stop = max_length
        while stop > 0 and sequence.mask[stop - 1] and stop < length and _same_turn(sequence, stop):
            stop -= 1
        kept = np.arange(stop)
    else:
        start = cut_position(sequence, length - max_length + keep_first, has_context=keep_first > 0)
        kept = np.concatenate([np.arange(min(keep_first, start)), np.arange(start, length)])
    cut = sequence.take(kept)
    if not cut.mask.any():
        raise Refusal("too_long", f"{length} tokens; no trained turn fits into {max_length}")
    return cut


def cut_position(sequence: Sequence, position: int, *, has_context: bool) -> int:
    """Where to cut the beginning off: the position, or the end of the trained turn that a cut there would run through.
    A turn right after the cut goes, too, unless something is kept before it: nothing would predict its first token."""
    while 0 < position < len(sequence) and (
        _same_turn(sequence, position) or (sequence.mask[position] and not has_context)
    ):
        position += 1
    return position


def _same_turn(sequence: Sequence, position: int) -> bool:
    """Is a cut before `position` inside a trained turn?"""
    return bool(sequence.mask[position - 1] and sequence.mask[position]) and bool(
        sequence.message_index[position - 1] == sequence.message_index[position]
    )

"""Cutting pairs at the divergence, for targets with one assistant message per side."""

from pairwright.export.chat_lines import Content, Unfit
from pairwright.records.messages import Message, canonical_messages


def count_shared(chosen: Content, rejected: Content) -> int:
    """Return the length of the common prefix of the sides; raises Unfit if one side continues the other."""
    length = _num_shared(chosen.messages, rejected.messages)
    if length == min(len(chosen.roles), len(rejected.roles)):
        raise Unfit("one_side_continues_the_other")
    return length


def check_is_generated(side: Content) -> tuple[str, ...]:
    """Refuse a side, cut to one message, that is not an assistant message which the model generated."""
    if side.role != "assistant" or not (side.is_plain or side.messages[0].is_generated):
        raise Unfit("sides_part_at_no_assistant_message")
    return ()


def _num_shared(chosen: tuple[Message, ...], rejected: tuple[Message, ...]) -> int:
    length = 0
    for one, other in zip(canonical_messages(chosen), canonical_messages(rejected), strict=False):
        if one != other:
            break
        length += 1
    return length

"""Pairs cut at their divergence: one message of the model a side, for targets that hold no more.

What both sides begin with joins the prompt; the first message in which they differ is kept, and what follows it is
left out and counted as `cut_at_divergence`. Sides that differ in anything but a message of the model are refused.
"""

from pairwright.canonical import canonical_messages
from pairwright.messages import Message
from pairwright.pairs.exporters.chat import check_is_chat, messages_of
from pairwright.pairs.exporters.stream import Context, PairRow, Unfit


def cut_at_divergence(row: PairRow, context: Context) -> tuple[list[Message], Message, Message]:
    """The prompt with what the sides share, and the first message of each that differs."""
    prompt, chosen, rejected = messages_of(row.prompt), messages_of(row.chosen), messages_of(row.rejected)
    if not prompt:
        raise Unfit("no_prompt")
    check_is_chat(row)
    if len(chosen) == len(rejected) == 1:
        length = 0
    else:
        length = _num_shared(chosen, rejected)
        if length == min(len(chosen), len(rejected)):
            raise Unfit("one_side_continues_the_other")
    first, second = chosen[length], rejected[length]
    if not (first.role == second.role == "assistant" and first.is_generated and second.is_generated):
        raise Unfit("sides_part_at_no_assistant_message")
    if len(chosen) > 1 or len(rejected) > 1:
        context.note("cut_at_divergence")
    return [*prompt, *chosen[:length]], first, second


def _num_shared(chosen: tuple[Message, ...], rejected: tuple[Message, ...]) -> int:
    length = 0
    for one, other in zip(canonical_messages(chosen), canonical_messages(rejected), strict=False):
        if one != other:
            break
        length += 1
    return length

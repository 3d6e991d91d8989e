"""Cut pairs at the divergence point, for targets with one assistant message per side."""

from itertools import takewhile

from pairwright.export.chat_lines import Content, Unfit, refuse_if
from pairwright.records.messages import canonical_messages


def count_shared(chosen: Content, rejected: Content) -> int:
    """Return the length of the common prefix of the sides; raises Unfit if one side continues the other."""
    both = zip(canonical_messages(chosen.messages), canonical_messages(rejected.messages), strict=False)
    length = sum(1 for _ in takewhile(lambda forms: forms[0] == forms[1], both))
    if length == min(len(chosen.roles), len(rejected.roles)):
        raise Unfit("one_side_continues_the_other")
    return length


# After the cut, a side must be an assistant message that the model generated.
check_is_generated = refuse_if(
    lambda side: side.role != "assistant" or not (side.is_plain or side.messages[0].is_generated),
    "sides_part_at_no_assistant_message",
)

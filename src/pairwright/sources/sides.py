"""The prompt that two conversations share, and where each goes its own way.

A preference often comes as two whole conversations. The prompt is what both begin with; it ends before the last
assistant turn of each, so that neither answer is empty, and each answer begins with what the model wrote.
"""

from pairwright.messages import Message
from pairwright.sources.fields import BadRecord


def split_sides(chosen: list[Message], rejected: list[Message]) -> tuple[list[Message], list[Message], list[Message]]:
    """The shared prompt, and the rest of either conversation."""
    limit = min(_last_answer(chosen, "chosen"), _last_answer(rejected, "rejected"))
    length = 0
    while length < limit and chosen[length] == rejected[length]:
        length += 1
    # Two worlds that answered the same turn differently part at that turn, not at their answers.
    while not (chosen[length].is_generated and rejected[length].is_generated):
        length -= 1
        if length < 0:
            raise BadRecord("chosen and rejected: the conversations have no prompt in common")
    return chosen[:length], chosen[length:], rejected[length:]


def _last_answer(messages: list[Message], where: str) -> int:
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].is_generated:
            return position
    raise BadRecord(f"{where}: no assistant message, so there is no answer")

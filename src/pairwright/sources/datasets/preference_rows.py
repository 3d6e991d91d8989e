"""Common code of the preference formats: two answers to one prompt, one of them preferred.

An answer is text, a message or a list of messages. Two lists that start with the prompt are full conversations and are
split by `split_sides`. Scores of the answers are the rewards of the sides; the preference itself has none.
"""

import re
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.row_names import system_of
from pairwright.sources.fields import BadRecord, has, kind_of, score
from pairwright.sources.format import Origin
from pairwright.sources.shapes.chat_messages import message_from_chat, messages_from_chat
from pairwright.sources.shapes.row_fields import task_of, tools_of

# Turn markers of Anthropic's HH transcripts; the group is the role.
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}
# Keys for the score of a side; the placeholder is "chosen" or "rejected".
_SCORE_KEYS = ("score_{}", "{}_score", "{}_rating", "{}-rating", "{}_reward", "reward_{}")
SCORES = frozenset(key.format(side) for key in _SCORE_KEYS for side in ("chosen", "rejected"))


def transcript_messages(value: str) -> list[Message] | None:
    """Return the messages of a transcript, "\\n\\nHuman: ...\\n\\nAssistant: ..."; None for other text."""
    before, *pieces = _TURN.split(value)  # role, text, role, text, ...
    if before.strip() or not pieces:
        return None
    return [Message(_ROLES[role], text.strip()) for role, text in zip(pieces[::2], pieces[1::2], strict=True)]


def split_sides(chosen: list[Message], rejected: list[Message]) -> tuple[list[Message], list[Message], list[Message]]:
    """Split two conversations into their shared prompt and the remainder of each.

    >>> question, good, bad = Message("user", "2+2?"), Message("assistant", "4"), Message("assistant", "5")
    >>> [[message.text for message in part] for part in split_sides([question, good], [question, bad])]
    [['2+2?'], ['4'], ['5']]
    """
    # The prompt ends before the last answer of either side, so that each side keeps one.
    limit = min(_last_answer(chosen, "chosen"), _last_answer(rejected, "rejected"))
    length = 0
    while length < limit and chosen[length] == rejected[length]:
        length += 1
    # If the first differing turns are not generated, the divergence point is the generated turn before them.
    while not (chosen[length].is_generated and rejected[length].is_generated):
        length -= 1
        if length < 0:
            raise BadRecord("chosen and rejected: the conversations have no prompt in common")
    return chosen[:length], chosen[length:], rejected[length:]


def _last_answer(messages: list[Message], where: str) -> int:
    generated = [position for position, message in enumerate(messages) if message.is_generated]
    if not generated:
        raise BadRecord(f"{where}: no assistant message, so there is no answer")
    return generated[-1]


def prompt_from(value: Any, where: str) -> list[Message]:
    """Convert a prompt (text as one user turn, a message or a list of messages) to messages."""
    return _messages(value, where, "user")


def answer_from(value: Any, where: str) -> list[Message]:
    """Convert an answer (text as one assistant turn, a message or a list of messages) to messages; at least one."""
    answer = _messages(value, where, "assistant")
    if not answer:
        raise BadRecord(f"{where}: no messages, so there is no answer")
    return answer


def is_preference_row(value: Any) -> bool:
    """Whether a row has a prompt and two answers, under the keys shared by TRL, NeMo RL and Trinity."""
    return has(value, "prompt", "chosen", "rejected")


def conversations_from(
    prompt: list[Message], chosen: list[Message], rejected: list[Message]
) -> tuple[list[Message], list[Message], list[Message]]:
    """Return prompt, chosen and rejected answer; the answers may be full conversations that include the prompt."""
    is_answer = [side[0].is_generated for side in (chosen, rejected)]
    if all(is_answer) and prompt:
        return prompt, chosen, rejected
    if any(is_answer) and not all(is_answer):
        raise BadRecord("chosen and rejected: one is an answer, the other a whole conversation")
    shared, chosen, rejected = split_sides(chosen, rejected)
    if not shared and not prompt:
        raise BadRecord("chosen and rejected: no prompt, neither of its own nor shared")
    # The conversations already begin with the prompt, or one of their turns has its text.
    is_repeated = shared[: len(prompt)] == prompt or (
        len(prompt) == 1 and any(message.text == prompt[0].text for message in shared)
    )
    return (shared if is_repeated else prompt + shared), chosen, rejected


def preference_of_row(
    name: str, origin: Origin, row: Json, sides: tuple[list[Message], list[Message], list[Message]], info: Json
) -> Parts:
    """Build a preference with task, tools and scores from the row; `sides` are the prompt and both answers."""
    prompt, chosen, rejected = sides
    return Parts(
        name,
        origin,
        task=task_of(row),
        prompt=[*system_of(row, prompt), *prompt],
        chosen=chosen,
        rejected=rejected,
        tools=tools_of(row),
        chosen_reward=side_score(row, "chosen"),
        rejected_reward=side_score(row, "rejected"),
        info=info,
    )


def side_score(row: Json, side: str) -> float | None:
    """Return the score of the chosen or rejected answer, under any of its common names."""
    if SCORES.isdisjoint(row):
        return None
    values = (row.get(key.format(side)) for key in _SCORE_KEYS)
    return score(next((value for value in values if value is not None), None))


def _messages(value: Any, where: str, role: str) -> list[Message]:
    if isinstance(value, str):
        return [Message(role, value)]
    if isinstance(value, dict):
        return [message_from_chat({"role": role, **value}, where)]
    if isinstance(value, list):
        return messages_from_chat(value, where)
    raise BadRecord(f"{where}: expected text or messages, got {kind_of(value)}")

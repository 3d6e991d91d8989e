"""Turns that several attempts of one conversation share: trained in the first, context in the others.

When a user goes back and the conversation takes another way, both ways begin with the same turns. The later one keeps
them, so that the two have equal prompts and can be compared from where they part, but not as generated.
"""

from pairwright.messages import Message

_MARK = "shared_with_earlier_branch"


def as_context(message: Message) -> Message:
    """The same turn, not to be trained again."""
    if not message.is_generated:
        return message
    return Message(
        message.role, message.content, message.reasoning, message.tool_calls, message.tool_call_id, message.name,
        generated=False, extra={**message.extra, _MARK: True},
    )  # fmt: skip


def split_at_answer(messages: list[Message]) -> tuple[list[Message], list[Message]]:
    """Prompt and completion, which begins at the first turn that the model wrote, now or in an earlier branch."""
    for position, message in enumerate(messages):
        if message.is_generated or _MARK in message.extra:
            return messages[:position], messages[position:]
    return messages, []

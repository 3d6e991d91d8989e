"""Prompts and answers as plain text, for targets that hold nothing else. What is more than text is refused."""

from collections.abc import Sequence

from pairwright.messages import Message
from pairwright.pairs.exporters.chat import text_of
from pairwright.pairs.exporters.stream import Unfit


def prompt_text(prompt: Sequence[Message], tools: bytes | None) -> str:
    """The text of a prompt that is one user message without tools."""
    system, text = system_and_prompt_text(prompt, tools)
    if system is not None:
        raise Unfit("prompt_is_not_one_user_message")
    return text


def system_and_prompt_text(prompt: Sequence[Message], tools: bytes | None) -> tuple[str | None, str]:
    """The texts of a prompt that is one user message, after a system message or after none, without tools."""
    if tools:
        raise Unfit("tools")
    roles = [message.role for message in prompt]
    if roles not in (["user"], ["system", "user"]):
        raise Unfit("prompt_is_not_one_user_message")
    return (text_of(prompt[0]) if len(roles) == 2 else None), text_of(prompt[-1])


def side_text(message: Message) -> str:
    """The text of an answer."""
    if message.tool_calls:
        raise Unfit("tool_calls_in_a_side")
    said = text_of(message)
    if not said:
        raise Unfit("a_side_has_no_text")
    return said

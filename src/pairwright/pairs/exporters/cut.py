"""Pairs cut at their divergence: one message of the model a side, for targets that hold no more.

What both sides begin with joins the prompt; the first message in which they differ is kept, and what follows it is
left out and counted as `cut_at_divergence`. Sides that differ in anything but a message of the model are refused.
For targets that hold plain text, what is more than text is refused too.
"""

from collections.abc import Sequence

from pairwright.canonical import canonical_messages
from pairwright.messages import Message
from pairwright.pairs.exporters.chat import Context, PairRow, Unfit, check_is_chat, text_of


def cut_at_divergence(row: PairRow, context: Context) -> tuple[tuple[Message, ...], Message, Message]:
    """The prompt with what the sides share, and the first message of each that differs."""
    check_is_chat(row)
    prompt, chosen, rejected = (content.messages for content in row.contents)
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
    return prompt + chosen[:length], first, second


def _num_shared(chosen: tuple[Message, ...], rejected: tuple[Message, ...]) -> int:
    length = 0
    for one, other in zip(canonical_messages(chosen), canonical_messages(rejected), strict=False):
        if one != other:
            break
        length += 1
    return length


def only_texts(row: PairRow) -> tuple[bytes, bytes, bytes] | None:
    """Prompt, chosen and rejected as JSON strings, where a message of the user and one answer a side are all text."""
    prompt, chosen, rejected = row.prompt, row.chosen, row.rejected
    if prompt.role == "user" and chosen.role == rejected.role == "assistant":
        question, good, bad = prompt.text, chosen.text, rejected.text
        if question and good and bad and good != b'""' != bad:
            return question, good, bad
    return None


def prompt_text(prompt: Sequence[Message], tools: str | None) -> str:
    """The text of a prompt that is one user message without tools."""
    system, text = system_and_prompt_text(prompt, tools)
    if system is not None:
        raise Unfit("prompt_is_not_one_user_message")
    return text


def system_and_prompt_text(prompt: Sequence[Message], tools: str | None) -> tuple[str | None, str]:
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
    text = text_of(message)
    if not text:
        raise Unfit("a_side_has_no_text")
    return text

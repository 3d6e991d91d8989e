"""A pair on its way to JSON lines: its messages, decoded and escaped once, as the chat messages that most targets hold.

    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function",
     "function": {"name": "clock", "arguments": "{}"}}], "reasoning_content": "..."}

The arguments of a call stay the JSON text that they are, unless asked for as objects. Parts that are all text become
text.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from pairwright.records.canonical import canonical_messages
from pairwright.records.json_text import decode, encode
from pairwright.records.messages import TEXT, Json, Message, ToolCall, to_chat_message

_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
TEXT_IS_NO_CHAT = "text_is_no_chat"
_TEXT_PARTS = ("text", "input_text", "output_text")


class Unfit(Exception):
    """A pair that the target cannot hold; `reason` is the name under which it is counted."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Context(NamedTuple):
    """What holds for all pairs of one export."""

    history: bool  # customizer: messages with the full history as prompt
    has_tools: bool  # some pair has tools, so that every row should have the column
    note: Callable[[str], None]  # count this pair under a reason, if it is written
    is_text: bool = False  # the first pair is raw text, outside any chat template


class Content:
    """The messages of a prompt or a side. The pairs of a batch share one for each text that the table stores.

    `text` is a JSON string where text is all that there is: one message, of the user or written by the model.
    """

    def __init__(self, stored: str | None, arguments: str) -> None:
        self.messages = messages = _decode_messages(stored) if stored else ()
        self.role = messages[0].role if messages else ""  # of the first message
        self.text = _only_text(messages[0]) if len(messages) == 1 else None
        self.has_raw_text = self.role == TEXT or (len(messages) > 1 and any(item.role == TEXT for item in messages))
        self._arguments = arguments

    @cached_property
    def json(self) -> bytes:
        """The messages as the JSON text of a chat; raises Unfit where there are none, or one has more than text."""
        if not self.messages:
            raise Unfit("no_messages")
        return encode([chat_message(message, arguments=self._arguments) for message in self.messages])

    @cached_property
    def left_out(self) -> tuple[str, ...]:
        """What to note of a chat that has no place for `extra`."""
        return ("extra_left_out",) if any(message.extra for message in self.messages) else ()

    @cached_property
    def side_notes(self) -> tuple[str, ...]:
        """The same of a side, and what is not trained as one might think; Unfit where the model wrote nothing."""
        roles = [message.role for message in self.messages]
        if "assistant" not in roles:
            raise Unfit("a_side_has_no_assistant_message")
        notes: tuple[str, ...] = ("several_messages_a_side",) if len(roles) > 1 else ()
        notes += ("a_side_begins_in_the_environment",) if roles[0] != "assistant" else ()
        return notes + self.left_out


class PairRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the pairs table. `tools` is the JSON text that is stored, None where the pair has none."""

    id: str
    weight: float
    chosen_reward: float
    rejected_reward: float
    prompt: Content
    tools: str | None
    chosen: Content
    rejected: Content

    @property
    def contents(self) -> tuple[Content, Content, Content]:
        return self.prompt, self.chosen, self.rejected

    @property
    def has_raw_text(self) -> bool:
        """Whether messages of the pair are raw text, which stands in no chat."""
        return self.prompt.has_raw_text or self.chosen.has_raw_text or self.rejected.has_raw_text


def check_is_chat(row: PairRow) -> None:
    """Raise Unfit where a pair has no prompt, or is raw text that the target would put into a chat template."""
    if not row.prompt.messages:
        raise Unfit("no_prompt")
    if row.has_raw_text:
        raise Unfit(TEXT_IS_NO_CHAT)


def chat_message(message: Message, *, arguments: str = "text", reasoning_key: str | None = "reasoning_content") -> Json:
    """One message as a chat has it. An empty content is "", which every template takes."""
    decode_call = call_value if arguments == "object" else None
    key = reasoning_key if message.reasoning else None
    return to_chat_message(message, content=text_of(message), arguments=decode_call, reasoning_key=key)


def text_of(message: Message) -> str:
    """The text of a message; Unfit where it has more than text, such as images."""
    if isinstance(message.content, list) and not all(
        part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str) for part in message.content
    ):
        raise Unfit("content_is_not_text")
    return message.text


def call_value(call: ToolCall) -> Json:
    """The arguments of a call as the object that they are; Unfit where they are not a JSON object."""
    try:
        value = decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Unfit("arguments_are_no_json") from None
    if not isinstance(value, dict):
        raise Unfit("arguments_are_no_json")
    return value


def chats_of(row: PairRow, context: Context) -> tuple[bytes, bytes, bytes]:
    """Prompt, chosen and rejected as the JSON text of chats, for targets that hold several messages a side.

    Where a side has several, the target does not train just what the model wrote: its docstring says what instead.
    """
    check_is_chat(row)
    chats = row.prompt.json, row.chosen.json, row.rejected.json
    for reason in row.prompt.left_out + row.chosen.side_notes + row.rejected.side_notes:
        context.note(reason)
    return chats


def tools_text(row: PairRow) -> bytes:
    """The tools as a JSON string that holds JSON, so that no loader unifies the schemas of different rows."""
    return encode(row.tools or "[]")


def note_left_out(context: Context, messages: Iterable[Message], *, reasoning: bool) -> None:
    """Count what a target has no place for: `extra`, and the reasoning where `reasoning` says so."""
    for message in messages:
        if message.extra:
            context.note("extra_left_out")
        if reasoning and message.reasoning:
            context.note("reasoning_left_out")


def _only_text(message: Message) -> bytes | None:
    # Anything beside plain text has to go through `chat_message`.
    has_more = message.tool_calls or message.reasoning or message.extra or message.generated is not None
    return None if has_more or not isinstance(message.content, str) else encode(message.content)


# Pairs cut at their divergence: one message of the model a side, for targets that hold no more.


def cut_at_divergence(row: PairRow, context: Context) -> tuple[tuple[Message, ...], Message, Message]:
    """The prompt with what the sides share, and the first message of each that differs."""
    check_is_chat(row)
    prompt, chosen, rejected = (content.messages for content in row.contents)
    # The usual case needs no comparison of canonical forms.
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
        # b'""' is the JSON text of an empty string.
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

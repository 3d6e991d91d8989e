"""Shared parts of the JSON Lines exporters: pairs as chat messages, cutting at the divergence, plain texts.

Messages are decoded and encoded once for all pairs of a batch that share them, as the chat messages of most targets:

    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function",
     "function": {"name": "clock", "arguments": "{}"}}], "reasoning_content": "..."}

Tool call arguments are JSON text, or objects with `arguments="object"`. Content parts that are all text are joined.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from pairwright.records.canonical import canonical_messages
from pairwright.records.json_text import decode, encode
from pairwright.records.messages import TEXT, Json, Message, ToolCall, to_chat_message

_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
TEXT_IS_NO_CHAT = "text_is_no_chat"
_TEXT_PARTS = ("text", "input_text", "output_text")


class Unfit(Exception):
    """Raised for a pair that the target cannot represent; it is counted as refused under `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Context(NamedTuple):
    """Settings that apply to all pairs of one export."""

    history: bool  # customizer: messages with the full history as prompt
    has_tools: bool  # some pair has tools, so that every row should have the column
    note: Callable[[str], None]  # count this pair under a reason, if it is written
    is_text: bool = False  # the first pair is raw text, outside any chat template


class _Plain(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A stored message with nothing but a role and a content, as JSON text."""

    role: str
    content: Raw


_decode_plain = msgspec.json.Decoder(list[_Plain]).decode


class Content:
    """The messages of a prompt or a side; pairs of a batch with equal stored text share one instance.

    `roles` are those of the messages, `role` that of the first one. `text` is the content as a JSON string if there is
    one message with plain text only, else None. The stored text of plain messages is that of chat messages, too.
    """

    # What most have; set on an instance where it differs, since a pair needs few of these.
    text: bytes | None = None
    left_out: tuple[str, ...] = ()  # notes for a target without a field for `extra`
    _is_plain = True
    _messages: tuple[Message, ...] | None = None
    _json: bytes | None = None
    _side_notes: tuple[str, ...] | None = None

    def __init__(self, stored: str | None, arguments: str) -> None:
        self._stored, self._arguments = stored or "[]", arguments
        try:
            outline = _decode_plain(self._stored)
        except msgspec.ValidationError:
            self._is_plain, outline = False, []
        for message in outline:
            text = bytes(message.content)
            if text[:1] != b'"':  # null, or a list of parts
                self._is_plain = False
        if self._is_plain:
            self.roles = [message.role for message in outline]
            if len(outline) == 1:
                self.text = text
        else:
            messages = self.messages
            self.roles = [message.role for message in messages]
            self.left_out = ("extra_left_out",) if any(message.extra for message in messages) else ()
            self.text = _only_text(messages[0]) if len(messages) == 1 else None
        self.role = self.roles[0] if self.roles else ""

    @property
    def has_raw_text(self) -> bool:
        return TEXT in self.roles

    @property
    def messages(self) -> tuple[Message, ...]:
        if self._messages is None:
            self._messages = _decode_messages(self._stored)
        return self._messages

    @property
    def json(self) -> bytes:
        """The messages as a JSON array of chat messages; raises Unfit if there are none or one is not only text."""
        if self._json is None:
            if not self.roles:
                raise Unfit("no_messages")
            if self._is_plain:
                self._json = self._stored.encode()
                return self._json
            self._json = encode([chat_message(message, arguments=self._arguments) for message in self.messages])
        return self._json

    @property
    def side_notes(self) -> tuple[str, ...]:
        """Notes for a side: `left_out`, several messages, or a first message that is not the assistant's.

        Raises Unfit if the side has no assistant message.
        """
        if self._side_notes is None:
            if "assistant" not in self.roles:
                raise Unfit("a_side_has_no_assistant_message")
            notes: tuple[str, ...] = ("several_messages_a_side",) if len(self.roles) > 1 else ()
            notes += ("a_side_begins_in_the_environment",) if self.roles[0] != "assistant" else ()
            self._side_notes = notes + self.left_out
        return self._side_notes


class PairRow(msgspec.Struct, frozen=True, gc=False):
    """A row of the pairs table. `tools` is JSON text, with functions nested as in chat APIs; None if there are none."""

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
        """Whether the pair has raw text, which is outside any chat template."""
        return self.prompt.has_raw_text or self.chosen.has_raw_text or self.rejected.has_raw_text


def check_is_chat(row: PairRow) -> None:
    """Raise Unfit if a pair has no prompt, or is raw text, to which the target would apply a chat template."""
    if not row.prompt.roles:
        raise Unfit("no_prompt")
    if row.has_raw_text:
        raise Unfit(TEXT_IS_NO_CHAT)


def chat_message(message: Message, *, arguments: str = "text", reasoning_key: str | None = "reasoning_content") -> Json:
    """Convert a message to a chat message. Empty content is "", which every chat template accepts.

    Args:
        message: The message; raises Unfit if it has more than text, such as images.
        arguments: "text" writes tool call arguments as JSON text, "object" as objects.
        reasoning_key: Key of the reasoning; None leaves it out.
    """
    decode_call = call_value if arguments == "object" else None
    key = reasoning_key if message.reasoning else None
    return to_chat_message(message, content=text_of(message), arguments=decode_call, reasoning_key=key)


def text_of(message: Message) -> str:
    """Return the text of a message; raises Unfit if it has more than text, such as images."""
    if isinstance(message.content, list) and not all(
        part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str) for part in message.content
    ):
        raise Unfit("content_is_not_text")
    return message.text


def call_value(call: ToolCall) -> Json:
    """Decode the arguments of a tool call; raises Unfit if they are not a JSON object."""
    try:
        value = decode(call.arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise Unfit("arguments_are_no_json") from None
    if not isinstance(value, dict):
        raise Unfit("arguments_are_no_json")
    return value


def chats_of(row: PairRow, context: Context) -> tuple[bytes, bytes, bytes]:
    """Return prompt, chosen and rejected as JSON arrays of chat messages, for targets with several messages per side.

    If a side has several messages, targets do not train exactly on what the model generated; the docstring of each
    target says what they train on.
    """
    check_is_chat(row)
    prompt, chosen, rejected = row.prompt, row.chosen, row.rejected
    chats = prompt.json, chosen.json, rejected.json
    for notes in (prompt.left_out, chosen.side_notes, rejected.side_notes):
        for reason in notes:
            context.note(reason)
    return chats


def tools_text(row: PairRow) -> bytes:
    """Return the tools as a JSON string that contains JSON, so that loaders do not unify schemas across rows."""
    return encode(row.tools or "[]")


def note_left_out(context: Context, messages: Iterable[Message], *, reasoning: bool) -> None:
    """Note what the target leaves out: `extra`, and the reasoning if `reasoning` is set."""
    for message in messages:
        if message.extra:
            context.note("extra_left_out")
        if reasoning and message.reasoning:
            context.note("reasoning_left_out")


def _only_text(message: Message) -> bytes | None:
    # Anything beside plain text has to go through `chat_message`.
    has_more = message.tool_calls or message.reasoning or message.extra or message.generated is not None
    return None if has_more or not isinstance(message.content, str) else encode(message.content)


# Cutting pairs at the divergence, for targets with one assistant message per side


def cut_at_divergence(row: PairRow, context: Context) -> tuple[tuple[Message, ...], Message, Message]:
    """Return the prompt extended by the common prefix of the sides, and the first different message of each side.

    Raises Unfit if one side continues the other, or the model did not generate both of these messages.
    """
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
    """Return prompt, chosen and rejected as JSON strings if the pair is one user message and two text answers."""
    prompt, chosen, rejected = row.prompt, row.chosen, row.rejected
    if prompt.role == "user" and chosen.role == rejected.role == "assistant":
        question, good, bad = prompt.text, chosen.text, rejected.text
        # b'""' is the JSON text of an empty string.
        if question and good and bad and good != b'""' != bad:
            return question, good, bad
    return None


def prompt_text(prompt: Sequence[Message], tools: str | None) -> str:
    """Return the text of a prompt; raises Unfit unless it is a single user message without tools."""
    system, text = system_and_prompt_text(prompt, tools)
    if system is not None:
        raise Unfit("prompt_is_not_one_user_message")
    return text


def system_and_prompt_text(prompt: Sequence[Message], tools: str | None) -> tuple[str | None, str]:
    """Return the texts of the system message (or None) and the user message of a prompt.

    Raises Unfit if the prompt has other messages or tools.
    """
    if tools:
        raise Unfit("tools")
    roles = [message.role for message in prompt]
    if roles not in (["user"], ["system", "user"]):
        raise Unfit("prompt_is_not_one_user_message")
    return (text_of(prompt[0]) if len(roles) == 2 else None), text_of(prompt[-1])


def side_text(message: Message) -> str:
    """Return the text of an answer; raises Unfit if it has tool calls or no text."""
    if message.tool_calls:
        raise Unfit("tool_calls_in_a_side")
    text = text_of(message)
    if not text:
        raise Unfit("a_side_has_no_text")
    return text

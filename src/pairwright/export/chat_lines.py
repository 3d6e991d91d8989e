"""Shared parts of the JSON Lines exporters: pairs as chat messages, and plain texts.

Messages are decoded and encoded once for all pairs of a batch that share them, as the chat messages of most targets:

    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function",
     "function": {"name": "clock", "arguments": "{}"}}], "reasoning_content": "..."}

Tool call arguments are JSON text, or objects with `arguments="object"`. Content parts that are all text are joined.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec import Raw

from pairwright.records.json_text import decode, encode
from pairwright.records.messages import TEXT, TEXT_PARTS, Json, Message, ToolCall, decode_messages, to_chat_message


def system_and_prompt_text(prompt: Sequence[Message], tools: str | None) -> tuple[str | None, str]:
    """Return the texts of the system message (or None) and the user message of a prompt that has nothing else."""
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


TEXT_IS_NO_CHAT = "text_is_no_chat"


class Unfit(Exception):
    """Raised for a pair that the target cannot represent; it is counted as refused under `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Context(NamedTuple):
    """Settings that apply to all pairs of one export."""

    history: bool  # customizer: messages with the full history as prompt
    has_tools: bool  # some pair has tools, so every row needs the column
    is_text: bool = False  # the first pair is raw text, outside any chat template


class Content(msgspec.Struct, gc=False):
    """The messages of a prompt or a side; pairs of a batch with equal stored text share one instance.

    stored      the messages as JSON
    arguments   how tool call arguments are written: "text" or "object"
    roles       roles of the messages
    is_plain    all messages consist of a role and a text, so that `stored` is also the JSON of chat messages
    text        the content as a JSON string if there is one message with plain text only, else None
    """

    stored: bytes
    arguments: str
    roles: tuple[str, ...]
    is_plain: bool
    text: bytes | None
    decoded: tuple[Message, ...] | None = None

    @property
    def role(self) -> str:
        """The role of the first message."""
        return self.roles[0] if self.roles else ""

    @property
    def has_raw_text(self) -> bool:
        return TEXT in self.roles

    @property
    def messages(self) -> tuple[Message, ...]:
        if self.decoded is None:
            self.decoded = decode_messages(self.stored)
        return self.decoded

    @property
    def json(self) -> bytes:
        """The messages as a JSON array of chat messages; raises Unfit if there are none, or for non-text content."""
        if not self.roles:
            raise Unfit("no_messages")
        if self.is_plain:
            return self.stored
        return encode([chat_message(message, arguments=self.arguments) for message in self.messages])

    def replace_messages(self, messages: Sequence[Message]) -> "Content":
        """Return a copy with other messages."""
        return read_contents([encode(messages)], self.arguments)[0]


class _Plain(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A stored message with nothing but a role and a content, as JSON text."""

    role: str
    content: Raw


_decode_plain = msgspec.json.Decoder(list[_Plain]).decode


def read_contents(texts: Iterable[bytes | None], arguments: str) -> list[Content]:
    """Read stored messages; None means no messages."""
    contents = []
    roles_of: dict[str, tuple[str]] = {}  # shared by all single-message contents with this role
    for stored in texts:
        stored = stored or b"[]"
        try:
            outline = _decode_plain(stored)
        except msgspec.ValidationError:
            contents.append(_read_rich(stored, arguments))
            continue
        if len(outline) == 1:  # most contents
            role, text = outline[0].role, bytes(outline[0].content)
            if text.startswith(b'"'):  # not null, nor a list of parts
                contents.append(Content(stored, arguments, roles_of.setdefault(role, (role,)), True, text))
                continue
        elif all(bytes(message.content).startswith(b'"') for message in outline):
            contents.append(Content(stored, arguments, tuple(message.role for message in outline), True, None))
            continue
        contents.append(_read_rich(stored, arguments))
    return contents


def _read_rich(stored: bytes, arguments: str) -> Content:
    """Read messages of which at least one has more than a role and a text."""
    messages = decode_messages(stored)
    text = None
    if len(messages) == 1 and isinstance(messages[0].content, str):
        only = messages[0]
        # Anything but plain text has to go through `chat_message`.
        has_more = only.tool_calls or only.reasoning or only.extra or only.generated is not None
        text = None if has_more else encode(only.content)
    return Content(stored, arguments, tuple(message.role for message in messages), False, text, messages)


def chat_message(message: Message, *, arguments: str = "text", reasoning_key: str | None = "reasoning_content") -> Json:
    """Convert a message to a chat message. Empty content is "", which every chat template accepts.

    Tool call arguments are written as JSON "text" or as an "object"; without a `reasoning_key`, reasoning is left out.
    Raises Unfit if the message has more than text, such as images.
    """
    decode_call = call_value if arguments == "object" else None
    key = reasoning_key if message.reasoning else None
    return to_chat_message(message, content=text_of(message), arguments=decode_call, reasoning_key=key)


def text_of(message: Message) -> str:
    """Return the text of a message; raises Unfit if it has more than text, such as images."""
    if isinstance(message.content, list) and not all(
        part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str) for part in message.content
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


# A check of prompts, sides or tools: returns notes, or raises Unfit. For plain messages it uses only the roles.
Checker = Callable[..., tuple[str, ...]]


def refuse_if(holds: Callable[..., object], reason: str) -> Checker:
    """Return a check that refuses pairs for which a condition holds."""

    def check(*values: Content | str | None) -> tuple[str, ...]:
        if holds(*values):
            raise Unfit(reason)
        return ()

    return check


def note_if(holds: Callable[..., object], reason: str) -> Checker:
    """Return a check that notes pairs for which a condition holds."""
    return lambda *values: (reason,) if holds(*values) else ()


def any_message(content: Content, holds: Callable[[Message], object]) -> bool:
    """Return whether a condition holds for any message; always False for plain messages (role and text only)."""
    return not content.is_plain and any(holds(message) for message in content.messages)


write_chat: Callable[[Content], bytes] = attrgetter("json")
check_has_prompt = refuse_if(lambda prompt: not prompt.roles, "no_prompt")
# The target would apply a chat template to raw text.
check_is_chat = refuse_if(lambda content: content.has_raw_text, TEXT_IS_NO_CHAT)
refuse_tools = refuse_if(lambda tools: tools, "tools")
note_tools = note_if(lambda tools: tools, "tools_not_rendered")
note_extra = note_if(lambda content: any_message(content, lambda message: message.extra), "extra_left_out")
_note_reasoning = note_if(lambda content: any_message(content, lambda message: message.reasoning), "reasoning_left_out")
# Some chat templates encode JSON text a second time.
note_arguments = note_if(
    lambda content: content.arguments == "text" and any_message(content, lambda message: message.tool_calls),
    "arguments_as_text",
)


def note_extra_and_reasoning(content: Content) -> tuple[str, ...]:
    """Note that the target omits `extra` and the reasoning."""
    return note_extra(content) + _note_reasoning(content)


def check_side(side: Content) -> tuple[str, ...]:
    """Refuse a side without an assistant message; note several messages, and a first one that is not the assistant's.

    If a side has several messages, targets do not train on exactly the generated messages; the docstring of each target
    says which messages are trained.
    """
    if "assistant" not in side.roles:
        raise Unfit("a_side_has_no_assistant_message")
    notes: tuple[str, ...] = ("several_messages_a_side",) if len(side.roles) > 1 else ()
    notes += ("a_side_begins_in_the_environment",) if side.roles[0] != "assistant" else ()
    return notes + note_extra(side)


def write_history(prompt: Content) -> bytes:
    """Write a prompt as an array of chat messages, with tool call arguments as JSON text."""
    return prompt.json if prompt.is_plain else encode([chat_message(message) for message in prompt.messages])


def write_tools(tools: str | None) -> bytes:
    """Write the tools as a JSON string that contains JSON, so that loaders do not unify schemas across rows."""
    return encode(tools or "[]")


def write_prompt_text(prompt: Content, tools: str | None) -> bytes:
    """Write the text of a prompt; raises Unfit unless it is a single user message without tools."""
    if prompt.role == "user" and prompt.text and not tools:  # most prompts: nothing to decode
        return prompt.text
    system, text = system_and_prompt_text(prompt.messages, tools)
    if system is not None:
        raise Unfit("prompt_is_not_one_user_message")
    return encode(text)


def write_side_text(side: Content) -> bytes:
    """Write the text of a side of one message; raises Unfit if it has tool calls or no text."""
    if side.text and side.text != b'""':  # most sides: nothing to decode
        return side.text
    return encode(side_text(side.messages[0]))

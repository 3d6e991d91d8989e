"""Messages and their parts: Message, ToolCall, ErrorSite; messages as chat dicts and in canonical form, with hashes.

A message is one turn of a conversation, with the tool calls in it. An error site marks a failure in a conversation.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec
import xxhash
from msgspec.structs import force_setattr

from pairwright.errors import RecordError
from pairwright.records.checks import check_parts, set_tuple
from pairwright.records.json_text import check_json, check_text

Json = dict[str, Any]
TEXT = "text"  # the role of raw text outside any chat template
TEXT_PARTS = ("text", "input_text", "output_text")


class ToolCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A tool call of the model; `arguments` is the recorded JSON text, unchanged even if it is not valid JSON.

    >>> import pairwright as pw
    >>> pw.ToolCall("search", '{"q": "bike"}', id="c1").name
    'search'
    """

    name: str
    arguments: str
    id: str | None = None
    type: str = "function"

    def __post_init__(self) -> None:
        name, arguments = self.name, self.arguments
        if type(name) is not str or not name.isascii():
            check_text(name, "tool_call.name")
        if type(arguments) is not str or not arguments.isascii():
            check_text(arguments, "tool_call.arguments")


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One turn. `content` is text, a list of parts, or None; `extra` holds further fields of the source format.

    `generated` is whether the model generated this turn in this run; None means by role (assistant: yes). It is False
    for context that was copied or summarised into an assistant turn.

    Role "text" is raw text outside any chat template, such as TRL's standard rows or an already rendered prompt. A
    conversation is either all text or all chat; records mark the text of a completion as generated.

    >>> import pairwright as pw
    >>> pw.Message("assistant", [{"type": "text", "text": "It is "}, {"type": "text", "text": "red."}]).text
    'It is red.'
    """

    role: str
    content: str | list[Json] | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    generated: bool | None = None
    extra: Json = {}

    def __post_init__(self) -> None:  # runs for every message: the usual case must be fast
        content = self.content
        if type(self.role) is not str or not self.role:
            raise RecordError("message.role", self.role, "a role such as 'user' or 'assistant'")
        if type(content) is list:
            check_parts(content)
        elif content is not None and not (type(content) is str and content.isascii()):
            check_text(content, "message.content")
        if self.tool_calls:
            set_tuple(self, "tool_calls", ToolCall)
        elif type(self.tool_calls) is not tuple:
            force_setattr(self, "tool_calls", ())
        if self.reasoning is not None:
            check_text(self.reasoning, "message.reasoning")
        if self.tool_call_id is not None:
            check_text(self.tool_call_id, "message.tool_call_id")
        if self.name is not None:
            check_text(self.name, "message.name")
        if self.extra:
            check_json(self.extra, "message.extra", finite=True)

    @classmethod
    def from_chat(cls, message: Json) -> "Message":
        """Convert a chat dict of OpenAI's API or a chat template. Records convert such dicts automatically.

        >>> Message.from_chat({"role": "user", "content": "hi"}) == Message("user", "hi")
        True
        """
        import pairwright  # the chat reader is downstream: loaded on first use

        return pairwright.message_from_chat(message)

    @property
    def is_generated(self) -> bool:
        return self.role == "assistant" if self.generated is None else self.generated

    @property
    def text(self) -> str:
        """The text of the content: all text parts, in order."""
        if isinstance(self.content, list):
            return "".join(part["text"] for part in self.content if isinstance(part.get("text"), str))
        return self.content or ""


# In `extra`: the training weight of a turn, if it is neither context (0) nor fully trained (1).
TURN_WEIGHT = "turn_weight"


def weight_of(message: Message) -> float:
    """Return the training weight of a turn; the default is 1.

    >>> weight_of(Message("assistant", "hi", extra={TURN_WEIGHT: 0.5})), weight_of(Message("assistant", "hi"))
    (0.5, 1.0)
    """
    value = message.extra.get(TURN_WEIGHT) if message.extra else None
    return float(value) if isinstance(value, int | float) else 1.0


# In `extra`: the reward of a single turn, from data with step rewards; readers write the first name.
TURN_REWARD = "turn_reward"
_TURN_REWARDS = (TURN_REWARD, "step_reward", "reward")


def turn_reward_of(message: Message) -> float | None:
    """Return the recorded reward of a turn, or None.

    >>> turn_reward_of(Message("assistant", "hi", extra={TURN_REWARD: -1})), turn_reward_of(Message("assistant", "hi"))
    (-1.0, None)
    """
    values = (message.extra.get(name) for name in _TURN_REWARDS if message.extra)
    return next((float(value) for value in values if isinstance(value, int | float)), None)


decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode  # stored messages: a JSON array of `Message`s


def as_message(message: Message | Json) -> Message:
    """Return a message unchanged, or convert a chat dict."""
    return message if type(message) is Message else Message.from_chat(cast(Json, message))


# The kinds of error that importers distinguish. Each has a hint (tokens/hints.py); users may add other kinds.
ERROR_KINDS = {
    "unknown_tool": "a call of a tool that does not exist",
    "invalid_json": "arguments that are not JSON",
    "missing_argument": "a call without an argument that is required",
    "invalid_arguments": "arguments that do not fit the schema",
    "file_not_found": "a file or folder that does not exist",
    "not_found": "something else that does not exist",
    "permission_denied": "something that is not allowed",
    "timeout": "something that took too long",
    "nonzero_exit": "a command that ended with an exit code other than 0",
    "exception": "code that raised, or a request to the model that failed",
    "tool_error": "any other failure of a tool",
}


_OWN_CONTENT: Any = object()  # default: content not passed, since None is a valid content


def to_chat_message(
    message: Message,
    *,
    content: str | list[Json] | None = _OWN_CONTENT,
    arguments: Callable[[ToolCall], Any] | None = None,
    reasoning_key: str | None = "reasoning_content",
    missing_id: str | None = None,
) -> Json:
    """Convert a message to a dict of the chat APIs and chat templates; `generated` and `extra` are left out.

    content        replaces the message's content
    arguments      returns the arguments of a call; by default the recorded text (`arguments_object` decodes it)
    reasoning_key  the key of the reasoning; None leaves it out
    missing_id     the id for a call without one; None leaves it out

    >>> message = Message("assistant", None, "why", (ToolCall("clock", '{"zone": "CET"}', "1"),))
    >>> chat = to_chat_message(message, content="", arguments=arguments_object)
    >>> chat["content"], chat["reasoning_content"], chat["tool_calls"]
    ('', 'why', [{'id': '1', 'type': 'function', 'function': {'name': 'clock', 'arguments': {'zone': 'CET'}}}])
    """
    chat: Json = {"role": message.role, "content": message.content if content is _OWN_CONTENT else content}
    if message.reasoning is not None and reasoning_key is not None:
        chat[reasoning_key] = message.reasoning
    if message.tool_calls:
        chat["tool_calls"] = calls = []
        for call in message.tool_calls:
            call_id = missing_id if call.id is None else call.id
            value = call.arguments if arguments is None else arguments(call)
            function = {"name": call.name, "arguments": value}
            calls.append({**({} if call_id is None else {"id": call_id}), "type": call.type, "function": function})
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        chat["name"] = message.name
    return chat


def to_template_chat(messages: Sequence[Message], *, arguments: str, empty: str | None) -> list[Json]:
    """Convert messages for a chat template.

    Templates differ in the form of `arguments` ("object" or "text") and in the `empty` content that they accept next to
    calls (None or ""). Any other empty content becomes "".

    >>> message = Message("assistant", "", tool_calls=(ToolCall("clock", '{"zone": "CET"}'),))
    >>> to_template_chat([message], arguments="object", empty=None)[0]["tool_calls"][0]["function"]
    {'name': 'clock', 'arguments': {'zone': 'CET'}}
    """
    decode = arguments_object if arguments == "object" else None
    chat = []
    for message in messages:
        content = message.content
        # an empty list of parts is kept: it is not text
        if not content and not isinstance(content, list):
            content = empty if message.tool_calls else ""
        chat.append(to_chat_message(message, content=content, arguments=decode))
    return chat


def arguments_object(call: ToolCall) -> Any:
    """Return the decoded arguments of a call, or their text if it is not a JSON object."""
    try:
        value = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def text_prompt(text: str | None) -> tuple[Message, ...]:
    """Return raw text as a prompt; no message for None."""
    return (Message(TEXT, text),) if text else ()


def completion_of_text(text: str | None, *, prompt_is_text: bool) -> tuple[Message, ...]:
    """Return a completion recorded only as text: raw text after a text prompt, else an assistant turn."""
    role, generated = (TEXT, True) if prompt_is_text else ("assistant", None)
    return (Message(role, text, generated=generated),) if text else ()


_TOKEN_IDS = "token_ids"


def message_of_ids(ids: Sequence[int], role: str = TEXT, *, generated: bool | None = None) -> Message:
    """Return a message for recorded ids without text: its content is one part with a hash of the ids.

    The ids are in the arrays of the record. Without text, only the recorded ids can be trained on.
    """
    return Message(role, [{"type": _TOKEN_IDS, "count": len(ids), "hash": content_hash(ids)}], generated=generated)


def count_ids(message: Message) -> int:
    """Return the number of ids in a message of `message_of_ids`; 0 for any other message."""
    parts = message.content if isinstance(message.content, list) else ()
    return sum(part["count"] for part in parts if part.get("type") == _TOKEN_IDS and type(part.get("count")) is int)


def mark_generated(completion: tuple[Message, ...]) -> tuple[Message, ...]:
    """Mark the raw text of a completion as generated, unless it is marked as context."""
    return tuple(
        msgspec.structs.replace(message, generated=True)
        if message.role == TEXT and message.generated is None
        else message
        for message in completion
    )


class ErrorSite(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A failure in the conversation; `index` is the position of the message that shows it in `experience.messages`.

    >>> import pairwright as pw
    >>> pw.ErrorSite(index=2, kind="file_not_found", tool="read").kind
    'file_not_found'
    """

    index: int
    kind: str
    text: str = ""
    tool: str | None = None
    call_id: str | None = None
    available_tools: tuple[str, ...] = ()
    meta: Json = {}

    def __post_init__(self) -> None:
        if type(self.index) is not int or self.index < 0:
            raise RecordError("error.index", self.index, "the position of a message, at least 0")
        if self.meta:
            check_json(self.meta, "error.meta", finite=True)


_SORTED = msgspec.msgpack.Encoder(order="sorted")  # faster than JSON, since texts need no escapes
pack = _SORTED.encode
_encode_json = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.decode
digest = xxhash.xxh3_128_hexdigest


def canonical_messages(messages: Iterable[Message | Json]) -> list[Any]:
    """Return messages as plain JSON values that are equal if and only if the messages mean the same.

    Two runs of one agent are rarely identical as text: call ids are random, arguments are spaced differently, null
    content and "" mean the same. The canonical form keeps content and drops serialization: text parts are joined, JSON
    arguments are decoded, and call ids are numbered in order of appearance, which keeps results linked to their calls.
    `generated` and `extra` are left out. A message is [role, content, reasoning, name], and if it has calls or the id
    of a call, also the calls [number, name, arguments] and the number of the answered call.

    >>> call = ToolCall("clock", '{ "zone":"CET" }', "call_x7")
    >>> result = Message("tool", "12:30", tool_call_id="call_x7")
    >>> canonical_messages([Message("assistant", None, tool_calls=(call,)), result])
    [['assistant', '', '', None, [[0, 'clock', {'zone': 'CET'}]], None], ['tool', '12:30', '', None, [], 0]]
    """
    call_numbers: dict[str, int] = {}  # ids are numbered across the conversation, in order of first appearance
    canonical: list[Any] = []
    for message in messages:
        if type(message) is not Message:
            message = as_message(message)
        content, calls, call_id = message.content, message.tool_calls, message.tool_call_id
        if type(content) is not str:
            content = canonical_content(content)
        form: list[Any] = [message.role, content, message.reasoning or "", message.name]
        if calls or call_id is not None:
            listed = []
            for call in calls:
                number = call_numbers.setdefault(call.id, len(call_numbers)) if call.id is not None else None
                listed.append([number, call.name, canonical_arguments(call.arguments)])
            # a result without a known call keeps its id as text
            form += (listed, None if call_id is None else call_numbers.get(call_id, call_id))
        canonical.append(form)
    return canonical


def content_hash(*values: Any) -> str:
    """Return a 128-bit hash of JSON values as hex; key order does not matter."""
    try:
        return digest(pack(values))
    except OverflowError:  # MessagePack has no integers of more than 64 bits
        return digest(_encode_json(values))


def prompt_hash(prompt: Iterable[Message | Json], tools: Iterable[Json] = ()) -> str:
    """Hash a prompt: equal if and only if prompts are comparable (same conversation, same tools).

    Args:
        prompt: Messages, or chat dicts.
        tools: Schemas of the tools offered to the model.

    Returns:
        32 hex digits.

    >>> import pairwright as pw
    >>> pw.prompt_hash([pw.Message("user", "hi")]) == pw.prompt_hash([{"role": "user", "content": "hi"}])
    True
    """
    return content_hash(canonical_messages(prompt), list(tools))


def canonical_arguments(arguments: str) -> Any:
    """Return the decoded arguments of a call, or their text if they are not JSON."""
    try:
        return _decode(arguments)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return arguments


def canonical_content(content: str | list[Json] | None) -> str | list[Json]:
    """Return the content as joined text, or the list of parts if some are not text."""
    if isinstance(content, list) and all(part.get("type") in TEXT_PARTS and "text" in part for part in content):
        content = "".join(str(part["text"]) for part in content)
    return content or ""

"""What the model did in a plain rollout, from its items straight to what the table holds of it.

The same as `messages_from_items` (responses.py) and `canonical_messages` (canonical.py) make of the items that nearly
all rollouts consist of, without building messages: that takes most of the time of a large import.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct

from pairwright.canonical import packed
from pairwright.jsontext import decode, encode
from pairwright.sources.nemo_gym_shapes import Item
from pairwright.sources.responses import TEXT_PARTS
from pairwright.sources.result_text import text_error_kind


class Call(Struct, gc=False, frozen=True, omit_defaults=True):
    """Encodes as the ToolCall that it stands for."""

    name: str
    arguments: str
    id: str


class Turn(Struct, gc=False, frozen=True, omit_defaults=True):
    """Encodes as the Message that it stands for."""

    role: str
    content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[Call] = ()
    tool_call_id: str | None = None


_END = Item(type="")  # stands behind the last item
_CLOSES = ("function_call_output", _END.type)
_NO_CALLS: tuple[Call, ...] = ()


# A completion as the table holds it: its messages as JSON, their canonical form packed as it is hashed, and the numbers
# of messages, characters and calls.
Answer = tuple[bytes, bytes, int, int, int]


def answer_of(items: list[Item], names: tuple[str, ...]) -> Answer | None:
    """The messages of plain items, put together as responses.py does; None if one is not plain or shows an error."""
    turns: list[Turn] = []
    canonical: list[Any] = []
    numbers: dict[str, int] = {}
    content = reasoning = None  # these four are of the open assistant message
    calls: list[Call] = []
    called: list[Any] = []
    num_characters = num_calls = 0
    for item in [*items, _END]:
        kind = item.type
        if kind == "function_call":
            name, arguments, call_id = item.name, item.arguments, item.call_id
            if call_id is None or arguments is None or name is UNSET or (names and name not in names):
                return None
            if call_id not in numbers:
                numbers[call_id] = len(numbers)
            calls.append(Call(name, arguments, call_id))
            called.append((numbers[call_id], name, decode(arguments)))
            num_characters += len(arguments)
            num_calls += 1
            continue
        # whatever follows a text or a call closes the message; reasoning alone goes on into a text
        if calls:
            turns.append(Turn("assistant", content, reasoning, calls))
            canonical.append(("assistant", content or "", reasoning or "", None, called, None))
            content = reasoning = None
            calls, called = [], []
        elif content is not None or (reasoning is not None and kind in _CLOSES):
            turns.append(Turn("assistant", content, reasoning))
            canonical.append(("assistant", content or "", reasoning or "", None))
            content = reasoning = None
        if kind == "function_call_output":
            output, call_id = item.output, item.call_id
            if output is None or call_id is None or text_error_kind(output) is not None:
                return None
            turns.append(Turn("tool", output, None, _NO_CALLS, call_id))
            canonical.append(("tool", output, "", None, (), numbers.get(call_id, call_id)))
            num_characters += len(output)
        elif kind == "reasoning":
            thought = _thought(item)
            if not thought:
                return None
            num_characters += len(thought) + (reasoning is not None)
            reasoning = thought if reasoning is None else f"{reasoning}\n{thought}"
        elif item is not _END:
            content = _text(item, kind)
            if content is None:
                return None
            num_characters += len(content)
    if not turns:
        return None
    return encode(turns), packed((canonical,)), len(turns), num_characters, num_calls


def _text(item: Item, kind: str | None) -> str | None:
    """The text of an assistant message that says nothing else."""
    if (
        (kind is not None and kind != "message")
        or item.role != "assistant"
        or (item.status is not None and item.status != "completed")
        or item.name is not UNSET
        or item.summary is not None
        or not (item.arguments is item.call_id is item.output is item.encrypted_content is None)
    ):
        return None
    content = item.content
    if not isinstance(content, list):
        return content
    if len(content) != 1 or content[0].annotations or content[0].type not in TEXT_PARTS:
        return None
    return content[0].text


def _thought(item: Item) -> str | None:
    """The text of reasoning that has a summary, and neither full text nor an encrypted one."""
    if item.content or item.encrypted_content or not item.summary:
        return None
    return "\n".join([part.text for part in item.summary if part.text])

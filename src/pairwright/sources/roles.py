"""Roles of messages: the closed set of roles, their synonyms, and tool calls stored as messages.

A role outside these tables is refused, since a chat template would not know it. Some files store a call as a separate
message with the role `tool_call` and the call as text, and results without the id of their call; both are converted to
the usual form here, for all formats.
"""

import ast
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pairwright.records.messages import TEXT, Message, ToolCall
from pairwright.sources.fields import BadRecord, json_text

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", TEXT})
SYNONYMS = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("ai", "gpt", "chatgpt", "bot", "model", "bing", "bard", "aimessagechunk"), "assistant"),
    **dict.fromkeys(
        ("function", "observation", "ipython", "tool_result", "tool_response", "function_response", "function_result"),
        "tool",
    ),
}
CALLS = frozenset({"tool_call", "function_call"})  # the content is the call
_MAX_CALL_CHARACTERS = 2**20
# Raw: arguments keep the bytes of the file, including spacing and key order.
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def role_of(name: str) -> str:
    """Return the role for a name; raises BadRecord for an unknown name.

    >>> role_of("Human"), role_of("function"), role_of("developer")
    ('user', 'tool', 'developer')
    """
    if name in ROLES:
        return name
    usual = SYNONYMS.get(name.lower(), name.lower())
    if usual not in ROLES:
        raise BadRecord(f"role {name[:40]!r}: expected {', '.join(sorted(ROLES - {TEXT}))}, or another name of these")
    return usual


def usual_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages with usual roles, calls in their turns, results with ids; the same object if nothing changes."""
    is_usual, has_calls = True, False
    for message in messages:
        role = message.role
        if role == "tool":
            # A result without an id after a call still has to be linked to its call.
            is_usual = is_usual and (message.tool_call_id is not None or not has_calls)
        elif role not in ROLES or (message.reasoning and repeats_thought(message)):
            is_usual = False
        if message.tool_calls:
            has_calls = True
    return messages if is_usual else _link_results(_rename(messages))


def repeats_thought(message: Message) -> bool:
    """Whether the text begins with the thought that the reasoning repeats: rendered, it would be trained twice."""
    content = message.content.lstrip() if isinstance(message.content, str) else ""
    thought = content.removeprefix("<think>").partition("</think>")[0].strip()
    is_thought = content.startswith("<think>") and bool(thought)
    return is_thought and (message.reasoning or "").strip().startswith(thought)


def _rename(messages: Sequence[Message]) -> list[Message]:
    renamed: list[Message] = []
    for message in messages:
        if message.role not in CALLS:
            role = role_of(message.role)
            renamed.append(message if role == message.role else replace(message, role=role))
            if repeats_thought(message):
                renamed[-1] = replace(renamed[-1], reasoning=None)
            continue
        calls = calls_of_text(message.text)
        if calls is None:
            raise BadRecord(f"a message of role {message.role!r} whose text is not a call: {message.text[:60]!r}")
        before = renamed[-1] if renamed else None
        # Consecutive calls belong to one turn: their results follow together.
        if before is not None and before.tool_calls and before.role == "assistant" and not before.content:
            renamed[-1] = replace(before, tool_calls=(*before.tool_calls, *calls))
        else:
            renamed.append(replace(message, role="assistant", content=None, tool_calls=(*message.tool_calls, *calls)))
    return renamed


def _link_results(messages: list[Message]) -> list[Message]:
    """Link each result without an id to the first unanswered call before it, with the same name if it has one."""
    taken = {call.id for message in messages for call in message.tool_calls}
    waiting: list[tuple[int, int]] = []  # unanswered calls: (index of the message, index of the call)
    for place, message in enumerate(messages):
        waiting += [(place, number) for number in range(len(message.tool_calls))]
        if message.role != "tool":
            continue
        open_calls = [(at, messages[at[0]].tool_calls[at[1]]) for at in waiting]
        if message.tool_call_id is not None:
            waiting = [at for at, call in open_calls if call.id != message.tool_call_id]
            continue
        named = [at for at, call in open_calls if call.name == message.name] if message.name is not None else []
        if not waiting or (message.name is not None and not named):
            continue
        own = (named or waiting)[0]
        waiting.remove(own)
        turn, number = messages[own[0]], own[1]
        call = turn.tool_calls[number]
        if call.id is None:
            call_id = next(name for n in range(len(taken) + 1) if (name := f"call_{n}") not in taken)
            taken.add(call_id)
            call = replace(call, id=call_id)
            calls = (*turn.tool_calls[:number], call, *turn.tool_calls[number + 1 :])
            messages[own[0]] = replace(turn, tool_calls=calls)
        messages[place] = replace(message, tool_call_id=call.id)
    return messages


def calls_of_text(value: str) -> list[ToolCall] | None:
    """Parse calls {name, arguments}, one or a list, from JSON (arguments keep their text) or a Python literal."""
    try:
        values = _decode_list(value) if value.lstrip().startswith("[") else [_decode_object(value)]
        return [_call(item) for item in values] or None
    except (msgspec.MsgspecError, RecursionError, ValueError, KeyError):
        return _printed_calls(value)


def _call(item: dict[str, msgspec.Raw]) -> ToolCall:
    name = msgspec.json.decode(item["name"], type=str)
    raw = bytes(item["arguments"]).decode() if "arguments" in item else ""
    # Arguments stored as a JSON string are decoded once; an object keeps its bytes.
    return ToolCall(name, msgspec.json.decode(raw, type=str) if raw.startswith('"') else raw)


def _printed_calls(text: str) -> list[ToolCall] | None:
    """Parse calls that Python printed: `{'name': 'f', 'arguments': '{"a": 1}'}`. Only literals are read."""
    if text.lstrip()[:2] not in ("{'", "[{") or len(text) > _MAX_CALL_CHARACTERS:
        return None
    try:
        value: Any = ast.literal_eval(text.strip())
        listed = value if isinstance(value, list) else [value]
        if not listed or not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in listed):
            return None
        return [ToolCall(item["name"], json_text(item.get("arguments", ""))) for item in listed]
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None

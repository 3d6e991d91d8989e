"""LangChain messages: {type: human | ai | system | tool, content, tool_calls[{name, args, id}]}, or {lc, kwargs{}}.

A message is normalized to the chat shape. Content may hold Anthropic blocks, whose calls LangChain logs a second time
under `tool_calls`. Older versions keep the provider's fields in `additional_kwargs`. The JavaScript library logs a
result with the name of its tool as role.
"""

from collections.abc import Sequence
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import list_or_empty, object_or_empty, objects, optional_items, text, texts_of
from pairwright.sources.shapes.anthropic import assistant_from_blocks, has_blocks, user_from_blocks
from pairwright.sources.shapes.chat_messages import call_from_chat, content_from_chat, message_from_chat

ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "AIMessageChunk": "assistant"}
TYPES = frozenset({"human", "ai", "system", "tool", "function", "developer", "AIMessageChunk"})
# Bookkeeping fields, not part of the conversation.
_NOISE = frozenset(
    {"type", "id", "example", "additional_kwargs", "response_metadata", "invalid_tool_calls", "tool_call_chunks"}
)


def messages_from_langchain(messages: Any, where: str) -> list[Message]:
    """Convert a list of messages, serialized objects or plain ones; `where` is its path, for error messages."""
    turns: list[Message] = []
    for place, message in objects(messages, where):
        chat = chat_from_langchain(unwrap(message), place)
        # Results inside a user turn become separate messages.
        turns += turn_from_blocks(chat, place) if has_blocks(chat.get("content")) else [message_from_chat(chat, place)]
    return turns


def unwrap(message: Json) -> Json:
    """Return the fields of a serialized object, {lc, type: constructor, id[..., "AIMessage"], kwargs{}}."""
    if not isinstance(message.get("kwargs"), dict) or "role" in message:
        return message
    # The last item of `id` is the class: "AIMessageChunk" -> "ai".
    name = next((part for part in list_or_empty(message.get("id"))[-1:] if isinstance(part, str)), "")
    return {"type": name.removesuffix("Chunk").removesuffix("Message").lower(), **message["kwargs"]}


def chat_from_langchain(message: Json, where: str) -> Json:
    role = message.get("role", message.get("type"))
    chat = {
        key: value for key, value in message.items() if key not in _NOISE and not key.startswith(("gen_ai.", "event."))
    }
    chat["role"] = ROLES.get(text(role, f"{where}.role"), role)
    kwargs = object_or_empty(message.get("additional_kwargs"))
    calls = optional_items(message.get("tool_calls"), f"{where}.tool_calls") or kwargs.get("tool_calls")
    chat["tool_calls"] = [
        {"id": call.get("id"), "name": call.get("name"), "arguments": call["args"]}
        if isinstance(call, dict) and "args" in call and "function" not in call
        else call
        for call in optional_items(calls, f"{where}.tool_calls")
    ]
    for key in ("reasoning_content", "function_call"):
        if kwargs.get(key) is not None:
            chat.setdefault(key, kwargs[key])
    metadata = object_or_empty(message.get("response_metadata"))
    keys = ("finish_reason", "stop_reason", "done_reason")
    for reason in (chat.pop("stop_reason", None), *map(metadata.get, keys)):
        if isinstance(reason, str):
            chat.setdefault("finish_reason", reason)
    if not isinstance(chat.get("name"), str):  # null, or a value that message_from_chat would refuse
        chat.pop("name", None)
    if chat.get("status") == "success":  # only a failed status is kept
        del chat["status"]
    return chat


def turn_from_blocks(chat: Json, where: str) -> list[Message]:
    """Convert a message whose content has Anthropic blocks; its calls may also be in `tool_calls`."""
    blocks = list_or_empty(content_from_chat(chat["content"], f"{where}.content"))
    extra = texts_of(chat, "finish_reason")
    if chat["role"] != "assistant":
        return user_from_blocks(blocks, f"{where}.content", role=chat["role"], extra=extra)
    calls = [call_from_chat(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(chat["tool_calls"])]
    return [assistant_from_blocks(blocks, f"{where}.content", calls=calls, extra=extra)]


def name_tool_turns(messages: Sequence[Any]) -> list[Any]:
    """Replace the role of results by "tool" if it is the name of a called tool."""
    turns: list[Any] = []
    waiting: list[tuple[str, Any]] = []  # (name, id) of calls without a result
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if isinstance(role, str) and role not in TYPES and any(name == role for name, _ in waiting):
            position = next(n for n, (name, _) in enumerate(waiting) if name == role)
            message = {"tool_call_id": waiting.pop(position)[1], **message, "role": "tool", "name": role}
        elif isinstance(message, dict):
            for call in message["tool_calls"] if isinstance(message.get("tool_calls"), list) else ():
                function = call.get("function", call) if isinstance(call, dict) else None
                if isinstance(function, dict) and isinstance(function.get("name"), str):
                    waiting.append((function["name"], call.get("id")))
        turns.append(message)
    return turns

"""Convert conversations logged by tracing tools to messages, detecting their shape:

    chat        {role, content, tool_calls[{id, function{name, arguments}}], tool_call_id}
    parts       {role, parts[{type: text | tool_call | tool_call_response | reasoning | ...}]} (OTel GenAI)
    LangChain   {type: human | ai | system | tool, content, tool_calls[{name, args, id}]}, or {lc, id[], kwargs{}}
    items       function_call, function_call_output, reasoning, message (Responses API)
    blocks      {role, content[text, thinking, tool_use, tool_result]} (Anthropic)

Envelopes are unwrapped: {messages}, {choices[{message}]}, {generations[[{message}]]}, {output}, {input}, and JSON text
of any of these. Anything else becomes a text message: text unchanged, other values as JSON text, never a repr.
"""

from typing import Any

import msgspec

from pairwright.records.json_text import decode
from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import BadRecord, json_text, mapping, optional_items, optional_text, text
from pairwright.sources.shapes.chat_messages import message_from_chat
from pairwright.sources.shapes.responses import messages_from_items

_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "AIMessageChunk": "assistant"}
_LANGCHAIN_TYPES = frozenset({"human", "ai", "system", "tool", "function", "developer", "AIMessageChunk"})
# Types that identify a shape: items of the Responses API, then Anthropic content blocks.
_ITEM_TYPES = frozenset(
    {"function_call", "function_call_output", "reasoning", "message", "custom_tool_call", "custom_tool_call_output"}
)
_BLOCK_TYPES = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
_CONTENT_TYPES = _BLOCK_TYPES | {"text", "image", "image_url", "input_text", "output_text"}
# Keys whose text replaces a single-key object, as in {"question": "..."}.
_TEXT_KEYS = ("input", "question", "query", "prompt", "output", "answer", "content", "text", "response", "result")
# LangChain bookkeeping fields, which are not part of the conversation.
_LANGCHAIN_NOISE = frozenset(
    {"type", "id", "example", "additional_kwargs", "response_metadata", "invalid_tool_calls", "tool_call_chunks"}
)
# A dict is a message if it has one of these roles and one of these keys; either alone is too common.
_KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "human", "ai", "model"})
_BODY = frozenset({"content", "parts", "tool_calls", "function_call", "reasoning_content", "additional_kwargs"})
# Maximum depth of nested envelopes.
_MAX_DEPTH = 8


def conversation(value: Any, where: str, *, role: str) -> list[Message]:
    """Convert a value of any shape to messages; plain text becomes one message with `role`, None no message."""
    messages = _read_known_shape(value, where, role, 0)
    if messages is not None:
        return messages
    return [] if value is None else [Message(role, plain_text(value))]


def answers(value: Any, where: str) -> list[list[Message]]:
    """Return the alternative answers in an output: one per choice or generation of a response, else at most one."""
    inside = decode_json_text(value)
    if isinstance(inside, dict) and isinstance(inside.get("choices"), list) and inside["choices"]:
        return [_choice(choice, f"{where}.choices[{n}]") for n, choice in enumerate(inside["choices"])]
    if isinstance(inside, dict) and isinstance(inside.get("generations"), list):
        batch = inside["generations"]
        if len(batch) == 1 and isinstance(batch[0], list):
            batch = batch[0]
        if batch and all(isinstance(item, dict) for item in batch):
            return [_choice(item, f"{where}.generations[{n}]") for n, item in enumerate(batch)]
    messages = conversation(value, where, role="assistant")
    return [messages] if messages else []


def decode_json_text(value: Any) -> Any:
    """Decode text that holds a JSON object or list; return anything else unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return value
    return value


def is_torn(value: Any) -> bool:
    """Whether the value is a truncated JSON list of messages, as written by exporters with a length limit."""
    return isinstance(value, str) and value.lstrip().startswith('[{"') and decode_json_text(value) is value


def plain_text(value: Any) -> str:
    """Return text unchanged, the text of a single-key object such as {"question": "..."}, or the value as JSON text."""
    if isinstance(value, dict) and len(value) == 1:
        key, inner = next(iter(value.items()))
        if key in _TEXT_KEYS and isinstance(inner, str):
            return inner
    return json_text(value)


def instructions_in(value: Any) -> list[Message]:
    """Return the system prompt from the `instructions` of a request or response."""
    inside = decode_json_text(value)
    text = inside.get("instructions") if isinstance(inside, dict) else None
    return [Message("system", text)] if isinstance(text, str) and text else []


def tools_in(value: Any) -> list[Json]:
    """Return the tool schemas of a request or response; other values are skipped."""
    inside = decode_json_text(value)
    if isinstance(inside, dict):
        inside = inside.get("tools") or inside.get("functions")
    inside = decode_json_text(inside)
    return (
        [tool for tool in map(decode_json_text, inside) if isinstance(tool, dict)] if isinstance(inside, list) else []
    )


def error_of_mark(position: int, message: Message) -> str | None:
    """Return the error kind of a tool result that is marked as an error, or None."""
    if message.extra.get("status") == "error" or message.extra.get("is_error") is True:
        return "tool_error"
    return None


def tool_content(value: Any) -> str | list[Json] | None:
    """Convert a tool output to message content: text or typed parts unchanged, anything else as JSON text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(_type(part) in _CONTENT_TYPES for part in value):
        return value
    return json_text(value)


def _read_known_shape(value: Any, where: str, role: str, depth: int) -> list[Message] | None:
    """Convert a value with a known shape to messages, or return None."""
    value = decode_json_text(value)
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, list):
        return _from_list(value, where, role, depth)
    if not isinstance(value, dict):
        return None
    if _is_message(value):
        return messages_from_items([value], where) if _type(value) in _ITEM_TYPES else _messages(value, where)
    if "choices" in value or "generations" in value:
        choices = answers(value, where) if value.get("choices") or value.get("generations") else []
        if len(choices) > 1:
            raise BadRecord(f"{where}: {len(choices)} alternative answers where one conversation was expected")
        return choices[0] if choices else None
    # Envelopes: the first key that holds messages. Text under it is no envelope, but an answer or a question.
    for key in ("messages", "message", "input", "output"):
        if key in value and not isinstance(decode_json_text(value[key]), str):
            messages = _read_known_shape(value[key], f"{where}.{key}", role, depth + 1)
            if messages is not None:
                system = value.get("system")
                return [Message("system", system), *messages] if isinstance(system, str) and system else messages
    return None


def _from_list(value: list[Any], where: str, role: str, depth: int) -> list[Message] | None:
    """Convert a list of messages, items or content parts to messages, or return None."""
    if not value:
        return []
    if len(value) == 1 and isinstance(value[0], list):  # a batch of one, as LangChain logs it
        return _read_known_shape(value[0], f"{where}[0]", role, depth + 1)
    shaped = [isinstance(item, dict) and _is_message(item) for item in value]
    if not any(shaped):
        if all(_type(item) in _CONTENT_TYPES for item in value):
            return _messages({"role": role, "content": value}, where)
        return None
    if not all(shaped):
        raise BadRecord(f"{where}[{shaped.index(False)}]: not a message, among messages")
    if any(_type(item) in _ITEM_TYPES for item in value):
        return messages_from_items(value, where)
    return [message for n, item in enumerate(value) for message in _messages(item, f"{where}[{n}]")]


def _is_message(value: Json) -> bool:
    role = value.get("role")
    if isinstance(role, str):  # an answer that happens to be JSON with a "role" is no message
        return role in _KNOWN_ROLES and not _BODY.isdisjoint(value)
    if value.get("lc") is not None or value.get("type") == "constructor":
        return isinstance(value.get("kwargs"), dict)
    kind = _type(value)
    return (kind in _LANGCHAIN_TYPES and "content" in value) or kind in _ITEM_TYPES


def _choice(value: Any, where: str) -> list[Message]:
    """Convert one choice or generation to messages; `finish_reason` goes to `extra` of the last one."""
    choice = mapping(value, where)
    if isinstance(choice.get("message"), dict):
        message = choice["message"]
        message = message if _is_message(message) else {"role": "assistant", **message}
        messages = _read_known_shape(message, f"{where}.message", "assistant", 0) or []
    else:
        messages = [Message("assistant", plain_text(choice.get("text", choice)))]
    info = choice.get("generation_info")
    reason = choice.get("finish_reason") or (info.get("finish_reason") if isinstance(info, dict) else None)
    if messages and isinstance(reason, str):
        messages[-1] = msgspec.structs.replace(messages[-1], extra={**messages[-1].extra, "finish_reason": reason})
    return messages


def _messages(item: Json, where: str) -> list[Message]:
    """Convert one item to messages; tool results inside a user turn become separate messages."""
    if isinstance(item.get("kwargs"), dict) and "role" not in item:
        # A serialized LangChain object: its class is the last name of `id`, e.g. [..., "AIMessageChunk"] -> "ai".
        path = item.get("id")
        name = path[-1] if isinstance(path, list) and path and isinstance(path[-1], str) else ""
        kind = name.removesuffix("Chunk").removesuffix("Message").lower()
        item = {"type": kind, **item["kwargs"]}
    if isinstance(item.get("parts"), list):
        return _from_parts(item, where)
    chat = _as_chat(item, where)
    content = chat.get("content")
    if isinstance(content, list) and any(_type(part) in _BLOCK_TYPES for part in content):
        return _from_blocks(chat, where)
    if chat["role"] == "tool":
        chat["content"] = tool_content(content)
    return [message_from_chat(chat, where)]


def _as_chat(item: Json, where: str) -> Json:
    """Normalize a chat or LangChain message to the chat shape."""
    role = item.get("role", item.get("type"))
    chat = {key: value for key, value in item.items() if key not in _LANGCHAIN_NOISE}
    chat["role"] = _ROLES.get(text(role, f"{where}.role"), role)
    kwargs = item.get("additional_kwargs")
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    # Older LangChain versions keep what the provider sent in `additional_kwargs`.
    calls = optional_items(item.get("tool_calls"), f"{where}.tool_calls") or kwargs.get("tool_calls")
    chat["tool_calls"] = [_as_chat_call(call) for call in optional_items(calls, f"{where}.tool_calls")]
    for key in ("reasoning_content", "function_call"):
        if kwargs.get(key) is not None:
            chat.setdefault(key, kwargs[key])
    metadata = item.get("response_metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("finish_reason"), str):
        chat.setdefault("finish_reason", metadata["finish_reason"])
    if not isinstance(chat.get("name"), str):  # null or an odd value; message_from_chat would refuse the latter
        chat.pop("name", None)
    # Only a failure is worth keeping.
    if chat.get("status") == "success":
        del chat["status"]
    return chat


def _as_chat_call(call: Any) -> Any:
    if isinstance(call, dict) and "args" in call and "function" not in call:
        return {"id": call.get("id"), "name": call.get("name"), "arguments": call["args"]}
    return call


def _from_blocks(chat: Json, where: str) -> list[Message]:
    """Convert Anthropic content blocks: thinking to reasoning, tool_use to tool calls, tool_result to tool messages."""
    results: list[Message] = []
    rest: list[Any] = []
    thoughts: list[str] = []
    calls = list(chat["tool_calls"])
    known_ids = [call.get("id") for call in calls if isinstance(call, dict)]
    for number, block in enumerate(chat["content"]):
        kind = block.get("type") if isinstance(block, dict) else None
        at = f"{where}.content[{number}]"
        if kind == "tool_result":
            extra = {"is_error": True} if block.get("is_error") is True else {}
            call_id = optional_text(block.get("tool_use_id"), f"{at}.tool_use_id")
            results.append(Message("tool", tool_content(block.get("content")), tool_call_id=call_id, extra=extra))
        elif kind == "tool_use":
            if block.get("id") not in known_ids or block.get("id") is None:  # LangChain logs each call twice
                calls.append({"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")})
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        else:
            rest.append(block)
    # A user's turn of nothing but results: no message of the user is left.
    if not rest and not calls and not thoughts:
        return results
    content = rest[0]["text"] if len(rest) == 1 and _is_text(rest[0]) else rest or None
    message = {**chat, "content": content, "tool_calls": calls}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    # Results come first: they answer the calls of the turn before.
    return [*results, message_from_chat(message, where)]


def _from_parts(item: Json, where: str) -> list[Message]:
    """Convert a GenAI message with parts; each tool response becomes a separate tool message."""
    messages: list[Message] = []
    content: list[Json] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for number, raw_part in enumerate(item["parts"]):
        at = f"{where}.parts[{number}]"
        part = mapping(raw_part, at)
        kind = part.get("type")
        if kind == "tool_call_response":
            result = part.get("response", part.get("result", part.get("content")))
            call_id, name = optional_text(part.get("id"), f"{at}.id"), optional_text(part.get("name"), f"{at}.name")
            messages.append(Message("tool", tool_content(result), tool_call_id=call_id, name=name))
        elif kind == "tool_call":
            arguments = part.get("arguments")
            name = text(part.get("name"), f"{at}.name")
            calls.append(ToolCall(name, "" if arguments is None else json_text(arguments), _call_id(part, at)))
        elif kind in ("reasoning", "thinking") and isinstance(part.get("content"), str):
            thoughts.append(part["content"])
        elif kind in ("text", None) and isinstance(part.get("content", part.get("text")), str):
            content.append({"type": "text", "text": part.get("content", part.get("text"))})
        else:
            content.append(part)
    if content or calls or thoughts or not messages:
        role = text(item.get("role"), f"{where}.role")
        reason = item.get("finish_reason")
        message = Message(
            role=_ROLES.get(role, role),
            content=content[0]["text"] if len(content) == 1 and _is_text(content[0]) else content or None,
            reasoning="\n".join(thoughts) if thoughts else None,
            tool_calls=tuple(calls),
            name=optional_text(item.get("name"), f"{where}.name"),
            extra={"finish_reason": reason} if isinstance(reason, str) else {},
        )
        messages.append(message)
    return messages


def _call_id(part: Json, where: str) -> str | None:
    return optional_text(part.get("id"), f"{where}.id")


def _is_text(part: Any) -> bool:
    return _type(part) == "text" and isinstance(part.get("text"), str) and len(part) == 2


def _type(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""

"""Convert conversations logged by tracing tools to messages, detecting their shape:

    chat        {role, content, tool_calls[{id, function{name, arguments}}], tool_call_id}
    parts       {role, parts[{type: text | tool_call | tool_call_response | reasoning | ...}]} (OTel GenAI)
    LangChain   {type: human | ai | system | tool, content, tool_calls[{name, args, id}]}, or {lc, id[], kwargs{}}
    items       function_call, function_call_output, reasoning, message (Responses API)
    blocks      {role, content[text, thinking, tool_use, tool_result]} (Anthropic)
    contents    {role, parts[{text | function_call | function_response}]}, {contents}, {candidates} (Google GenAI)
    Vercel      {role, content[text, tool-call, tool-result]}, [{toolCallId, toolName, args}]
    Bedrock     {role, content[{text}, {toolUse}, {toolResult}]}, {output{message}, stopReason}
    Koog        {role, content: JSON text of a list of calls}

Envelopes are unwrapped: {messages}, {choices[{message}]}, {generations[[{message}]]}, {output}, {input}, {prompt}, and
JSON text of any of these. Text stays text; an object with a single text, as in {"question": "..."}, becomes that text.
An object or list of any other shape raises BadRecord with its keys: it is never converted to text.
"""

import re
from typing import Any

import msgspec

from pairwright.records.json_text import decode
from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import (
    BadRecord,
    filled_text,
    has,
    json_text,
    list_or_empty,
    mapping,
    object_or_empty,
    objects,
    optional_text,
    text,
    text_or_none,
    type_of,
)
from pairwright.sources.shapes import anthropic, bedrock, google_genai, langchain_messages, vercel
from pairwright.sources.shapes.chat_messages import message_from_chat, read_call, with_finish_reason
from pairwright.sources.shapes.plain_messages import plain_messages
from pairwright.sources.shapes.responses import messages_from_items

# Types that identify items of the Responses API.
_ITEM_TYPES = frozenset(
    {"function_call", "function_call_output", "reasoning", "message", "custom_tool_call", "custom_tool_call_output"}
)
_CONTENT_TYPES = anthropic.BLOCK_TYPES | {"text", "image", "image_url", "input_text", "output_text"}
# Types of reasoning parts; Microsoft's agents use class names.
_REASONING = frozenset({"reasoning", "thinking", "text_reasoning", "TextReasoningContent"})
_CALL_KEYS = frozenset({"function", "id", "type", "index"})
# An object with one of these keys and no other value is replaced by its text, as in {"question": "..."}.
_TEXT_KEYS = ("input", "question", "query", "prompt", "output", "answer", "text", "response", "result")
# A dict is a message if it has one of these roles and one of these keys; neither is specific enough alone.
_KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "human", "ai", "model"})
_BODY = frozenset({"content", "parts", "tool_calls", "function_call", "reasoning_content", "additional_kwargs"})
_TOOL_RESULT = frozenset({"content", "isError", "is_error", "structuredContent", "_meta"})
# Fields of requests and responses: an object with one of these was not written by a model.
_API_KEYS = frozenset(
    {"role", "content", "contents", "parts", "messages", "message", "choices", "candidates", "generations", "usage"}
    | {"model", "tool_calls", "toolCalls", "toolCallId", "finish_reason", "finishReason", "stop_reason", "stopReason"}
    | {"usage_metadata", "usageMetadata", "response_metadata", "additional_kwargs", "llm_output", "lc", "kwargs"}
)
# Envelope keys in order of preference.
_ENVELOPES = ("messages", "message", "new_message", "input", "output", "prompt")
# Start of a turn in a prompt that an exporter rendered as text.
_RENDERED = re.compile(r"^(system|developer|user|assistant|tool): ", re.MULTILINE)
# Maximum depth of nested envelopes, and number of keys named in an error message.
_MAX_DEPTH = 8
_MAX_KEYS = 8


def conversation(value: Any, where: str, *, role: str, objects_as_text: bool = False) -> list[Message]:
    """Convert a value of any shape to messages; plain text becomes one message with `role`, None yields no message.

    Raises BadRecord for an object or list of unknown shape, with its keys. With `objects_as_text`, such an object
    becomes its JSON text, for sources whose turns are program values, such as the candidates of NAT.
    """
    messages = plain_messages(value)
    if messages is None:
        messages = _read_known_shape(value, where, role, 0)
    if messages is not None or value is None:
        return messages or []
    text = only_text(value)
    if text is None:
        if not objects_as_text:
            raise BadRecord(f"{where}: {describe(value)}: no known shape of messages")
        text = json_text(value)
    return [Message(role, text)]


def answers(value: Any, where: str, *, objects_as_text: bool = False) -> list[list[Message]]:
    """Return the alternative answers in an output: one per choice or generation of a response, else at most one."""
    messages = plain_messages(value)
    if messages is not None:
        return [join_calls(messages)]
    inside = decode_json_text(value)
    if isinstance(inside, list) and len(inside) == 1 and google_genai.is_genai_response(inside[0]):
        inside = inside[0]
    if has(inside, choices=list) and inside["choices"]:
        return [_choice(choice, f"{where}.choices[{n}]") for n, choice in enumerate(inside["choices"])]
    if has(inside, generations=list):
        batch = inside["generations"]
        if len(batch) == 1 and isinstance(batch[0], list):
            batch = batch[0]
        if batch and all(map(has, batch)):
            return [_choice(item, f"{where}.generations[{n}]") for n, item in enumerate(batch)]
    if google_genai.is_genai_response(inside):
        return google_genai.answers_from_genai(inside, where)
    messages = join_calls(conversation(value, where, role="assistant", objects_as_text=objects_as_text))
    return [messages] if messages else []


def join_calls(messages: list[Message]) -> list[Message]:
    """Merge assistant messages with only calls into the previous one: calls of one answer, logged one by one."""
    if len(messages) < 2:
        return messages
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.role == message.role == "assistant"
            and last.tool_calls
            and message.tool_calls
            and not (message.content or message.reasoning)
        ):
            joined[-1] = msgspec.structs.replace(last, tool_calls=last.tool_calls + message.tool_calls)
        else:
            joined.append(message)
    return joined


def decode_json_text(value: Any) -> Any:
    """Decode text that holds a JSON object or list; return anything else unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return value
    return value


def decode_input(value: Any, mime_type: Any = None) -> Any:
    """Decode the JSON text of a call's input: an object holds a program's arguments, not a prompt."""
    return value if mime_type == "text/plain" else decode_json_text(value)


def decode_output(value: Any, mime_type: Any = None) -> Any:
    """Decode the JSON text of a call's output, unless the model may have written this text.

    A model that was asked for JSON answers with an arbitrary object. An object with a typical API field, or declared
    as JSON, is a response.
    """
    inside = decode_input(value, mime_type)
    if inside is value or mime_type == "application/json":
        return inside
    items = inside if isinstance(inside, list) else [inside]
    return inside if any(isinstance(item, dict) and not _API_KEYS.isdisjoint(item) for item in items) else value


def is_torn(value: Any) -> bool:
    """Whether the value is a truncated JSON list of messages, as written by exporters with a length limit."""
    return isinstance(value, str) and value.lstrip().startswith('[{"') and decode_json_text(value) is value


def only_text(value: Any) -> str | None:
    """Return text unchanged, a number or list of numbers and texts as JSON, the only text of an object, else None."""
    if isinstance(value, dict):
        filled = [(key, item) for key, item in value.items() if item not in (None, [], {}, "")]
        if len(filled) == 1 and filled[0][0] in _TEXT_KEYS and isinstance(filled[0][1], str):
            return str(filled[0][1])
        return None
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return None
    return json_text(value)


def describe(value: Any) -> str:
    """Describe a value of unknown shape by its keys, for error messages."""
    if isinstance(value, list):
        return f"a list of {len(value)}, the first {describe(value[0])}" if value else "an empty list"
    if isinstance(value, dict):
        keys = [str(key)[:40] for key in value]
        more = f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else ""
        return f"an object with the keys {', '.join(keys[:_MAX_KEYS])}{more}" if keys else "an empty object"
    return type(value).__name__


def split_rendering(messages: list[Message]) -> list[Message]:
    """Split a prompt that an exporter rendered as "system: ...", "user: ..."; later turns have lost their calls."""
    if len(messages) != 1:
        return messages
    text = messages[0].content
    marks = list(_RENDERED.finditer(text)) if isinstance(text, str) else []
    if len(marks) < 2 or marks[0].start() or marks[0][1] not in ("system", "developer"):
        return messages
    roles = [mark[1] for mark in marks]
    if roles[1:] != ["user"]:
        raise BadRecord(f"a rendering of the messages as text ({', '.join(roles[:4])}), which has lost their calls")
    assert isinstance(text, str)
    return [Message(roles[0], text[marks[0].end() : marks[1].start() - 1]), Message("user", text[marks[1].end() :])]


def instructions_in(value: Any) -> list[Message]:
    """Return the system prompt from the `instructions` of a request or response."""
    text = filled_text(object_or_empty(decode_json_text(value)).get("instructions"))
    return [] if text is None else [Message("system", text)]


def tools_in(value: Any) -> list[Json]:
    """Return the tool schemas of a request, response or list as function schemas; other values are skipped."""
    inside = decode_json_text(value)
    if isinstance(inside, dict):
        config = object_or_empty(inside.get("config"))
        inside = inside.get("tools") or inside.get("functions") or config.get("tools")
    schemas: list[Json] = []
    for tool in map(decode_json_text, list_or_empty(decode_json_text(inside))):
        if not isinstance(tool, dict):
            continue
        if google_genai.field(tool, "function_declarations") is not None:
            schemas += google_genai.tools_from_genai({"tools": [tool]}, "tools")
        elif "input_schema" in tool:
            schemas += anthropic.tools_from_anthropic([tool], "tools")
        else:
            schemas += vercel.tools_from_vercel([tool], "tools") if "inputSchema" in tool else [tool]
    return schemas


def tool_content(value: Any) -> str | list[Json] | None:
    """Convert a tool output to message content: text or typed parts unchanged, anything else as JSON text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), list) and value.keys() <= _TOOL_RESULT:
        value = value["content"]  # a result of MCP
    if isinstance(value, list) and value and all(type_of(part) in _CONTENT_TYPES for part in value):
        return value[0]["text"] if len(value) == 1 and _is_text(value[0]) else value
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
        return messages_from_items([value], where) if _is_item(value) else _messages(value, where)
    if google_genai.is_genai_request(value):
        return google_genai.request_from_genai(value, where)
    if bedrock.is_bedrock_response(value):
        return bedrock.answer_from_bedrock(value, where)
    is_response = google_genai.is_genai_response(value)
    if "choices" in value or "generations" in value or is_response:
        choices = answers(value, where) if is_response or value.get("choices") or value.get("generations") else []
        if len(choices) > 1:
            raise BadRecord(f"{where}: {len(choices)} alternative answers where one conversation was expected")
        return choices[0] if choices else None
    # Envelopes: the first key that holds messages. Plain text under it is an answer or a question.
    for key in _ENVELOPES:
        if key not in value:
            continue
        inside = decode_json_text(value[key])
        if not isinstance(inside, str):
            messages = _read_known_shape(inside, f"{where}.{key}", role, depth + 1)
        elif key in ("prompt", "input") and isinstance(value.get("system"), str):
            messages = [Message(role, inside)]
        else:
            continue
        if messages is not None:
            return anthropic.system_from_anthropic(value.get("system"), f"{where}.system") + messages
    return None


def _from_list(value: list[Any], where: str, role: str, depth: int) -> list[Message] | None:
    """Convert a list of messages, items or content parts to messages, or return None."""
    if not value:
        return []
    if len(value) == 1 and isinstance(value[0], list):  # a batch of one, as LangChain logs it
        return _read_known_shape(value[0], f"{where}[0]", role, depth + 1)
    if vercel.are_vercel_calls(value):
        return [Message(role, tool_calls=vercel.calls_from_vercel(value, where))]
    value = langchain_messages.name_tool_turns(value)
    shaped = [isinstance(item, dict) and _is_message(item) for item in value]
    if not any(shaped):
        if all(type_of(item) in _CONTENT_TYPES for item in value) or (role == "assistant" and _are_calls(value)):
            return _messages({"role": role, "content": value}, where)
        # One response in a list, or contents without a role.
        if len(value) == 1 and isinstance(value[0], dict):
            return _read_known_shape(value[0], f"{where}[0]", role, depth + 1)
        is_genai = all(map(google_genai.is_genai_content, value))
        return google_genai.messages_from_genai(value, None, where) if is_genai else None
    if not all(shaped):
        raise BadRecord(f"{where}[{shaped.index(False)}]: not a message, among messages")
    if any(map(_is_item, value)):
        return messages_from_items(value, where)
    return [message for n, item in enumerate(value) for message in _messages(item, f"{where}[{n}]")]


def _is_item(value: Json) -> bool:
    """Whether a message is an item of the Responses API; Anthropic responses have the type "message", too."""
    return type_of(value) in _ITEM_TYPES and not anthropic.is_anthropic_response(value)


def _is_message(value: Json) -> bool:
    role = value.get("role")
    if isinstance(role, str):  # a JSON answer that happens to have a "role" is not a message
        return role.lower() in _KNOWN_ROLES and not _BODY.isdisjoint(value)
    if value.get("lc") is not None or value.get("type") == "constructor":
        return isinstance(value.get("kwargs"), dict)
    kind = type_of(value)
    return (kind in langchain_messages.TYPES and "content" in value) or kind in _ITEM_TYPES


def _choice(value: Any, where: str) -> list[Message]:
    """Convert one choice or generation to messages; `finish_reason` goes to `extra` of the last one."""
    choice = mapping(value, where)
    if isinstance(choice.get("message"), dict):
        message = choice["message"]
        message = message if _is_message(message) else {"role": "assistant", **message}
        messages = _read_known_shape(message, f"{where}.message", "assistant", 0) or []
    elif isinstance(choice.get("text"), str):
        messages = [Message("assistant", choice["text"])]
    else:
        raise BadRecord(f"{where}: {describe(choice)}: neither a message nor text")
    info = object_or_empty(choice.get("generation_info"))
    return with_finish_reason(messages, choice.get("finish_reason") or info.get("finish_reason"))


def _messages(item: Json, where: str) -> list[Message]:
    """Convert one item to messages; tool results inside a user turn become separate messages."""
    item = langchain_messages.unwrap(item)
    if vercel.is_vercel_message(item):
        return vercel.turn_from_vercel(item, where)
    if google_genai.is_genai_content(item):
        return google_genai.messages_from_genai([item], None, where)
    if isinstance(item.get("parts"), list):
        return _from_parts(item, where)
    if bedrock.is_bedrock_message(item):
        return bedrock.turn_from_bedrock(item, where)
    if anthropic.is_anthropic_response(item) and not item.get("tool_calls"):
        return anthropic.turn_from_anthropic(item, where)
    chat = langchain_messages.chat_from_langchain(item, where)
    content = chat.get("content")
    if anthropic.has_blocks(content):
        return langchain_messages.turn_from_blocks(chat, where)
    if chat["role"] in ("assistant", "tool") and chat.get("tool_call_id") is None and _are_calls(content):
        chat = {**chat, "role": "assistant", "content": None, "tool_calls": decode_json_text(content)}
    elif chat["role"] == "tool":
        chat["content"] = tool_content(content)
    return [message_from_chat(chat, where)]


def _are_calls(content: Any) -> bool:
    """Whether the content is a list of calls, or JSON text of one, which Koog logs instead of text."""
    if isinstance(content, str) and not content.startswith('[{"'):
        return False
    calls = decode_json_text(content)
    return isinstance(calls, list) and bool(calls) and all(map(_is_call, calls))


def _is_call(call: Any) -> bool:
    if not has(call, "id", function=dict, type=str) or not call.keys() <= _CALL_KEYS:
        return False
    return call["type"] == "function" and has(call["function"], name=str)


def _from_parts(item: Json, where: str) -> list[Message]:
    """Convert a GenAI message with parts; each tool response becomes a separate tool message."""
    messages: list[Message] = []
    content: list[Json] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for at, part in objects(item["parts"], f"{where}.parts"):
        kind, said = part.get("type"), text_or_none(part.get("content", part.get("text")))
        if kind == "tool_call_response":
            result = part.get("response", part.get("result", part.get("content")))
            name = optional_text(part.get("name"), f"{at}.name")
            messages.append(Message("tool", tool_content(result), tool_call_id=_call_id(part), name=name))
        elif kind == "tool_call":
            calls.append(read_call({**part, "id": _call_id(part)}, at))
        elif isinstance(kind, str) and kind in _REASONING and said is not None:
            thoughts.append(said)
        elif kind in ("text", None) and said is not None:
            content.append(anthropic.text_block(said))
        else:
            content.append(part)
    if content or calls or thoughts or not messages:
        role = text(item.get("role"), f"{where}.role")
        reason = item.get("finish_reason")
        message = Message(
            role=langchain_messages.ROLES.get(role, role),
            content=content[0]["text"] if len(content) == 1 and _is_text(content[0]) else content or None,
            reasoning="\n".join(thoughts) if thoughts else None,
            tool_calls=tuple(calls),
            name=optional_text(item.get("name"), f"{where}.name"),
            extra={"finish_reason": reason} if isinstance(reason, str) else {},
        )
        messages.append(message)
    return messages


def _call_id(part: Json) -> str | None:
    """Return the id of a call; a list of ids (Microsoft's agents) becomes JSON text."""
    return None if part.get("id") is None else json_text(part["id"])


def _is_text(part: Any) -> bool:
    return has(part, text=str) and part.get("type") == "text" and len(part) == 2

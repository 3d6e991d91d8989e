"""Tool schemas for chat templates, and tools as text for models whose chat template has no tool role.

The text uses the tags of Hermes:

    system      its text, then the schemas in <tools></tools> and how to call them
    assistant   its text, then each call as <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    user        each result as <tool_response>...</tool_response>; consecutive results are one message

`collect` and `serve model` give such a model the same text that the tokens stage trains. The wording of the system
prompt is ours; `generate/tool_calls.py` reads the tags.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pairwright.records.messages import TEXT, Json, Message, ToolCall, arguments_object

_SCHEMA_KEYS = ("name", "description", "parameters", "strict")


def to_chat_tool(tool: Json) -> Json:
    """Return a function schema in the nested form of chat APIs and templates; other tools are unchanged.

    The Responses API and many datasets have flat schemas. A server nests them before rendering the chat template, so
    the nested form is the prompt that the model received. Anthropic and MCP name the parameters `input_schema` and
    `inputSchema`, which no chat template reads.

    >>> to_chat_tool({"type": "function", "name": "clock", "parameters": {}, "strict": None})
    {'type': 'function', 'function': {'name': 'clock', 'parameters': {}}}
    >>> to_chat_tool({"name": "clock", "input_schema": {"type": "object"}})
    {'type': 'function', 'function': {'name': 'clock', 'parameters': {'type': 'object'}}}
    """
    schema = tool.get("input_schema", tool.get("inputSchema"))
    if isinstance(schema, dict) and tool.keys().isdisjoint(("function", "parameters")):
        tool = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
    is_flat = (
        tool.get("type", "function") == "function" and "function" not in tool and isinstance(tool.get("name"), str)
    )
    if not is_flat:
        return tool
    keys = [*_SCHEMA_KEYS, *(key for key in tool if key not in _SCHEMA_KEYS and key != "type")]
    return {"type": "function", "function": {key: tool[key] for key in keys if tool.get(key) is not None}}


class TextChat(NamedTuple):
    """Messages without calls, results and schemas; `origins` has the index of each message's source, or -1 for an added
    system prompt."""

    messages: tuple[Message, ...]
    origins: tuple[int, ...]


def write_tools_as_text(messages: Sequence[Message], tools: Sequence[Json] = ()) -> TextChat:
    """Write the tools of a conversation as text.

    >>> call = ToolCall("clock", '{"zone": "CET"}', "1")
    >>> chat = write_tools_as_text([Message("assistant", "Wait.", tool_calls=(call,)), Message("tool", "12:30")])
    >>> print(*(f"{message.role}: {message.content}" for message in chat.messages), sep="\\n")
    assistant: Wait.
    <tool_call>
    {"name": "clock", "arguments": {"zone": "CET"}}
    </tool_call>
    user: <tool_response>
    12:30
    </tool_response>
    """
    if messages and messages[0].role == TEXT:
        return TextChat(tuple(messages), tuple(range(len(messages))))
    chat: list[Message] = []
    origins: list[int] = []
    for index, message in enumerate(messages):
        is_result = message.role in ("tool", "function")
        if is_result and index and messages[index - 1].role == message.role:
            chat[-1] = _append(chat[-1], "\n" + _result(message))
            continue
        if is_result:
            message = Message("user", _result(message))
        elif message.tool_calls:
            calls = "\n".join(map(_call, message.tool_calls))
            has_text = bool(message.text.strip())
            message = _append(msgspec.structs.replace(message, tool_calls=()), f"\n{calls}" if has_text else calls)
        chat.append(message)
        origins.append(index)
    if tools:
        if chat and chat[0].role in ("system", "developer"):
            chat[0] = _append(chat[0], "\n\n" + _schemas(tools))
        else:
            chat.insert(0, Message("system", _schemas(tools)))
            origins.insert(0, -1)
    return TextChat(tuple(chat), tuple(origins))


def _append(message: Message, text: str) -> Message:
    if isinstance(message.content, list):
        return msgspec.structs.replace(message, content=[*message.content, {"type": "text", "text": text}])
    return msgspec.structs.replace(message, content=(message.content or "") + text)


def _call(call: ToolCall) -> str:
    # Valid arguments keep their recorded text: the model is trained on its own output.
    is_object = isinstance(arguments_object(call), dict)
    arguments = call.arguments.strip() or "{}" if is_object else json.dumps(call.arguments, ensure_ascii=False)
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _result(message: Message) -> str:
    return f"<tool_response>\n{message.text}\n</tool_response>"


def _schemas(tools: Sequence[Json]) -> str:
    lines = "\n".join(json.dumps(to_chat_tool(tool), ensure_ascii=False) for tool in tools)
    return (
        f"You can call these tools:\n<tools>\n{lines}\n</tools>\n"
        "To call one, write its name and arguments as JSON between tags:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>\n'
        "Results come back between <tool_response> and </tool_response>."
    )

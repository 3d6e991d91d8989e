"""Read messages and tools from span attributes and events.

OpenInference has flat keys such as `llm.input_messages.0.message.role`:

    llm.input_messages.N.message.{role, content, name, tool_call_id}
    llm.input_messages.N.message.tool_calls.M.tool_call.{id, function.name, function.arguments}
    llm.input_messages.N.message.contents.M.message_content.{type, text, image.image.url}
    llm.tools.N.tool.json_schema        JSON text of a schema

Older GenAI attributes number messages in the same way: gen_ai.prompt.N.{role, content, tool_calls.M.*}. The oldest
instrumentations write one event per message: gen_ai.user.message, gen_ai.choice, gen_ai.content.prompt, ...
"""

from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import json_text
from pairwright.sources.shapes.any_messages import conversation, decode_json_text, tool_content, tools_in
from pairwright.sources.shapes.chat_messages import message_from_chat


def number_groups(attributes: Json, prefix: str) -> list[Json]:
    """Group the attributes `prefix.0.*`, `prefix.1.*`, ... and return the groups in numeric order, prefix removed."""
    groups: dict[int, Json] = {}
    start = f"{prefix}."
    for key, value in attributes.items():
        if key.startswith(start):
            number, _, rest = key[len(start) :].partition(".")
            # At most nine digits: the number comes from a key, which anybody may write.
            if number.isascii() and number.isdigit() and len(number) < 10:
                groups.setdefault(int(number), {})[rest] = value
    return [groups[number] for number in sorted(groups)]


def openinference_messages(attributes: Json, prefix: str) -> list[Message]:
    """Read the messages under `llm.input_messages` or `llm.output_messages`."""
    messages = []
    for number, group in enumerate(number_groups(attributes, prefix)):
        # Keys of one message, e.g. "message.role" -> "role"; calls and parts are numbered groups in it.
        bare = {key.removeprefix("message."): value for key, value in group.items()}
        if prefix == "llm.output_messages":
            bare.setdefault("role", "assistant")
        calls = [_call(call, "tool_call.") for call in number_groups(bare, "tool_calls")]
        if isinstance(bare.get("function_call_name"), str):
            calls.append({"name": bare["function_call_name"], "arguments": bare.get("function_call_arguments_json")})
        parts = [_part(part) for part in number_groups(bare, "contents")]
        messages.append(_message(bare, parts or bare.get("content"), calls, f"{prefix}.{number}"))
    return messages


def read_numbered_messages(attributes: Json, prefix: str) -> list[Message]:
    """Read the messages under `gen_ai.prompt` or `gen_ai.completion`."""
    messages = []
    for number, group in enumerate(number_groups(attributes, prefix)):
        calls = [_call(call, "") for call in number_groups(group, "tool_calls")]
        content = group.get("content")
        inside = decode_json_text(content)
        if isinstance(inside, list) and inside and all(isinstance(part, dict) and "type" in part for part in inside):
            content = inside  # the instrumentation writes parts as JSON text
        group = {"role": "assistant", **group} if prefix == "gen_ai.completion" else group
        messages.append(_message(group, content, calls, f"{prefix}.{number}"))
    return messages


def tools_of_attributes(attributes: Json) -> tuple[list[Json], int]:
    """Return the tool schemas, and the number of schemas that could not be decoded (usually truncated)."""
    if tools := tools_in(attributes.get("gen_ai.tool.definitions")):
        return tools, 0
    schemas = [group.get("tool.json_schema") for group in number_groups(attributes, "llm.tools")]
    if schemas:
        tools = [schema for schema in map(decode_json_text, schemas) if isinstance(schema, dict)]
        return tools, len(schemas) - len(tools)
    request = decode_json_text(attributes.get("model_request_parameters"))
    if isinstance(request, dict):  # pydantic-ai before tool definitions had an attribute
        listed = [*_list(request.get("function_tools")), *_list(request.get("output_tools"))]
        return [_pydantic_tool(tool) for tool in listed if isinstance(tool, dict)], 0
    functions = number_groups(attributes, "llm.request.functions")
    return [{**tool, "parameters": decode_json_text(tool.get("parameters"))} for tool in functions], 0


def _pydantic_tool(tool: Json) -> Json:
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("parameters_json_schema")}}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def messages_of_events(events: list[tuple[str, Json]], *, answers_wanted: bool) -> list[Message]:
    """Read the input messages of a call from its events, or its output messages if `answers_wanted`."""
    messages: list[Message] = []
    for name, attributes in events:
        # The body is JSON text in one attribute, or its fields are the attributes themselves.
        body = decode_json_text(attributes.get("gen_ai.event.content"))
        body = {**attributes, **body} if isinstance(body, dict) else attributes
        if name == "gen_ai.content.prompt" and not answers_wanted:
            messages += conversation(body.get("gen_ai.prompt"), name, role="user")
        elif name == "gen_ai.content.completion" and answers_wanted:
            messages += conversation(body.get("gen_ai.completion"), name, role="assistant")
        elif name == "gen_ai.choice" and answers_wanted:
            inner = decode_json_text(body.get("message"))
            inner = inner if isinstance(inner, dict) else {**body, "content": body.get("content", inner)}
            messages.append(_event_message({**inner, "finish_reason": body.get("finish_reason")}, "assistant"))
        elif name.startswith("gen_ai.") and name.endswith(".message") and not answers_wanted:
            # gen_ai.user.message -> user
            messages.append(_event_message(body, name.split(".")[1]))
    return messages


def _event_message(body: Json, role: str) -> Message:
    chat: Json = {"role": body["role"] if isinstance(body.get("role"), str) else role}
    for key in ("content", "tool_calls", "finish_reason", "name", "reasoning_content"):
        if body.get(key) is not None:
            chat[key] = decode_json_text(body[key]) if key == "tool_calls" else body[key]
    chat.setdefault("content", None)
    # The event of a result has the call's id as its own `id`.
    if chat["role"] == "tool" and isinstance(body.get("id"), str):
        chat["tool_call_id"] = body["id"]
    return conversation([chat], "event", role=role)[0]


def _message(group: Json, content: Any, calls: list[Json], where: str) -> Message:
    chat: Json = {"role": group.get("role", "user"), "content": content, "tool_calls": calls}
    for key in ("name", "tool_call_id", "finish_reason", "reasoning_content"):
        if isinstance(group.get(key), str):
            chat[key] = group[key]
    if chat["role"] == "tool" or not isinstance(content, str | list):
        chat["content"] = tool_content(content)
    return message_from_chat(chat, where)


def _call(group: Json, prefix: str) -> Json:
    call = {key.removeprefix(prefix).removeprefix("function."): value for key, value in group.items()}
    call_id = call.get("id")
    return {
        "id": call_id if call_id is None or isinstance(call_id, str) else json_text(call_id),
        "name": call.get("name"),
        "arguments": call.get("arguments"),
    }


def _part(group: Json) -> Json:
    part = {key.removeprefix("message_content."): value for key, value in group.items()}
    url = part.get("image.image.url")
    if isinstance(url, str):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", **part} if "text" in part else part

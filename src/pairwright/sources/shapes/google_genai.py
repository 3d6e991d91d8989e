"""Google GenAI (Gemini, Vertex AI, ADK) contents, in snake and in camel case.

    request    {contents, system_instruction | config{system_instruction, tools}, tools[{function_declarations[]}]}
    content    {role: user | model | function, parts[]}; contents may be text, one content, parts, or a list of these
    response   {candidates[{content, finish_reason}]}, or one {content, finish_reason}

    text, inline_data, file_data, executable_code, ...   content      text with `thought`   reasoning
    function_call{name, args, id}                        tool_calls   function_response     a tool message

A call usually has no id: its result names the function. A response whose only key is `error` is a failure, as
documented by the API. Thought signatures are dropped.
"""

from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import (
    BadRecord,
    has,
    json_text,
    kind_of,
    mapping,
    object_or_empty,
    optional_mapping,
    optional_objects,
    optional_text,
)
from pairwright.sources.shapes.chat_messages import read_call

_ROLES = {"model": "assistant", "assistant": "assistant", "function": "tool", "tool": "tool", "user": "user"}
# Keys of a part that hold its data, in snake case.
_DATA_KEYS = ("inline_data", "file_data", "executable_code", "code_execution_result")
_PART_KEYS = frozenset({"text", "function_call", "function_response", *_DATA_KEYS})


def messages_from_genai(contents: Any, system_instruction: Any, where: str) -> list[Message]:
    """Convert the contents of a request, after its system instruction (text, a content, or parts)."""
    system = _contents(system_instruction or None, f"{where}.system_instruction")
    return [*(Message("system", message.content) for message in system), *_contents(contents, where)]


def request_from_genai(request: Json, where: str) -> list[Message]:
    """Convert a request; the system instruction and tools may be in its `config`."""
    config = object_or_empty(field(request, "config"))
    system = field(request, "system_instruction") or field(config, "system_instruction")
    return messages_from_genai(field(request, "contents"), system, f"{where}.contents")


def answers_from_genai(response: Json, where: str) -> list[list[Message]]:
    """Return the alternative answers of a response: one for each candidate."""
    candidates = field(response, "candidates")
    if candidates is None:
        return [_answer(response, where)]
    return [_answer(candidate, place) for place, candidate in optional_objects(candidates, f"{where}.candidates")]


def tools_from_genai(request: Json, where: str) -> list[Json]:
    """Return the tools of a request as function schemas; others (google_search) are unchanged."""
    listed = field(request, "tools") or field(object_or_empty(field(request, "config")), "tools")
    schemas: list[Json] = []
    for place, tool in optional_objects(listed, f"{where}.tools"):
        declarations = field(tool, "function_declarations")
        if declarations is None:
            schemas.append(tool)
        schemas += [_schema(declaration) for _, declaration in optional_objects(declarations, place)]
    return schemas


def is_genai_request(value: Any) -> bool:
    """Whether the value is a request: it has `contents` of text or of contents with parts."""
    contents = value.get("contents") if isinstance(value, dict) else None
    if isinstance(contents, str):
        return bool(contents)
    listed = contents if isinstance(contents, list) else [contents]
    return bool(listed) and all(isinstance(one, str) or is_genai_content(one) or _is_part(one) for one in listed)


def is_genai_response(value: Any) -> bool:
    """Whether the value is a response or one candidate of it."""
    if has(value, candidates=list):
        return all(isinstance(candidate, dict) for candidate in value["candidates"])
    return has(value) and is_genai_content(value.get("content"))


def is_genai_content(value: Any) -> bool:
    """Whether the value is {role, parts[]} with parts without a `type`."""
    return has(value, parts=list) and bool(value["parts"]) and all(map(_is_part, value["parts"]))


def field(value: Any, name: str) -> Any:
    """Return a field by its name in snake or in camel case."""
    # If both spellings are present, snake case wins, even if it is null.
    if name in value:
        return value[name]
    first, *rest = name.split("_")
    return value.get(first + "".join(word.capitalize() for word in rest))


def _is_part(value: Any) -> bool:
    # Parts of other APIs have a type, messages a role.
    if not has(value) or "type" in value or "role" in value:
        return False
    return any(field(value, key) is not None for key in _PART_KEYS)


def _contents(value: Any, where: str) -> list[Message]:
    """Convert contents of any form; text and parts outside a content become a user turn."""
    if value is None:
        return []
    if isinstance(value, str):
        return [Message("user", value)]
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRecord(f"{where}: expected text, a content or a list of contents, got {kind_of(value)}")
    messages: list[Message] = []
    loose: list[Any] = []  # parts outside a content form one turn
    for number, content in enumerate(value):
        if isinstance(content, str) or _is_part(content):
            loose.append({"text": content} if isinstance(content, str) else content)
        else:
            place = f"{where}[{number}]"
            messages += _turn(mapping(content, place), place, role="user")
    return messages + (_turn({"parts": loose}, where, role="user") if loose else [])


def _answer(candidate: Json, where: str) -> list[Message]:
    # A blocked candidate has a finish reason and no content.
    content, reason = optional_mapping(candidate.get("content"), f"{where}.content"), field(candidate, "finish_reason")
    extra = {"finish_reason": reason} if isinstance(reason, str) else {}
    return _turn(content, where, role="model", extra=extra)


def _turn(content: Json, where: str, *, role: str, extra: Json | None = None) -> list[Message]:
    """Convert one content; each function response becomes a tool message before the rest of its turn."""
    name = content.get("role") or role
    if not isinstance(name, str) or (name not in _ROLES and name != "system"):
        raise BadRecord(f"{where}.role: expected user, model or function, got {name!r}")
    results: list[Message] = []
    parts: list[Json] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    for at, part in optional_objects(content.get("parts"), f"{where}.parts"):
        call, response = field(part, "function_call"), field(part, "function_response")
        if call is not None:
            fields = mapping(call, at)
            fields = {**fields, "id": None if fields.get("id") == "" else fields.get("id")}
            calls.append(read_call(fields, f"{at}.function_call", arguments="args", missing="{}"))
        elif response is not None:
            results.append(_result(mapping(response, at), at))
        elif isinstance(part.get("text"), str):
            if part.get("thought") is True:
                thoughts.append(part["text"])
            else:
                parts.append({"type": "text", "text": part["text"]})
        else:
            parts.append(_data(part, at))
    # A content with only results yields no empty user turn.
    if results and not (parts or calls or thoughts):
        return results
    message = Message(
        # Only a model makes calls, regardless of the role.
        "assistant" if calls else _ROLES.get(name, name),
        content=parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts or None,
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=tuple(calls),
        extra=extra or {},
    )
    return [*results, message]


def _result(response: Json, where: str) -> Message:
    value = response.get("response")
    is_error = isinstance(value, dict) and value.keys() == {"error"}
    return Message(
        "tool",
        content=None if value is None else json_text(value),
        tool_call_id=optional_text(response.get("id"), f"{where}.function_response.id") or None,
        name=optional_text(response.get("name"), f"{where}.function_response.name"),
        extra={"is_error": True} if is_error else {},
    )


def _data(part: Json, where: str) -> Json:
    """Convert a part that is not text: an image becomes a data URL, other data keeps its name as its type."""
    for key in _DATA_KEYS:
        data = field(part, key)
        if isinstance(data, dict):
            kind = field(data, "mime_type")
            if key == "inline_data" and isinstance(kind, str) and kind.startswith("image/"):
                return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data.get('data')}"}}
            return {"type": key, key: data}
    raise BadRecord(f"{where}: a part of unknown kind, with the keys {', '.join(map(str, list(part)[:8])) or 'none'}")


def _schema(declaration: Json) -> Json:
    """Return a function declaration as a function schema; the types of its parameters are written in lower case."""
    function = {key: declaration[key] for key in ("name", "description") if declaration.get(key) is not None}
    # Already JSON Schema, unlike `parameters`, which uses the API's type names.
    parameters = field(declaration, "parameters_json_schema")
    if parameters is None:
        parameters = _lower_types(declaration.get("parameters"), 0)
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def _lower_types(schema: Any, depth: int) -> Any:
    """Write the API's type names (STRING, OBJECT) as JSON Schema does."""
    if depth > 50:
        raise BadRecord("a schema that is nested too deep")
    if isinstance(schema, list):
        return [_lower_types(item, depth + 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        # A parameter may be named `type`: its value is then a schema, not text.
        key: item.lower() if key == "type" and isinstance(item, str) else _lower_types(item, depth + 1)
        for key, item in schema.items()
    }

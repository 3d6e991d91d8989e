"""Messages of Amazon Bedrock's Converse API: {role, content[{text}, {toolUse}, {toolResult}, {reasoningContent}]}.

    request    {system[{text}], messages[], toolConfig{tools[{toolSpec}]}}     response   {output{message}, stopReason}

Each toolResult becomes a tool message; its status "error" is kept as `is_error` in `extra`.
"""

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.fields import BadRecord, json_text, mapping, objects, optional_objects, optional_text, text
from pairwright.sources.shapes.anthropic import plain_content, text_block
from pairwright.sources.shapes.tool_calls import read_call

_BLOCK_KEYS = frozenset({"toolUse", "toolResult", "reasoningContent", "guardContent", "cachePoint"})


def turn_from_bedrock(message: Json, where: str) -> list[Message]:
    """Convert one message; results precede the rest of their turn."""
    role = text(message.get("role"), f"{where}.role")
    results: list[Message] = []
    parts: list[Json] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    extra: Json = {}
    for at, block in objects(message.get("content"), f"{where}.content"):
        if "toolUse" in block:
            use = mapping(block["toolUse"], at)
            calls.append(read_call(use, f"{at}.toolUse", arguments="input", call_id="toolUseId", missing="{}"))
        elif "toolResult" in block:
            results.append(_result(mapping(block["toolResult"], at), at))
        elif "reasoningContent" in block:
            thought = mapping(block["reasoningContent"], at).get("reasoningText")
            if isinstance(thought, dict) and isinstance(thought.get("text"), str):
                thoughts.append(thought["text"])
            else:
                extra["redacted_thinking"] = True
        elif "cachePoint" not in block:  # a caching hint
            parts.append(_part(block, at))
    if results and not (parts or calls or thoughts):
        return results
    reasoning = "\n\n".join(thoughts) or None
    message_out = Message(role, plain_content(parts), reasoning, tuple(calls), extra=extra)
    return [*results, message_out]


def answer_from_bedrock(response: Json, where: str) -> list[Message]:
    """Convert the message of a response; its `stopReason` becomes `finish_reason` in `extra`."""
    output = mapping(response.get("output"), f"{where}.output")
    message = mapping(output.get("message"), f"{where}.output.message")
    messages = turn_from_bedrock(message, f"{where}.output.message")
    reason, last = response.get("stopReason"), messages[-1]
    if isinstance(reason, str):
        extra = {**last.extra, "finish_reason": reason}
        messages[-1] = Message(last.role, last.content, last.reasoning, last.tool_calls, extra=extra)
    return messages


def is_bedrock_message(value: Json) -> bool:
    """Whether the value is a message whose blocks have one of this API's keys instead of a `type`."""
    content = value.get("content")
    if not isinstance(content, list) or not content or not isinstance(value.get("role"), str):
        return False
    return all(
        isinstance(block, dict) and "type" not in block and (block.keys() == {"text"} or _is_own(block))
        for block in content
    )


def is_bedrock_response(value: Json) -> bool:
    output = value.get("output")
    message = output.get("message") if isinstance(output, dict) else None
    return "stopReason" in value and isinstance(message, dict) and is_bedrock_message(message)


def _is_own(block: Json) -> bool:
    return not _BLOCK_KEYS.isdisjoint(block) or block.keys() <= {"image", "document", "video"}


def _result(result: Json, where: str) -> Message:
    parts: list[Json] = []
    for place, block in optional_objects(result.get("content"), f"{where}.content"):
        parts.append(text_block(json_text(block["json"])) if "json" in block else _part(block, place))
    return Message(
        "tool",
        plain_content(parts),
        tool_call_id=optional_text(result.get("toolUseId"), f"{where}.toolUseId"),
        extra={"is_error": True} if result.get("status") == "error" else {},
    )


def _part(block: Json, where: str) -> Json:
    if "text" in block:
        return text_block(text(block["text"], f"{where}.text"))
    if len(block) == 1:
        (kind,) = block
        return {"type": kind, kind: block[kind]}
    raise BadRecord(f"{where}: a block of unknown kind, with the keys {', '.join(map(str, list(block)[:8])) or 'none'}")

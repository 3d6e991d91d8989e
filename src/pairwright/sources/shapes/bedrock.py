"""Messages of Amazon Bedrock's Converse API: {role, content[{text}, {toolUse}, {toolResult}, {reasoningContent}]}.

    request    {system[{text}], messages[], toolConfig{tools[{toolSpec}]}}     response   {output{message}, stopReason}

Each toolResult becomes a tool message; its status "error" is kept as `is_error` in `extra`.
"""

from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord, has, json_text, mapping, objects, optional_objects, text, value_at
from pairwright.sources.shapes.anthropic import (
    assistant_from_blocks,
    call_block,
    result_block,
    text_block,
    thought_block,
    user_from_blocks,
)
from pairwright.sources.shapes.chat_messages import with_finish_reason

_MEDIA = frozenset({"image", "document", "video"})
_BLOCK_KEYS = frozenset({"toolUse", "toolResult", "reasoningContent", "guardContent", "cachePoint"})


def turn_from_bedrock(message: Json, where: str) -> list[Message]:
    """Convert one message; results precede the rest of their turn."""
    role, place = text(message.get("role"), f"{where}.role"), f"{where}.content"
    blocks = [_block(block, at) for at, block in objects(message.get("content"), place) if "cachePoint" not in block]
    results = [block for block in blocks if block["type"] == "tool_result"]
    rest = [block for block in blocks if block["type"] != "tool_result"]
    messages = user_from_blocks(results, place) if results else []
    if results and not rest:
        return messages
    if role == "assistant":
        return [*messages, assistant_from_blocks(rest, place)]
    return messages + user_from_blocks(rest, place, role=role)


def answer_from_bedrock(response: Json, where: str) -> list[Message]:
    """Convert the message of a response; its `stopReason` becomes `finish_reason` in `extra`."""
    output = mapping(response.get("output"), f"{where}.output")
    message = mapping(output.get("message"), f"{where}.output.message")
    return with_finish_reason(turn_from_bedrock(message, f"{where}.output.message"), response.get("stopReason"))


def is_bedrock_message(value: Any) -> bool:
    """Whether the value is a message whose blocks have one of this API's keys instead of a `type`."""
    if not has(value, content=list, role=str) or not value["content"]:
        return False
    return all(
        has(block)
        and "type" not in block
        and (block.keys() == {"text"} or block.keys() <= _MEDIA or not _BLOCK_KEYS.isdisjoint(block))
        for block in value["content"]
    )


def is_bedrock_response(value: Json) -> bool:
    return has(value, "stopReason", output=dict) and is_bedrock_message(value["output"].get("message"))


def _block(block: Json, where: str) -> Json:
    """Rename a block to Anthropic's; a block of another kind keeps its key as its type."""
    if "toolUse" in block:
        use = mapping(block["toolUse"], where)
        return call_block(use.get("toolUseId"), use.get("name"), use.get("input"))
    if "toolResult" in block:
        result = mapping(block["toolResult"], where)
        content = [
            text_block(json_text(part["json"])) if "json" in part else _part(part, place)
            for place, part in optional_objects(result.get("content"), f"{where}.content")
        ]
        return result_block(result.get("toolUseId"), content or None, is_error=result.get("status") == "error")
    if "reasoningContent" in block:
        thought = value_at(mapping(block["reasoningContent"], where), "reasoningText.text")
        return thought_block(thought) if isinstance(thought, str) else {"type": "redacted_thinking"}
    return _part(block, where)


def _part(block: Json, where: str) -> Json:
    if "text" in block:
        return text_block(text(block["text"], f"{where}.text"))
    if len(block) == 1:
        (kind,) = block
        return {"type": kind, kind: block[kind]}
    raise BadRecord(f"{where}: a block of unknown kind, with the keys {', '.join(map(str, list(block)[:8])) or 'none'}")

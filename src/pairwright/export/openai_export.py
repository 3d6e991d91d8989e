"""Preference fine-tuning data for OpenAI, Together and Fireworks.

    {input: {messages, tools, parallel_tool_calls}, preferred_output: [message], non_preferred_output: [message]}

A side is one assistant message: a pair with several messages is cut at its divergence (export/chat_lines.py). Tool call
arguments are JSON text. `tools` and `parallel_tool_calls` are written only if the pair has tools; the latter is true if
any message has more than one call. There is no field for reasoning, so it is left out and noted.
"""

from pairwright.export.chat_lines import Content, Context, Unfit, chat_message, note_extra_and_reasoning, text_of
from pairwright.export.exporter import (
    CHAT_CHECKS,
    CUT_AT_DIVERGENCE,
    Check,
    Fields,
    Layout,
    Part,
    json_line,
    json_object,
)
from pairwright.records.json_text import decode, encode
from pairwright.records.messages import Json, Message


def preference_lines(context: Context) -> Layout:
    """OpenAI preference rows. Refused: sides that do not diverge at assistant messages, or without text and calls."""
    columns = ("prompt", "chosen", "rejected")
    tools: Layout = [Part(_write_tools, "tools"), Part(_write_parallel, "tools", *columns)] if context.has_tools else []
    fields: Fields = {
        "input": json_object({"messages": [Part(_write_messages, "prompt"), *tools]}),
        "preferred_output": Part(_write_side, "chosen"),
        "non_preferred_output": Part(_write_side, "rejected"),
    }
    notes = [Check(note_extra_and_reasoning, name) for name in columns]
    return [*CHAT_CHECKS, *CUT_AT_DIVERGENCE, *notes, *json_line(fields)]


def _write_tools(tools: str | None) -> bytes:
    """Write the field `tools`; nothing for pairs without tools."""
    return b',"tools":' + encode(decode(tools)) if tools else b""


def _write_parallel(tools: str | None, *contents: Content) -> bytes:
    if not tools:
        return b""
    messages = (message for content in contents if not content.is_plain for message in content.messages)
    return b',"parallel_tool_calls":' + encode(any(len(message.tool_calls) > 1 for message in messages))


def _write_side(side: Content) -> bytes:
    (message,) = side.messages
    if not message.tool_calls and not text_of(message):
        raise Unfit("a_side_has_no_text")
    return _write_messages(side)


def _write_messages(content: Content) -> bytes:
    return content.json if content.is_plain else encode([_message(message) for message in content.messages])


def _message(message: Message) -> Json:
    chat = chat_message(message, reasoning_key=None)
    if message.tool_calls and not chat["content"]:
        # OpenAI's API uses null, not "", as the content of tool calls.
        chat["content"] = None
    return chat

"""Preference fine-tuning data for OpenAI, Together and Fireworks.

    {input: {messages, tools, parallel_tool_calls}, preferred_output: [message], non_preferred_output: [message]}

A side is one assistant message: a pair with several messages is cut at its divergence (export/chat_lines.py). Tool call
arguments are JSON text. `tools` and `parallel_tool_calls` are written only if the pair has tools; the latter is true if
any message has more than one call. There is no field for reasoning, so it is left out and noted.
"""

from collections.abc import Iterable

from pairwright.export.chat_lines import Context, PairRow, Unfit, chat_message, cut_at_divergence, note_left_out
from pairwright.records.json_text import decode, encode
from pairwright.records.messages import Json, Message


def preference_lines(row: PairRow, context: Context) -> list[bytes]:
    """OpenAI preference rows. Refused: sides that do not diverge at assistant messages, or without text and calls."""
    prompt, chosen, rejected = cut_at_divergence(row, context)
    note_left_out(context, [*prompt, chosen, rejected], reasoning=True)
    request: Json = {"messages": [_message(message) for message in prompt]}
    if row.tools:
        request["tools"] = decode(row.tools)
        request["parallel_tool_calls"] = _calls_in_parallel([*prompt, chosen, rejected])
    sides = {"preferred_output": [_side(chosen)], "non_preferred_output": [_side(rejected)]}
    return [encode({"input": request, **sides}) + b"\n"]


def _message(message: Message) -> Json:
    chat = chat_message(message, reasoning_key=None)
    if message.tool_calls and not chat["content"]:
        # OpenAI's API has null, not "", beside tool calls.
        chat["content"] = None
    return chat


def _side(message: Message) -> Json:
    chat = _message(message)
    if not message.tool_calls and not chat["content"]:
        raise Unfit("a_side_has_no_text")
    return chat


def _calls_in_parallel(messages: Iterable[Message]) -> bool:
    return any(len(message.tool_calls) > 1 for message in messages)

r"""LLaMA-Factory preference data: ShareGPT turns (v0), and messages of typed parts with loss weights (v1).

    v0   {system, tools: JSON text, conversations: [{from, value}], chosen: {from, value}, rejected: {from, value}}
    v1   {tools: JSON text, chosen_messages: [{role, content: [{type, value}], loss_weight}], rejected_messages: [...]}

v0 has one turn per side, so a pair with several messages is cut at its divergence (export/chat_lines.py). LLaMA-Factory
skips rows whose turns do not alternate, so such pairs are refused. Pairs with text and tool calls in one turn are
refused as well, since a v0 turn has either. v1 represents both; loss_weight is 1 for messages that the model generated
in a side and 0 for all others.

Neither format has tool call ids: pairs whose results are not in the order of the calls are refused. Arguments are
written verbatim as JSON; pairs whose arguments are not a JSON object are refused. Message names are left out.
"""

import msgspec

from pairwright.export.chat_lines import (
    Content,
    Context,
    Unfit,
    any_message,
    call_value,
    note_extra,
    note_extra_and_reasoning,
    note_if,
    text_of,
)
from pairwright.export.exporter import CHAT_CHECKS, CUT_AT_DIVERGENCE, Check, Fields, Layout, Part, json_line
from pairwright.records.json_text import encode
from pairwright.records.messages import Json, Message, ToolCall

# The ShareGPT speaker for each role; the system prompt has its own field.
_SPEAKERS = {"user": "human", "tool": "observation", "assistant": "gpt"}


_COLUMNS = ("prompt", "chosen", "rejected")
_note_names = note_if(lambda content: any_message(content, lambda message: message.name is not None), "names_left_out")


def sharegpt_lines(context: Context) -> Layout:
    """LLaMA-Factory v0 (`formatting: sharegpt`, `ranking: true`). Reasoning is left out and noted."""
    notes = [Check(note, name) for note in (note_extra_and_reasoning, _note_names) for name in _COLUMNS]
    fields: Fields = {
        "system": Part(_write_system, "prompt"),
        "tools": Part(_write_tools, "tools"),
        "conversations": Part(_write_turns, "prompt"),
        "chosen": Part(_write_turn, "chosen"),
        "rejected": Part(_write_turn, "rejected"),
    }
    return [*CHAT_CHECKS, *CUT_AT_DIVERGENCE, *notes, Check(_check_results, "prompt"), *json_line(fields)]


def parts_lines(context: Context) -> Layout:
    """LLaMA-Factory v1: two complete conversations with loss weights."""
    fields: Fields = {"tools": Part(_write_tools, "tools")}
    for side in ("chosen", "rejected"):
        checks = Check(_check_side, side), Check(_check_results, "prompt", side)
        messages = Part(_write_prompt_parts, "prompt"), b",", Part(_write_side_parts, side)
        fields[f"{side}_messages"] = [*checks, *messages]
    notes = [Check(note, name) for note in (note_extra, _note_names) for name in _COLUMNS]
    return [*CHAT_CHECKS, *json_line(fields), *notes]


def _write_tools(tools: str | None) -> bytes:
    return encode(tools or "")


def _write_system(prompt: Content) -> bytes:
    return encode(text_of(prompt.messages[0]) if prompt.role == "system" else "")


def _write_turns(prompt: Content) -> bytes:
    turns = prompt.messages[1:] if prompt.role == "system" else prompt.messages
    is_model = [message.role == "assistant" for message in turns]
    # Even turns are the user's or a tool's, odd turns the model's; the side is the model's next turn.
    if is_model != [number % 2 == 1 for number in range(len(turns))] or len(turns) % 2 == 0:
        raise Unfit("turns_do_not_alternate")
    return encode([_turn(message) for message in turns])


def _write_turn(side: Content) -> bytes:
    return encode(_turn(side.messages[0]))


def _write_prompt_parts(prompt: Content) -> bytes:
    """Write the messages of a prompt as the beginning of an array, without its closing bracket."""
    return encode([_parts(message, 0.0) for message in prompt.messages])[:-1]


def _write_side_parts(side: Content) -> bytes:
    """Write the messages of a side as the end of an array, without its opening bracket."""
    return encode([_parts(message, 1.0 if message.is_generated else 0.0) for message in side.messages])[1:]


def _turn(message: Message) -> Json:
    if message.role not in _SPEAKERS:
        raise Unfit("turns_do_not_alternate")
    text = text_of(message)
    if not message.tool_calls:
        if not text and message.role == "assistant":
            raise Unfit("a_turn_has_no_text")
        return {"from": _SPEAKERS[message.role], "value": text}
    if text:
        raise Unfit("text_beside_tool_calls")
    calls = [_call(call) for call in message.tool_calls]
    return {"from": "function_call", "value": encode(calls[0] if len(calls) == 1 else calls).decode()}


def _parts(message: Message, loss_weight: float) -> Json:
    parts: list[Json] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "value": message.reasoning})
    # A message always has at least one part.
    if (text := text_of(message)) or not (message.tool_calls or parts):
        parts.append({"type": "text", "value": text})
    parts += [{"type": "tool_call", "value": encode(_call(call)).decode()} for call in message.tool_calls]
    return {"role": message.role, "content": parts, "loss_weight": loss_weight}


def _call(call: ToolCall) -> Json:
    # Decoded only as a check, and written verbatim: numbers and key order stay as recorded.
    call_value(call)
    return {"name": call.name, "arguments": msgspec.Raw(call.arguments.encode())}


def _check_side(side: Content) -> tuple[str, ...]:
    if not any(message.is_generated for message in side.messages):
        raise Unfit("a_side_has_no_assistant_message")
    return () if side.messages[0].is_generated else ("a_side_begins_in_the_environment",)


def _check_results(*contents: Content) -> tuple[str, ...]:
    """Raise Unfit unless tool results are in the order of the calls, which is how LLaMA-Factory matches them."""
    waiting: list[str | None] = []
    # Plain messages have no calls and no results with an id.
    messages = (
        message
        for content in (() if all(content.is_plain for content in contents) else contents)
        for message in content.messages
    )
    for message in messages:
        if message.tool_calls:
            waiting = [call.id for call in message.tool_calls]
        elif message.role == "tool":
            expected = waiting.pop(0) if waiting else None
            if message.tool_call_id not in (None, expected):
                raise Unfit("tool_results_out_of_order")
    return ()

r"""LLaMA-Factory preference data: ShareGPT turns (v0), and messages of typed parts with loss weights (v1).

    v0   {system, tools: JSON text, conversations: [{from, value}], chosen: {from, value}, rejected: {from, value}}
    v1   {tools: JSON text, chosen_messages: [{role, content: [{type, value}], loss_weight}], rejected_messages: [...]}

v0 has one turn per side, so a pair with several messages is cut at its divergence (export/chat_lines.py). LLaMA-Factory
skips rows whose turns do not alternate, so such pairs are refused; so are pairs with text and tool calls in one turn,
since a v0 turn has either. v1 represents all of it; loss_weight is 1 for messages that the model generated in its side
and 0 for all others.

Neither format has tool call ids: results answer calls in order, and pairs in which they do not are refused. Arguments
are written verbatim as JSON; pairs whose arguments are not a JSON object are refused. Message names are left out.
"""

from collections.abc import Sequence

import msgspec

from pairwright.export.chat_lines import (
    Context,
    PairRow,
    Unfit,
    call_value,
    check_is_chat,
    cut_at_divergence,
    note_left_out,
    text_of,
)
from pairwright.records.json_text import encode
from pairwright.records.messages import Json, Message, ToolCall

# The ShareGPT speaker for each role; the system prompt has a field of its own.
_SPEAKERS = {"user": "human", "tool": "observation", "assistant": "gpt"}


def sharegpt_lines(row: PairRow, context: Context) -> list[bytes]:
    """LLaMA-Factory v0 (`formatting: sharegpt`, `ranking: true`). Reasoning is left out and noted."""
    prompt, chosen, rejected = cut_at_divergence(row, context)
    note_left_out(context, [*prompt, chosen, rejected], reasoning=True)
    _note_names(context, [*prompt, chosen, rejected])
    _check_results(prompt)
    system = text_of(prompt[0]) if prompt[0].role == "system" else ""
    turns = prompt[1:] if prompt[0].role == "system" else prompt
    is_model = [message.role == "assistant" for message in turns]
    # Turns of the user or a tool are at even places, the model's at odd ones, and the side is the next of the model.
    if is_model != [number % 2 == 1 for number in range(len(turns))] or len(turns) % 2 == 0:
        raise Unfit("turns_do_not_alternate")
    row_fields = {
        "system": system,
        "tools": row.tools or "",
        "conversations": [_turn(message) for message in turns],
        "chosen": _turn(chosen),
        "rejected": _turn(rejected),
    }
    return [encode(row_fields) + b"\n"]


def parts_lines(row: PairRow, context: Context) -> list[bytes]:
    """LLaMA-Factory v1: two complete conversations with loss weights."""
    check_is_chat(row)
    prompt, chosen, rejected = (content.messages for content in row.contents)
    row_fields: Json = {"tools": row.tools or ""}
    for name, side in (("chosen_messages", chosen), ("rejected_messages", rejected)):
        if not any(message.is_generated for message in side):
            raise Unfit("a_side_has_no_assistant_message")
        if not side[0].is_generated:
            context.note("a_side_begins_in_the_environment")
        _check_results([*prompt, *side])
        row_fields[name] = [_parts(message, 0.0) for message in prompt]
        row_fields[name] += [_parts(message, 1.0 if message.is_generated else 0.0) for message in side]
    note_left_out(context, (*prompt, *chosen, *rejected), reasoning=False)
    _note_names(context, (*prompt, *chosen, *rejected))
    return [encode(row_fields) + b"\n"]


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
    # Checked by decoding, but written verbatim: numbers and the order of keys stay as recorded.
    call_value(call)
    return {"name": call.name, "arguments": msgspec.Raw(call.arguments.encode())}


def _check_results(messages: Sequence[Message]) -> None:
    """Raise Unfit unless tool results are in the order of the calls, which is how LLaMA-Factory matches them."""
    # Ids of the calls that have no result yet, in order.
    waiting: list[str | None] = []
    for message in messages:
        if message.tool_calls:
            waiting = [call.id for call in message.tool_calls]
        elif message.role == "tool":
            expected = waiting.pop(0) if waiting else None
            if message.tool_call_id not in (None, expected):
                raise Unfit("tool_results_out_of_order")


def _note_names(context: Context, messages: Sequence[Message]) -> None:
    if any(message.name is not None for message in messages):
        context.note("names_left_out")

"""Preference data for TRL: explicit prompt, implicit prompt and unpaired; conversational or standard format.

    explicit   {prompt: [...], chosen: [...], rejected: [...], tools: JSON text, score_chosen, score_rejected}
    implicit   {chosen: [prompt and answer], rejected: [prompt and answer], tools, score_chosen, score_rejected}
    unpaired   {prompt: [...], completion: [...], label: true or false, tools}, two rows per pair

`tools` is written if any pair has tools, as JSON text, which TRL decodes: as a list, Arrow would merge the keys of all
schemas. Tool call arguments are JSON text too, noted as `arguments_as_text`; `--arguments object` writes them as
objects, for chat templates that would encode the text again. TRL trains everything after the prompt, including tool
results: pairs with several messages per side are noted as `several_messages_a_side`.

Pairs of raw text are written in TRL's standard format, with strings instead of lists of messages and without tools; TRL
trains them without a chat template. A file has one format, that of the first pair; pairs of the other are refused.
"""

from collections.abc import Callable

from pairwright.export.chat_lines import (
    TEXT_IS_NO_CHAT,
    Content,
    Context,
    check_has_prompt,
    note_arguments,
    note_extra_and_reasoning,
    refuse_if,
    refuse_tools,
    text_of,
    write_chat,
    write_tools,
)
from pairwright.export.exporter import SIDE_CHECKS, Check, Fields, Layout, Part, json_line
from pairwright.records.json_text import encode
from pairwright.records.messages import TEXT


def explicit_lines(context: Context) -> Layout:
    """TRL, explicit prompt. Refused: prompts that end with a system message, which TRL cannot render."""
    checks, write = _checks(context)
    columns = {name: Part(write, name) for name in _COLUMNS}
    line = json_line(columns | _tools(context) | _SCORES)
    return [*checks, *line, *_side_checks(context), *_end_checks(context)]


def implicit_lines(context: Context) -> Layout:
    """TRL, implicit prompt: two complete conversations. TRL extracts their longest common prefix as the prompt."""
    checks, write = _checks(context)

    def write_start(prompt: Content) -> bytes:
        return write(prompt)[:-1]

    def write_end(side: Content) -> bytes:
        return write(side)[1:]

    # Joined as text: two arrays (or strings) without the inner brackets (or quotes).
    start, between = Part(write_start, "prompt"), b"" if context.is_text else b","
    sides: dict[str, Layout] = {name: [start, between, Part(write_end, name)] for name in _COLUMNS[1:]}
    return [*checks, *json_line(sides | _tools(context) | _SCORES), *_side_checks(context)]


def unpaired_lines(context: Context) -> Layout:
    """TRL, unpaired (KTO): the chosen side with the label true, then the rejected side with the label false.

    A completion is written once for each pair that it is in, so it may appear with both labels.
    """
    checks, write = _checks(context)
    prompt, tools = Part(write, "prompt"), _tools(context)
    lines: list[Layout] = []
    for side, label in (("chosen", b"true"), ("rejected", b"false")):
        fields: Fields = {"prompt": prompt, "completion": Part(write, side), "label": [label]}
        lines.append(json_line(fields | tools))
    return [*checks, *lines[0], *lines[1], *_side_checks(context), *_end_checks(context)]


_COLUMNS = ("prompt", "chosen", "rejected")
_SCORES: Fields = {
    "score_chosen": Part(encode, "chosen_reward"),
    "score_rejected": Part(encode, "rejected_reward"),
}


def _checks(context: Context) -> tuple[Layout, Callable[[Content], bytes]]:
    """Return the checks before a line, and the function that writes a prompt or a side: as text or as messages."""
    if context.is_text:
        checks = [Check(_check_has_text, *_COLUMNS), Check(check_has_prompt, "prompt")]
        checks += [Check(_check_is_text, name) for name in _COLUMNS]
        checks += [Check(refuse_tools, "tools"), *(Check(note_extra_and_reasoning, name) for name in _COLUMNS)]
        return checks, _write_text
    checks = [Check(_check_has_no_text, name) for name in _COLUMNS]
    return [*checks, Check(check_has_prompt, "prompt")], write_chat


def _side_checks(context: Context) -> Layout:
    return [] if context.is_text else [*SIDE_CHECKS, *(Check(note_arguments, name) for name in _COLUMNS)]


def _end_checks(context: Context) -> Layout:
    return [] if context.is_text else [Check(_check_end, "prompt")]


def _tools(context: Context) -> Fields:
    return {"tools": Part(write_tools, "tools")} if context.has_tools and not context.is_text else {}


_check_has_text = refuse_if(lambda *contents: not any(one.has_raw_text for one in contents), "chat_among_texts")
_check_has_no_text = refuse_if(lambda content: content.has_raw_text, "text_among_chats")
# Chat messages cannot be written as standard rows.
_check_is_text = refuse_if(lambda content: any(role != TEXT for role in content.roles), TEXT_IS_NO_CHAT)
_check_end = refuse_if(lambda prompt: prompt.roles[-1] in ("system", "developer"), "prompt_ends_with_system_message")


def _write_text(content: Content) -> bytes:
    return encode("".join(map(text_of, content.messages)))

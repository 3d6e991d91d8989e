"""DPO data for Trinity.

    trinity            {system, prompt: text, chosen: text, rejected: text}             prompt_type: plaintext
    trinity-messages   {prompt: [...], chosen: [...], rejected: [...]}                  prompt_type: messages

`trinity-messages` needs `messages_key: prompt` in the format section of the Trinity config. In `trinity`, a system
prompt has its own field and is noted as `system_beside_prompt`: set `system_prompt_key: system`, and do not mix
such pairs with others. Trinity does not render tools for DPO: with a text prompt the pair is refused; with messages the
tools are written as JSON text and noted as `tools_not_rendered`. Trinity trains everything after the prompt.
"""

from pairwright.export.chat_lines import (
    Content,
    Context,
    note_extra_and_reasoning,
    note_if,
    note_tools,
    system_and_prompt_text,
    write_chat,
    write_side_text,
    write_tools,
)
from pairwright.export.exporter import (
    CHAT_CHECKS,
    CUT_AT_DIVERGENCE,
    SIDE_CHECKS,
    Check,
    Fields,
    Layout,
    Part,
    json_line,
)
from pairwright.records.json_text import encode

_note_system = note_if(lambda prompt: len(prompt.roles) == 2, "system_beside_prompt")


def plaintext_lines(context: Context) -> Layout:
    """Trinity, plaintext. Pairs are cut at the divergence. Refused: prompts of several turns, tools, tool calls."""
    notes = [Check(note_extra_and_reasoning, name) for name in ("prompt", "chosen", "rejected")]
    fields: tuple[bytes | Part, ...] = (b"{", Part(_write_prompt, "prompt", "tools"))  # one field or two
    for side in ("chosen", "rejected"):
        fields += (b',"%b":' % side.encode(), Part(write_side_text, side))
    return [*CHAT_CHECKS, *CUT_AT_DIVERGENCE, *notes, *fields, b"}\n", Check(_note_system, "prompt")]


def messages_lines(context: Context) -> Layout:
    """Trinity, messages."""
    fields: Fields = {name: Part(write_chat, name) for name in ("prompt", "chosen", "rejected")}
    # All rows need the column, since loaders infer the columns from the first rows.
    if context.has_tools:
        fields["tools"] = [Check(note_tools, "tools"), Part(write_tools, "tools")]
    return [*CHAT_CHECKS, *json_line(fields), *SIDE_CHECKS]


def _write_prompt(prompt: Content, tools: str | None) -> bytes:
    system, text = system_and_prompt_text(prompt.messages, tools)
    start = b"" if system is None else b'"system":%b,' % encode(system)
    return b'%b"prompt":%b' % (start, encode(text))

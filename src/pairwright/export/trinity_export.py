"""DPO data for Trinity.

    trinity            {system, prompt: text, chosen: text, rejected: text}             prompt_type: plaintext
    trinity-messages   {prompt: [...], chosen: [...], rejected: [...]}                  prompt_type: messages

`trinity-messages` needs `messages_key: prompt` in the format section of the Trinity config. In `trinity`, a system
prompt has a field of its own and is noted as `system_beside_prompt`: set `system_prompt_key: system`, and do not mix
such pairs with others. Trinity does not render tools for DPO: with a text prompt the pair is refused; with messages the
tools are written as JSON text and noted as `tools_not_rendered`. Trinity trains everything after the prompt.
"""

from pairwright.export.chat_lines import (
    Context,
    PairRow,
    chats_of,
    cut_at_divergence,
    note_left_out,
    side_text,
    system_and_prompt_text,
    tools_text,
)
from pairwright.records.json_text import encode


def plaintext_lines(row: PairRow, context: Context) -> list[bytes]:
    """Trinity, plaintext. Pairs are cut at the divergence. Refused: prompts of several turns, tools, tool calls."""
    messages, chosen, rejected = cut_at_divergence(row, context)
    note_left_out(context, (*messages, chosen, rejected), reasoning=True)
    system, prompt = system_and_prompt_text(messages, row.tools)
    texts = {"prompt": prompt, "chosen": side_text(chosen), "rejected": side_text(rejected)}
    if system is not None:
        context.note("system_beside_prompt")
        texts = {"system": system, **texts}
    return [encode(texts) + b"\n"]


def messages_lines(row: PairRow, context: Context) -> list[bytes]:
    """Trinity, messages."""
    chats = chats_of(row, context)
    # Every row has the column or none: loaders infer the columns from the first rows.
    tools = b',"tools":' + tools_text(row) if context.has_tools else b""
    if row.tools:
        context.note("tools_not_rendered")
    return [b'{"prompt":%b,"chosen":%b,"rejected":%b%b}\n' % (*chats, tools)]

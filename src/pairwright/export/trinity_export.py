"""Trinity's data for DPO.

    trinity            {system, prompt: text, chosen: text, rejected: text}             prompt_type: plaintext
    trinity-messages   {prompt: [...], chosen: [...], rejected: [...]}                  prompt_type: messages

For the second say `messages_key: prompt` in Trinity's format section. In the first a system prompt stands beside the
prompt, which is noted as `system_beside_prompt`: say `system_prompt_key: system`, and do not mix such pairs with
others. Trinity renders no tools for DPO: with text as prompt such a pair is refused; beside messages they are written
as JSON text and noted as `tools_not_rendered`. It trains all that follows the prompt.
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
    """Trinity's plaintext. Cut at the divergence (cut.py). Refused: a prompt of several turns, tools, tool calls."""
    messages, chosen, rejected = cut_at_divergence(row, context)
    note_left_out(context, (*messages, chosen, rejected), reasoning=True)
    system, prompt = system_and_prompt_text(messages, row.tools)
    texts = {"prompt": prompt, "chosen": side_text(chosen), "rejected": side_text(rejected)}
    if system is not None:
        context.note("system_beside_prompt")
        texts = {"system": system, **texts}
    return [encode(texts) + b"\n"]


def messages_lines(row: PairRow, context: Context) -> list[bytes]:
    """Trinity's messages."""
    chats = chats_of(row, context)
    # Every row has the column or none: loaders infer the columns from the first rows.
    tools = b',"tools":' + tools_text(row) if context.has_tools else b""
    if row.tools:
        context.note("tools_not_rendered")
    return [b'{"prompt":%b,"chosen":%b,"rejected":%b%b}\n' % (*chats, tools)]

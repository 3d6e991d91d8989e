"""NVIDIA NeMo: the preference datasets of NeMo RL, and the rows of NeMo Customizer.

    nemo-rl-preference   {context: [...], completions: [{rank: 0, reward, completion: [...]}, {rank: 1, ...}], tools}
    nemo-rl-binary       {prompt: [...], chosen: text, rejected: text, tools}
    customizer           {prompt: text, chosen_response: text, rejected_response: text}
    customizer --history {prompt: [...], chosen_response: text, rejected_response: text, tools}

Where an answer is text, a pair of several messages is cut at its divergence (cut.py), and one whose answer is then a
tool call is refused. NeMo does not render tools in preference data: where a pair has tools they stand beside the
messages as JSON text, which is noted as `tools_not_rendered`; with a text as prompt the pair is refused.
"""

import pyarrow as pa

from pairwright.jsontext import encode
from pairwright.messages import Message
from pairwright.pairs.exporters.chat import (
    SEVERAL_MESSAGES,
    chat_message,
    chats_of,
    note_left_out,
    note_several_messages,
    only_text,
    tools_text,
)
from pairwright.pairs.exporters.cut import cut_at_divergence
from pairwright.pairs.exporters.plain import numbers, plain_chats, plain_texts, without_tools
from pairwright.pairs.exporters.stream import Context, PairRow, Pieces
from pairwright.pairs.exporters.text import prompt_text, side_text


def preference_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo RL PreferenceDataset. It trains the last message of a side only; several messages a side are noted."""
    prompt, chosen, rejected = chats_of(row, context)
    note_several_messages(context, chosen, rejected)
    ranked = b",".join(
        b'{"rank":%d,"reward":%b,"completion":%b}' % (rank, encode(reward), side.json)
        for rank, (reward, side) in enumerate(((row.chosen_reward, chosen), (row.rejected_reward, rejected)))
    )
    return [b'{"context":%b,"completions":[%b]%b}\n' % (prompt.json, ranked, _tools(row, context))]


def binary_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo RL BinaryPreferenceDataset: the prompt as messages, the two answers as text."""
    prompt, *sides = _cut(row, context)
    texts = [encode(side_text(side)) for side in sides]
    return [b'{"prompt":%b,"chosen":%b,"rejected":%b%b}\n' % (_history(prompt), *texts, _tools(row, context))]


def customizer_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo Customizer: a prompt of one user message as text, or with `history` the messages of any prompt."""
    asked, good, bad = only_text(row.prompt, "user"), only_text(row.chosen), only_text(row.rejected)
    if asked and good and bad and not row.tools and not context.options.history:  # copied, not decoded
        return [b'{"prompt":%b,"chosen_response":%b,"rejected_response":%b}\n' % (asked, good, bad)]
    prompt, *sides = _cut(row, context)
    if context.options.history:
        given, tools = _history(prompt), _tools(row, context)
    else:
        given, tools = encode(prompt_text(prompt, row.tools)), b""
    answers = [encode(side_text(side)) for side in sides]
    return [b'{"prompt":%b,"chosen_response":%b,"rejected_response":%b%b}\n' % (given, *answers, tools)]


def preference_columns(batch: pa.RecordBatch, context: Context) -> Pieces:
    """The same as `preference_lines` for all plain pairs of a batch; where there are tools, they are to be noted."""
    prompt, chosen, rejected, several = plain_chats(batch, context)
    prompt = without_tools(batch, prompt)
    end = b'}],"tools":"[]"}\n' if context.has_tools else b"}]}\n"
    parts = [
        b'{"context":', prompt, b',"completions":[{"rank":0,"reward":', numbers(batch, "chosen_reward"),
        b',"completion":', chosen, b'},{"rank":1,"reward":', numbers(batch, "rejected_reward"), b',"completion":',
        rejected, end,
    ]  # fmt: skip
    return Pieces(parts, {SEVERAL_MESSAGES: several})


def customizer_columns(batch: pa.RecordBatch, context: Context) -> Pieces:
    """The same as `customizer_lines` for all plain pairs of a batch."""
    if context.options.history:
        return Pieces([pa.nulls(batch.num_rows, pa.large_binary())])
    prompt, chosen, rejected = plain_texts(batch)
    return Pieces([b'{"prompt":', prompt, b',"chosen_response":', chosen, b',"rejected_response":', rejected, b"}\n"])


def _cut(row: PairRow, context: Context) -> tuple[list[Message], Message, Message]:
    prompt, chosen, rejected = cut_at_divergence(row, context)
    note_left_out(context, prompt, reasoning=False)
    note_left_out(context, (chosen, rejected), reasoning=True)
    return prompt, chosen, rejected


def _history(prompt: list[Message]) -> bytes:
    return encode([chat_message(message) for message in prompt])


def _tools(row: PairRow, context: Context) -> bytes:
    if row.tools:
        context.note("tools_not_rendered")
    return b',"tools":' + tools_text(row) if context.has_tools else b""

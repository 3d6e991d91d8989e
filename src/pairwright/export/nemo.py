"""NVIDIA NeMo: the preference datasets of NeMo RL, and the rows of NeMo Customizer.

    nemo-rl-preference   {context: [...], completions: [{rank: 0, reward, completion: [...]}, {rank: 1, ...}], tools}
    nemo-rl-binary       {prompt: [...], chosen: text, rejected: text, tools}
    customizer           {prompt: text, chosen_response: text, rejected_response: text}
    customizer --history {prompt: [...], chosen_response: text, rejected_response: text, tools}

Where an answer is text, a pair of several messages is cut at its divergence (cut.py), and one whose answer is then a
tool call is refused. NeMo does not render tools in preference data: where a pair has tools they stand beside the
messages as JSON text, which is noted as `tools_not_rendered`; with a text as prompt the pair is refused.
"""

from pairwright.export.chat_lines import (
    Context,
    PairRow,
    chat_message,
    chats_of,
    cut_at_divergence,
    note_left_out,
    only_texts,
    prompt_text,
    side_text,
    tools_text,
)
from pairwright.records.json_text import encode
from pairwright.records.messages import Message


def preference_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo RL PreferenceDataset. It trains the last message of a side only; several messages a side are noted."""
    prompt, chosen, rejected = chats_of(row, context)
    ranked = b",".join(
        # Rank 0 is the preferred completion.
        b'{"rank":%d,"reward":%b,"completion":%b}' % (rank, encode(reward), side)
        for rank, (reward, side) in enumerate(((row.chosen_reward, chosen), (row.rejected_reward, rejected)))
    )
    return [b'{"context":%b,"completions":[%b]%b}\n' % (prompt, ranked, _tools(row, context))]


def binary_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo RL BinaryPreferenceDataset: the prompt as messages, the two answers as text."""
    prompt, *sides = _cut(row, context)
    texts = [encode(side_text(side)) for side in sides]
    return [b'{"prompt":%b,"chosen":%b,"rejected":%b%b}\n' % (_history(prompt), *texts, _tools(row, context))]


def customizer_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo Customizer: a prompt of one user message as text, or with `history` the messages of any prompt."""
    if texts := None if row.tools or context.history else only_texts(row):  # most pairs: nothing to check or to cut
        return [b'{"prompt":%b,"chosen_response":%b,"rejected_response":%b}\n' % texts]
    prompt, *sides = _cut(row, context)
    if context.history:
        start, tools = _history(prompt), _tools(row, context)
    else:
        start, tools = encode(prompt_text(prompt, row.tools)), b""
    answers = [encode(side_text(side)) for side in sides]
    return [b'{"prompt":%b,"chosen_response":%b,"rejected_response":%b%b}\n' % (start, *answers, tools)]


def _cut(row: PairRow, context: Context) -> tuple[tuple[Message, ...], Message, Message]:
    prompt, chosen, rejected = cut_at_divergence(row, context)
    note_left_out(context, prompt, reasoning=False)
    note_left_out(context, (chosen, rejected), reasoning=True)
    return prompt, chosen, rejected


def _history(prompt: tuple[Message, ...]) -> bytes:
    return encode([chat_message(message) for message in prompt])


def _tools(row: PairRow, context: Context) -> bytes:
    if row.tools:
        context.note("tools_not_rendered")
    return b',"tools":' + tools_text(row) if context.has_tools else b""

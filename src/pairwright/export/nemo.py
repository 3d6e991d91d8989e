"""NVIDIA NeMo: preference datasets of NeMo RL, and rows for NeMo Customizer and NeMo Platform.

    nemo-rl-preference   {context: [...], completions: [{rank: 0, reward, completion: [...]}, {rank: 1, ...}], tools}
    nemo-rl-binary       {prompt: [...], chosen: text, rejected: text, tools, reward_gap, chosen_reward,
                         rejected_reward}
    customizer           {prompt: text, chosen_response: text, rejected_response: text}
    customizer --history {prompt: [...], chosen_response: text, rejected_response: text, tools}
    nemo-platform        {prompt: [{role, content: text}], chosen: text, rejected: text, reward_gap, chosen_reward,
                         rejected_reward}
    nemo-platform-text   the same, with tool calls, results and schemas as text

For targets with answers as text, a pair with several messages is cut at its divergence (export/chat_lines.py), and
refused if the answer is then a tool call. NeMo does not render tools in preference data: the tools of a pair are
written beside the messages as JSON text and noted as `tools_not_rendered`; if the prompt is text, the pair is refused.
"""

from pairwright.export.chat_lines import (
    Context,
    PairRow,
    Unfit,
    chat_message,
    chats_of,
    cut_at_divergence,
    note_left_out,
    only_texts,
    prompt_text,
    side_text,
    text_of,
    tools_text,
)
from pairwright.pairs.candidates.candidates import decimal_gap
from pairwright.records.json_text import decode, encode
from pairwright.records.messages import Message
from pairwright.records.tool_texts import write_tools_as_text


def preference_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo RL PreferenceDataset. It trains only the last message of a side; several messages per side are noted."""
    prompt, chosen, rejected = chats_of(row, context)
    ranked = b",".join(
        # Rank 0 is the preferred completion.
        b'{"rank":%d,"reward":%b,"completion":%b}' % (rank, encode(reward), side)
        for rank, (reward, side) in enumerate(((row.chosen_reward, chosen), (row.rejected_reward, rejected)))
    )
    return [b'{"context":%b,"completions":[%b]%b}\n' % (prompt, ranked, _tools(row, context))]


def binary_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo RL BinaryPreferenceDataset: prompt as messages, both answers as text. It reads no more than these; beside
    them stand the rewards, under the names of NeMo Gym's guide."""
    prompt, *sides = _cut(row, context)
    texts = [encode(side_text(side)) for side in sides]
    line = b'{"prompt":%b,"chosen":%b,"rejected":%b%b' % (_history(prompt), *texts, _tools(row, context))
    return [line + _rewards(row)]


def platform_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo Platform: messages of a role and a text, nothing else. Pairs with tools or tool calls are refused."""
    prompt, chosen, rejected = _cut(row, context)
    if row.tools:
        raise Unfit("tools")
    if any(map(_uses_tools, prompt)):
        raise Unfit("tool_calls_in_the_prompt")
    return [_platform_line(row, prompt, chosen, rejected)]


def platform_text_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo Platform, with tool calls, results and schemas as text, in the tags that Hermes uses."""
    prompt, chosen, rejected = _cut(row, context)
    tools = decode(row.tools) if row.tools else []
    if tools or any(map(_uses_tools, (*prompt, chosen, rejected))):
        context.note("tools_as_text")
        prompt = write_tools_as_text(prompt, tools).messages
        chosen, rejected = (write_tools_as_text([side]).messages[0] for side in (chosen, rejected))
    return [_platform_line(row, prompt, chosen, rejected)]


def _platform_line(row: PairRow, prompt: tuple[Message, ...], chosen: Message, rejected: Message) -> bytes:
    messages = encode([{"role": message.role, "content": text_of(message)} for message in prompt])
    texts = encode(side_text(chosen)), encode(side_text(rejected))
    return b'{"prompt":%b,"chosen":%b,"rejected":%b' % (messages, *texts) + _rewards(row)


def _uses_tools(message: Message) -> bool:
    return bool(message.tool_calls) or message.role in ("tool", "function")


def _rewards(row: PairRow) -> bytes:
    """The end of a line: the rewards, under the names of NeMo Gym's guide."""
    rewards = (decimal_gap(row.chosen_reward, row.rejected_reward), row.chosen_reward, row.rejected_reward)
    return b',"reward_gap":%b,"chosen_reward":%b,"rejected_reward":%b}\n' % tuple(map(encode, rewards))


def customizer_lines(row: PairRow, context: Context) -> list[bytes]:
    """NeMo Customizer: a single user message as text, or with `history` any prompt as messages."""
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

"""Preference data for TRL: explicit prompt, implicit prompt and unpaired; conversational or standard format.

    explicit   {prompt: [...], chosen: [...], rejected: [...], tools: JSON text, score_chosen, score_rejected}
    implicit   {chosen: [prompt and answer], rejected: [prompt and answer], tools, score_chosen, score_rejected}
    unpaired   {prompt: [...], completion: [...], label: true or false, tools}, two rows per pair

`tools` is written if any pair has tools, as JSON text, which TRL decodes: as a list, Arrow would merge the keys of all
schemas. Tool call arguments are JSON text too; `--arguments object` writes them as objects, for chat templates that
encode them again. TRL trains everything after the prompt, including tool results: pairs with several messages per side
are noted as `several_messages_a_side`.

Pairs of raw text are written in TRL's standard format, with strings instead of lists of messages and without tools; TRL
trains them without a chat template. A file has one format, that of the first pair; pairs of the other are refused.
"""

from pairwright.export.chat_lines import (
    TEXT_IS_NO_CHAT,
    Context,
    PairRow,
    Unfit,
    chats_of,
    note_left_out,
    text_of,
    tools_text,
)
from pairwright.records.json_text import encode
from pairwright.records.messages import TEXT


def explicit_lines(row: PairRow, context: Context) -> list[bytes]:
    """TRL, explicit prompt. Refused: prompts that end with a system message, which TRL cannot render."""
    if _is_standard(row, context):
        return [b'{"prompt":%b,"chosen":%b,"rejected":%b%b}\n' % (*map(encode, _texts(row, context)), _scores(row))]
    chats = _check_chats(row, context)
    return [b'{"prompt":%b,"chosen":%b,"rejected":%b%b%b}\n' % (*chats, _tools(row, context), _scores(row))]


def implicit_lines(row: PairRow, context: Context) -> list[bytes]:
    """TRL, implicit prompt: two complete conversations. TRL extracts their longest common prefix as the prompt."""
    if _is_standard(row, context):
        start, *answers = _texts(row, context)
        return [b'{"chosen":%b,"rejected":%b%b}\n' % (*(encode(start + answer) for answer in answers), _scores(row))]
    prompt, *chats = chats_of(row, context)
    # Joins two JSON arrays as text: without the closing bracket of one and the opening bracket of the other.
    sides = (prompt[:-1] + b"," + chat[1:] for chat in chats)
    return [b'{"chosen":%b,"rejected":%b%b%b}\n' % (*sides, _tools(row, context), _scores(row))]


def unpaired_lines(row: PairRow, context: Context) -> list[bytes]:
    """TRL, unpaired (KTO): the chosen side with the label true, then the rejected side with the label false.

    A completion is written once for each pair that it is in, so it may appear with both labels.
    """
    if _is_standard(row, context):
        tools, (start, *answers) = b"", map(encode, _texts(row, context))
    else:
        tools, (start, *answers) = _tools(row, context), _check_chats(row, context)
    return [
        b'{"prompt":%b,"completion":%b,"label":%b%b}\n' % (start, answer, label, tools)
        for answer, label in zip(answers, (b"true", b"false"), strict=True)
    ]


def _is_standard(row: PairRow, context: Context) -> bool:
    """Return whether a pair is raw text; raises Unfit if its format differs from that of the file."""
    is_text = row.has_raw_text
    # A file has one shape, which its first pair decided.
    if is_text != context.is_text:
        raise Unfit("text_among_chats" if is_text else "chat_among_texts")
    return is_text


def _texts(row: PairRow, context: Context) -> list[str]:
    """Return prompt, chosen and rejected as plain text; raises Unfit unless all of it is raw text without tools."""
    contents = [content.messages for content in row.contents]
    if not contents[0]:
        raise Unfit("no_prompt")
    # Chat messages on either side cannot be written as standard rows.
    if any(message.role != TEXT for messages in contents for message in messages):
        raise Unfit(TEXT_IS_NO_CHAT)
    if row.tools:
        raise Unfit("tools")
    note_left_out(context, [message for messages in contents for message in messages], reasoning=True)
    return ["".join(map(text_of, messages)) for messages in contents]


def _check_chats(row: PairRow, context: Context) -> tuple[bytes, bytes, bytes]:
    chats = chats_of(row, context)
    if row.prompt.roles[-1] in ("system", "developer"):
        raise Unfit("prompt_ends_with_system_message")
    return chats


def _tools(row: PairRow, context: Context) -> bytes:
    return b',"tools":' + tools_text(row) if context.has_tools else b""


def _scores(row: PairRow) -> bytes:
    return b',"score_chosen":%b,"score_rejected":%b' % (encode(row.chosen_reward), encode(row.rejected_reward))

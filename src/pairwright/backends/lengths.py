"""How long pairs are for a model, for trainers that leave out what is too long without a word."""

from collections.abc import Sequence
from pathlib import Path

from pairwright.messages import Json, Message
from pairwright.pairs.exporters.chat import Unfit, chat_message
from pairwright.pairs.table import read_pairs
from pairwright.tokens import ChatTokenizer, TokensError
from pairwright.tokens.text import encode_raw_text, is_raw_text


def num_longer(pairs: Path, model: str, *, limit: int) -> int | None:
    """How many pairs have a side longer than `limit` tokens with its prompt; None where the tokenizer is not here."""
    if not Path(model).is_dir():
        return None
    tokenizer = ChatTokenizer.from_folder(model)
    found = 0
    for pair in read_pairs(pairs):
        sides = (pair.chosen, pair.rejected)
        found += any(_length(tokenizer, [*pair.prompt, *side], pair.tools) > limit for side in sides)
    return found


def _length(tokenizer: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Json]) -> int:
    """The tokens of a conversation; 0 for one that cannot be rendered, which is the trainer's to refuse."""
    try:
        if is_raw_text(messages):
            return len(encode_raw_text(tokenizer, messages))
        chat = [chat_message(message, arguments="object") for message in messages]
        schemas = tokenizer.schemas(tools)
        ids, _ = tokenizer.encode(tokenizer.renderer(schemas).text(chat, schemas))
    except (TokensError, Unfit):
        return 0
    return len(ids)

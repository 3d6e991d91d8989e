"""A few sequences to look at: from the cache, or encoded on the spot from a table, from pairs, or from a conversation.

folder of cached sequences   as they were encoded
experience table, pairs      encoded now; with `hints`, the hinted teacher of an experience beside the student
.json, .jsonl                conversations: a list of messages, or {"messages": [...], "tools": [...]}
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from pairwright.errors import PairwrightError, TableError
from pairwright.records import Experience
from pairwright.tokens.cache import ITEMS, read_sequences
from pairwright.tokens.distill import encode_distillations
from pairwright.tokens.hinting import Hinter
from pairwright.tokens.items import Item, Source
from pairwright.tokens.pairs import encode_pair
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.tokens.turns import encode_turns

Titled = tuple[str, Sequence]


def preview(
    path: Path, tokenizer: ChatTokenizer, *, name: str | None = None, num: int = 3, hints: Hinter | None = None
) -> list[Titled]:
    """At most `num` sequences with their titles; `name`: only those of this experience or pair."""
    if path.is_file():
        found = _of_file(path, tokenizer)
    elif (path / ITEMS).is_file():
        where = None if name is None else pl.col("id") == name
        found = ((f"{uid} {side}".strip(), sequence) for uid, side, sequence in read_sequences(path, where))
    else:
        found = _of_source(path, tokenizer, name, hints=hints)
    sequences = list(islice(found, num))
    if not sequences:
        what = "" if hints is None else " with a hint"
        raise PairwrightError(f"{path}: no sequence{what}{'' if name is None else f' of {name}'}")
    return sequences


def _of_source(path: Path, tokenizer: ChatTokenizer, name: str | None, *, hints: Hinter | None) -> Iterator[Titled]:
    try:
        source = Source(path, salt="")
    except TableError:
        raise TableError(f"{path}: no cached sequences, no experience table, no pairs, no file") from None
    for item in source.items(set()):
        if name is None or item.id == name:
            yield from _of_item(tokenizer, item) if hints is None else _hinted(tokenizer, item.experience, hints)


def _of_item(tokenizer: ChatTokenizer, item: Item) -> Iterator[Titled]:
    if item.experience is not None:
        yield from ((item.id, sequence) for sequence in encode_experience(tokenizer, item.experience))
        return
    sides = item.prompt, item.chosen, item.rejected
    pair = encode_pair(tokenizer, *sides, list(item.tools) or None, sources=item.sources, cut=item.cut)
    yield f"{item.id} chosen", pair.chosen
    yield f"{item.id} rejected", pair.rejected


def _hinted(tokenizer: ChatTokenizer, experience: Experience | None, hinter: Hinter) -> Iterator[Titled]:
    if experience is None or not experience.errors:
        return
    hints, _ = hinter(experience.messages, experience.errors)
    hints = [hint for hint in hints if hint.target >= len(experience.prompt)]
    if hints:
        tools = list(experience.tools) or None
        start = len(experience.prompt)
        for found in encode_distillations(tokenizer, experience.messages, hints, tools, train_from=start):
            yield f"{experience.eid.uid} student", found.student
            yield f"{experience.eid.uid} teacher", found.teacher


def _of_file(path: Path, tokenizer: ChatTokenizer) -> Iterator[Titled]:
    for number, value in enumerate(_values(path), start=1):
        chat = {"messages": value} if isinstance(value, list) else value
        messages = chat.get("messages") if isinstance(chat, dict) else None
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise PairwrightError(f"{path}:{number}: expected a list of messages, or an object with one as 'messages'")
        for sequence in encode_turns(tokenizer, messages, chat.get("tools")):
            yield f"{path.name}:{number}", sequence


def _values(path: Path) -> Iterator[Any]:
    try:
        data = path.read_bytes()
        if path.suffix == ".jsonl":
            yield from (msgspec.json.decode(line) for line in data.splitlines() if line.strip())
        else:
            yield msgspec.json.decode(data)
    except (OSError, msgspec.MsgspecError) as error:
        raise PairwrightError(f"{path}: not a conversation: {error}") from None

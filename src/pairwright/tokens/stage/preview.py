"""Preview a few sequences: from the cache, or encoded now from a table, pairs, or conversations.

folder of cached sequences   read from the cache
experience table, pairs      encoded now; with `hints`, the hinted teacher of an experience beside the student
.json, .jsonl                conversations: a list of messages, or {"messages": [...], "tools": [...]}
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from pairwright.config.sections import TokensConfig
from pairwright.errors import PairwrightError, TableError
from pairwright.tokens.encode import encode_turns
from pairwright.tokens.encode_options import DEFAULT, EncodeOptions
from pairwright.tokens.encode_pairs import encode_pair
from pairwright.tokens.hints import Hinter
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import TokensError
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.spans.dropped import refuse_media_inputs
from pairwright.tokens.stage.cache import ITEMS, list_refusals, read_sequences
from pairwright.tokens.stage.items import Item, Source
from pairwright.tokens.teacher_sequences import encode_distillations
from pairwright.tokens.tokenizer import ChatTokenizer

Titled = tuple[str, Sequence]
Result = tuple[str, Sequence | TokensError]
_MAX_REFUSED = 200  # stop after this many refused items of a table


def preview(
    path: Path,
    tokenizer: ChatTokenizer,
    *,
    name: str | None = None,
    num: int = 3,
    hints: Hinter | None = None,
    options: EncodeOptions = DEFAULT,
    refused: Callable[[str, str], None] = lambda title, reason: None,
) -> list[Titled]:
    """Return at most `num` sequences with titles; `name`: only sequences of this experience or pair; ignored for
    files. `refused` is called with the title and the reason of at most `num` refused items."""
    if path.is_file():
        results = _preview_file(path, tokenizer, options)
    elif (path / ITEMS).is_file():
        results = _preview_cache(path, None if name is None else pl.col("id") == name)
    else:
        results = _preview_source(path, tokenizer, name, options, hints=hints)
    sequences: list[Titled] = []
    reasons: list[str] = []
    for title, result in results:
        if not isinstance(result, TokensError):
            sequences.append((title, result))
            if len(sequences) == num:
                break
            continue
        reasons.append(str(result))
        if len(reasons) <= num:
            refused(title, str(result))
    if not sequences:
        what = f"no sequence{'' if hints is None else ' with a hint'}{'' if name is None else f' of {name}'}"
        why = f": {len(reasons):,} refused, the first one because {reasons[0]}" if reasons else ""
        raise PairwrightError(f"{path}: {what}{why}")
    return sequences


def _preview_cache(path: Path, where: pl.Expr | None) -> Iterator[Result]:
    for uid, _, detail in list_refusals(path, where):
        yield uid, TokensError(detail)
    for uid, side, sequence in read_sequences(path, where):
        yield f"{uid} {side}".strip(), sequence


def _preview_source(
    path: Path, tokenizer: ChatTokenizer, name: str | None, options: EncodeOptions, *, hints: Hinter | None
) -> Iterator[Result]:
    try:
        source = Source(path, TokensConfig())
    except TableError:
        raise TableError(f"{path}: expected cached sequences, an experience table, pairs, or a file") from None
    num_refused = 0
    for item in source.items(set()):
        if name is None or item.id == name:
            try:
                if hints is None:
                    yield from _preview_item(tokenizer, item, options)
                else:
                    yield from _preview_hinted(tokenizer, item, options, hints)
            except TokensError as error:
                yield item.id, error
                # A template may refuse every item of a large table.
                num_refused += 1
                if num_refused == _MAX_REFUSED:
                    return


def _preview_item(tokenizer: ChatTokenizer, item: Item, options: EncodeOptions) -> Iterator[Titled]:
    if item.experience is not None:
        yield from ((item.id, sequence) for sequence in encode_experience(tokenizer, item.experience, options))
        return
    sides = item.prompt, item.chosen, item.rejected
    pair = encode_pair(tokenizer, *sides, list(item.tools) or None, options, sources=item.sources, cut=item.cut)
    yield f"{item.id} chosen", pair.chosen
    yield f"{item.id} rejected", pair.rejected


def _preview_hinted(tokenizer: ChatTokenizer, item: Item, options: EncodeOptions, hinter: Hinter) -> Iterator[Titled]:
    experience = item.experience
    if experience is None or not experience.errors:
        return
    hints, _ = hinter(experience.messages, experience.errors)
    # Turns of the prompt are context: they have no teacher.
    hints = [hint for hint in hints if hint.target >= len(experience.prompt)]
    if hints:
        tools = list(experience.tools) or None
        start = len(experience.prompt)
        refuse_media_inputs(experience, allow=options.allow_images)
        for distillation in encode_distillations(
            tokenizer, experience.messages, hints, tools, options, train_from=start
        ):
            yield f"{experience.eid.uid} student", distillation.student
            yield f"{experience.eid.uid} teacher", distillation.teacher


def _preview_file(path: Path, tokenizer: ChatTokenizer, options: EncodeOptions) -> Iterator[Result]:
    for number, value in enumerate(_values(path), start=1):
        chat = {"messages": value} if isinstance(value, list) else value
        messages = chat.get("messages") if isinstance(chat, dict) else None
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise PairwrightError(f"{path}:{number}: expected a list of messages, or an object with one as 'messages'")
        title = f"{path.name}:{number}"
        try:
            sequences = encode_turns(tokenizer, messages, chat.get("tools"), options)
        except TokensError as error:
            yield title, error
            continue
        yield from ((title, sequence) for sequence in sequences)


def _values(path: Path) -> Iterator[Any]:
    try:
        data = path.read_bytes()
        if path.suffix == ".jsonl":
            yield from (msgspec.json.decode(line) for line in data.splitlines() if line.strip())
        else:
            yield msgspec.json.decode(data)
    except (OSError, msgspec.MsgspecError) as error:
        raise PairwrightError(f"{path}: not a conversation: {error}") from None

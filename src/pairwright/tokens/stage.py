"""The tokens stage: an experience table or pairs into cached sequences, with a manifest that counts everything.

    OUT/sequences-<id>.parquet   one row a sequence, or a refusal (see cache.py)
    OUT/items.parquet            which items this is, in the order of the source
    OUT/manifest.json            counts, lengths, share of trained tokens, versions

A row's key is a hash of the content, the tokenizer, the template and the options, so nothing is encoded twice: the same
command again reads the keys and encodes what is new. A refusal is a row, too, with its reason.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from pairwright.canonical import content_hash
from pairwright.config.tokens import TokensConfig
from pairwright.engines import Engine, Pool
from pairwright.errors import ConfigError
from pairwright.messages import Json
from pairwright.places import Place, write_bytes
from pairwright.records import Experience
from pairwright.tokens.cache import scan_cache, write_items, write_part
from pairwright.tokens.items import Item, Source
from pairwright.tokens.manifest import count_items
from pairwright.tokens.pairs import EncodedPair, PairMessages, encode_pairs
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.tokens.truncate import truncate

ITEMS_PER_TASK = 256
_VERSION = 4  # of what is written for an item: a new one makes old rows unknown


def encode_source(
    source: Place,
    output: Place,
    options: TokensConfig,
    *,
    num_workers: int | None = None,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Encode what is not in the cache yet, then count all of it. Returns the manifest.

    Without an engine the work is done by processes of this machine: `num_workers`, or as many as there are cores.
    """
    if options.tokenizer is None:
        raise ConfigError("tokens.tokenizer: expected the folder of a model")
    # Says what is wrong with it before anything is read, and takes the place of what the folder held before.
    _loaded[options.tokenizer] = ChatTokenizer.from_folder(options.tokenizer)
    tokenizer_hash = folder_hash(Path(options.tokenizer))
    read = open_source(source, tokenizer_hash, options)
    output.mkdir(parents=True, exist_ok=True)
    known = set(scan_cache(output).select("key").collect()["key"].to_list())
    keys = list(read.keys())
    done = num_cached = len(known.intersection(keys))
    engine = engine or Pool(num_workers or options.workers or os.cpu_count() or 1)
    for rows in engine.map(partial(encode_items, options=options), _tasks(read.items(known))):
        write_part(output, rows)
        done += len({row["key"] for row in rows})
        progress(done, len(keys))
    write_items(output, keys)
    found = count_items(output, keys, num_cached) | {
        "source": str(source),
        "tokenizer": tokenizer_hash,
        "options": options.content(),
    }
    write_bytes(output / "manifest.json", msgspec.json.format(msgspec.json.encode(found)))
    return found


def open_source(source: Place, tokenizer_hash: str, options: TokensConfig) -> Source:
    """The items of a table, with the keys that they have for this tokenizer and these options."""
    return Source(
        source, salt=content_hash(_VERSION, tokenizer_hash, options.content()), experience=options.experience,
        use_recorded=options.recorded == "use",
    )  # fmt: skip


def folder_hash(folder: Path) -> str:
    """128 bits of a tokenizer's files: vocabulary, special tokens, templates."""
    digest = xxhash.xxh3_128()
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
    for path in [*(folder / name for name in names), *sorted(folder.rglob("*.jinja"))]:
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _tasks(items: Iterator[Item]) -> Iterator[list[Item]]:
    """A few hundred items at a time."""
    return iter(lambda: list(islice(items, ITEMS_PER_TASK)), [])


_loaded: dict[str, ChatTokenizer] = {}


def encode_items(items: list[Item], options: TokensConfig) -> list[Json]:
    """The rows of items: one a sequence, or one with the refusal."""
    assert options.tokenizer is not None
    if options.tokenizer not in _loaded:
        _loaded[options.tokenizer] = ChatTokenizer.from_folder(options.tokenizer)
    tokenizer = _loaded[options.tokenizer]
    rows: list[Json] = []
    for item in items:
        if item.experience is not None:
            try:
                rows += _experience_rows(tokenizer, item, item.experience, options)
            except TokensError as error:
                rows.append(_refused(item, error))
    compared = [item for item in items if item.experience is None]
    for item, found in zip(compared, _pairs(tokenizer, compared, options), strict=True):
        if isinstance(found, TokensError):
            rows.append(_refused(item, found))
            continue
        sides = ("chosen", found.chosen), ("rejected", found.rejected)
        rows += [_row(item, side, 0, sequence) | {"prompt_length": found.prompt_length} for side, sequence in sides]
    return rows


def _experience_rows(tokenizer: ChatTokenizer, item: Item, experience: Experience, options: TokensConfig) -> list[Json]:
    sequences = encode_experience(
        tokenizer, experience, recorded=options.recorded, boundaries=options.boundaries,
        control_tokens=options.control_tokens, require_stop=options.require_stop, verify=options.verify,
        allow_dropped=options.allow_dropped, allow_images=options.allow_images,
    )  # fmt: skip
    if not any(sequence.num_trained for sequence in sequences):
        raise Refusal("not_generated", "the completion has nothing that the model generated")
    if options.max_length is not None:
        cut = (options.max_length, options.truncation)
        sequences = [truncate(sequence, *cut, keep_first=options.keep_first) for sequence in sequences]
    return [_row(item, "", number, sequence) for number, sequence in enumerate(sequences)]


def _pairs(tokenizer: ChatTokenizer, items: list[Item], options: TokensConfig) -> Iterator[EncodedPair | TokensError]:
    compared = (
        PairMessages(item.prompt, item.chosen, item.rejected, list(item.tools) or None, item.sources, item.cut)
        for item in items
    )
    return encode_pairs(
        tokenizer, compared, recorded=options.recorded, max_length=options.pair_length, truncation=options.truncation,
        keep_first=options.keep_first, control_tokens=options.control_tokens, require_stop=options.require_stop,
        verify=options.verify, allow_dropped=options.allow_dropped, allow_images=options.allow_images,
    )  # fmt: skip


def _refused(item: Item, error: TokensError) -> Json:
    reason = error.reason if isinstance(error, Refusal) else "template_error"
    return {"key": item.key, "id": item.id, "side": "", "refusal": reason, "detail": str(error)}


def _row(item: Item, side: str, number: int, sequence: Sequence) -> Json:
    return {
        "key": item.key,
        "id": item.id,
        "side": side,
        "number": number,
        "num_tokens": len(sequence),
        "num_trained": sequence.num_trained,
        "ids": sequence.ids,
        "mask": sequence.mask,
        "message_index": sequence.message_index,
        "paint": sequence.paint,
        "logprobs": sequence.logprobs,
        "report": msgspec.json.encode(sequence.report).decode(),
    }

"""The tokens stage: an experience table or pairs into cached sequences, with a manifest that counts everything.

    OUT/sequences-<id>.parquet   one row a sequence: ids, mask, message of each token, paint, report; or a refusal
    OUT/manifest.json            counts, lengths, share of trained tokens, versions

A row's key is a hash of the content, the tokenizer, the template and the options, so nothing is encoded twice: the same
command again reads the keys and encodes what is new. A refusal is a row, too, with its reason.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pairwright.canonical import content_hash
from pairwright.errors import PairwrightError, TableError
from pairwright.messages import Json, Message
from pairwright.pairs.table import FILE_NAME, pair_batches
from pairwright.records import Experience, Kind
from pairwright.store.arrow import from_batch
from pairwright.store.journal import new_segment_id, sync_folder
from pairwright.store.table import Table
from pairwright.tokens.pairs import encode_pair
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal, TemplateError
from pairwright.tokens.sequence import Report, Sequence
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.tokens.truncate import truncate

Truncation = Literal["keep_start", "keep_end", "drop"]
ITEMS_PER_TASK = 256
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("id", pa.string()),
        ("side", pa.string()),
        ("number", pa.int32()),
        ("prompt_length", pa.int32()),
        ("num_tokens", pa.int32()),
        ("num_trained", pa.int32()),
        ("ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.bool_())),
        ("message_index", pa.list_(pa.int32())),
        ("paint", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("report", pa.string()),
        ("refusal", pa.string()),
        ("detail", pa.string()),
    ]
)


class Item(msgspec.Struct, frozen=True):
    """What is encoded as one: an experience, or the two sides of a preference. `key` is its place in the cache."""

    key: str
    id: str
    experience: Experience | None = None
    prompt: tuple[Message, ...] = ()
    tools: tuple[Json, ...] = ()
    chosen: tuple[Message, ...] = ()
    rejected: tuple[Message, ...] = ()


class EncodeOptions(msgspec.Struct, frozen=True):
    tokenizer: str
    max_length: int | None = None
    truncation: Truncation = "keep_end"


def encode_source(
    source: Path,
    output: Path,
    options: EncodeOptions,
    *,
    num_workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Encode what is not in the cache yet, then count all of it. Returns the manifest."""
    ChatTokenizer.from_folder(options.tokenizer)  # says what is wrong with it before anything is read
    tokenizer_hash = folder_hash(Path(options.tokenizer))
    salt = content_hash(tokenizer_hash, options.max_length, options.truncation)
    output.mkdir(parents=True, exist_ok=True)
    known = set(_cached(output).select("key").collect()["key"].to_list())
    items = list(_keys(source, salt))
    done = sum(key in known for key in items)
    total, num_cached = len(items), done
    wanted = set(items)
    for rows in _encoded(_items(source, salt, known), options, num_workers):
        _write_part(output, rows)
        done += len({row["key"] for row in rows})
        progress(done, total)
    found = _manifest(output, wanted, num_cached)
    found |= {"source": str(source), "tokenizer": tokenizer_hash, "max_length": options.max_length}
    hidden = output / f".manifest.{os.getpid()}.tmp"
    hidden.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    hidden.replace(output / "manifest.json")
    sync_folder(output)
    return found


def folder_hash(folder: Path) -> str:
    """128 bits of a tokenizer's files: vocabulary, special tokens, templates."""
    digest = xxhash.xxh3_128()
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
    for path in [*(folder / name for name in names), *sorted(folder.rglob("*.jinja"))]:
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def read_sequences(output: Path, where: pl.Expr | None = None) -> Iterator[tuple[str, str, Sequence]]:
    """The cached sequences, each with its id and side ("", "chosen" or "rejected")."""
    frame = _cached(output).filter(pl.col("refusal").is_null())
    for batch in (frame if where is None else frame.filter(where)).collect_batches(chunk_size=1024):
        for row in batch.iter_rows(named=True):
            yield row["id"], row["side"], _sequence(row)


def _keys(source: Path, salt: str) -> Iterator[str]:
    if (source / FILE_NAME).exists():
        for batch in pair_batches(source, ["id"]):
            yield from (content_hash(salt, name) for name in batch.column("id").to_pylist())
    elif (source / "table.json").exists():
        for batch in Table(source, create=False).scan(columns=["uid", "prompt_hash", "completion_hash"]):
            yield from (content_hash(salt, row) for row in batch.to_pylist())
    else:
        raise TableError(f"{source}: neither an experience table nor pairs")


def _items(source: Path, salt: str, known: set[str]) -> Iterator[Item]:
    """The items that are not in the cache."""
    if (source / FILE_NAME).exists():
        yield from _pair_items(source, salt, known)
        return
    names = ("uid", "prompt_hash", "completion_hash")
    for batch in Table(source, create=False).scan():
        keys = [content_hash(salt, row) for row in batch.select(names).to_pylist()]
        fresh = np.array([key not in known for key in keys], bool)
        keys = [key for key in keys if key not in known]
        for key, exp in zip(keys, from_batch(batch.filter(pa.array(fresh))), strict=True):
            if exp.kind is Kind.PREFERENCE and exp.chosen is not None and exp.rejected is not None:
                sides = exp.chosen.messages, exp.rejected.messages
                yield Item(key, exp.eid.uid, None, exp.prompt, exp.tools, *sides)
            else:
                yield Item(key, exp.eid.uid, exp)


def _pair_items(source: Path, salt: str, known: set[str]) -> Iterator[Item]:
    messages = msgspec.json.Decoder(tuple[Message, ...]).decode
    tools = msgspec.json.Decoder(tuple[Json, ...]).decode
    for batch in pair_batches(source, ["id", "prompt", "tools", "chosen", "rejected"]):
        for row in batch.to_pylist():
            key = content_hash(salt, row["id"])
            if key not in known:
                sides = [messages(row[name] or "[]") for name in ("prompt", "chosen", "rejected")]
                yield Item(key, row["id"], None, sides[0], tools(row["tools"] or "[]"), sides[1], sides[2])


def _encoded(items: Iterator[Item], options: EncodeOptions, num_workers: int | None) -> Iterator[list[Json]]:
    """Rows of items, a few hundred items at a time, on as many processes as there are cores and it pays."""
    tasks: Iterable[list[Item]] = iter(lambda: list(islice(items, ITEMS_PER_TASK)), [])
    workers = num_workers or os.cpu_count() or 1
    first = next(iter(tasks), [])
    second = next(iter(tasks), [])
    if workers < 2 or not second:
        for task in filter(None, (first, second)):
            yield encode_items(task, options)
        yield from (encode_items(task, options) for task in tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting: list[Future[list[Json]]] = [pool.submit(encode_items, task, options) for task in (first, second)]
        for task in tasks:
            waiting.append(pool.submit(encode_items, task, options))
            if len(waiting) > 2 * workers:
                yield waiting.pop(0).result()
        yield from (future.result() for future in waiting)


_loaded: dict[str, ChatTokenizer] = {}


def encode_items(items: list[Item], options: EncodeOptions) -> list[Json]:
    """The rows of items: one a sequence, or one with the refusal."""
    if options.tokenizer not in _loaded:
        _loaded[options.tokenizer] = ChatTokenizer.from_folder(options.tokenizer)
    tokenizer = _loaded[options.tokenizer]
    rows: list[Json] = []
    for item in items:
        try:
            rows += _rows(tokenizer, item, options)
        except Refusal as refusal:
            rows.append({"key": item.key, "id": item.id, "side": "", "refusal": refusal.reason, "detail": str(refusal)})
        except TemplateError as error:
            rows.append({"key": item.key, "id": item.id, "side": "", "refusal": "template", "detail": str(error)})
    return rows


def _rows(tokenizer: ChatTokenizer, item: Item, options: EncodeOptions) -> list[Json]:
    if item.experience is not None:
        sequences = encode_experience(tokenizer, item.experience)
        if not any(sequence.num_trained for sequence in sequences):
            raise Refusal("not_generated", "the completion has nothing that the model generated")
        if options.max_length is not None:
            sequences = [truncate(sequence, options.max_length, options.truncation) for sequence in sequences]
        return [_row(item, "", number, sequence) for number, sequence in enumerate(sequences)]
    pair = encode_pair(
        tokenizer, item.prompt, item.chosen, item.rejected, list(item.tools) or None,
        max_length=options.max_length, truncation=options.truncation,
    )  # fmt: skip
    sides = ("chosen", pair.chosen), ("rejected", pair.rejected)
    return [_row(item, side, 0, sequence) | {"prompt_length": pair.prompt_length} for side, sequence in sides]


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


def _write_part(output: Path, rows: list[Json]) -> None:
    part = output / f"sequences-{new_segment_id()}.parquet"
    hidden = part.with_name(f".{part.name}.tmp")
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in SCHEMA]
    try:
        pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), hidden, compression="zstd", compression_level=1)
        with open(hidden, "rb") as file:
            os.fsync(file.fileno())
        hidden.rename(part)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise PairwrightError(f"{output}: {error.strerror or error}") from error


def _cached(output: Path) -> pl.LazyFrame:
    parts = sorted(output.glob("sequences-*.parquet"))
    empty = pl.DataFrame(SCHEMA.empty_table()).lazy()
    return pl.concat([empty, *(pl.scan_parquet(part, glob=False) for part in parts)]) if parts else empty


def _sequence(row: Json) -> Sequence:
    names = ("ids", "mask", "message_index", "paint", "logprobs")
    return Sequence(**{name: row[name] for name in names}, report=msgspec.json.decode(row["report"], type=Report))


def _manifest(output: Path, wanted: set[str], num_cached: int) -> dict[str, Any]:
    """Every count of the items of this source, from the cache."""
    names = ["key", "side", "num_tokens", "num_trained", "report", "refusal"]
    rows = _cached(output).select(names).filter(pl.col("key").is_in(list(wanted))).collect()
    good = rows.filter(pl.col("refusal").is_null())
    lengths = good["num_tokens"]
    reports = [msgspec.json.decode(text) for text in good["report"].to_list()]
    per_item = good.group_by("key", "side").len()["len"]
    tokens, trained = int(lengths.sum()), int(good["num_trained"].sum())
    return {
        "items": len(wanted),
        "from_cache": num_cached,
        "exact": len(wanted) - int(rows.height - good.height),
        "refused": dict(sorted(rows.filter(pl.col("refusal").is_not_null())["refusal"].value_counts().iter_rows())),
        "sequences": good.height,
        "template_rewrites_history": int((per_item > 1).sum()),
        "recorded": sum(report.get("source") == "recorded" for report in reports),
        "truncated": sum(report.get("truncated", 0) > 0 for report in reports),
        "with_dropped_content": sum(bool(report.get("dropped")) for report in reports),
        "tokens": tokens,
        "trained_tokens": trained,
        "trained_share": trained / tokens if tokens else 0.0,
        "length": {
            "min": lengths.min(), "median": lengths.median(), "p95": lengths.quantile(0.95), "max": lengths.max(),
        },
    }  # fmt: skip

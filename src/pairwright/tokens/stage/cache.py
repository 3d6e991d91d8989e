"""The cache of encoded sequences on disk, its readers, and the counts of its manifest.

    OUT/sequences-<id>.parquet   one row per sequence: ids, mask, message of each token, paint, report; or a refusal
    OUT/items.parquet            keys of the source's items, in source order
    OUT/mapped-<hash>.arrow      a copy of these items' rows for memory mapping; may be deleted

The Parquet files may hold more than the items of the last run (another length, a changed source). Readers return only
the last run's items, in source order. Arrays of `CachedPairs` and `CachedSequences` are views of the mapped file, so
memory does not grow with their number.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pairwright.errors import PairwrightError, TableError
from pairwright.paths import Place, list_names, write_atomic
from pairwright.paths.parquet_files import scan_parquet
from pairwright.records.arrays import Array
from pairwright.records.messages import Json
from pairwright.store.journal import new_segment_id
from pairwright.tokens.encode_pairs import EncodedPair
from pairwright.tokens.sequence import Report, Sequence

ITEMS = "items.parquet"
_PARTS = "sequences-*.parquet"
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
        ("weights", pa.list_(pa.float32())),
        ("report", pa.string()),
        ("refusal", pa.string()),
        ("detail", pa.string()),
    ]
)
_ARRAYS = ("ids", "mask", "message_index", "paint", "logprobs", "weights")  # columns with a value for each token
_MAPPED = ("key", "id", "side", "number", "prompt_length", "num_tokens", *_ARRAYS, "report")
_decode_report = msgspec.json.Decoder(Report).decode


def write_part(output: Place, rows: list[Json]) -> None:
    """Write another Parquet file; it gets its name once it is complete and synced."""
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in SCHEMA]
    _write_parquet(output / f"sequences-{new_segment_id()}.parquet", pa.Table.from_arrays(columns, schema=SCHEMA))


def sequence_row(key: str, name: str, side: str, sequence: Sequence, number: int = 0) -> Json:
    """Return a sequence of the item `name` as a row for `write_part`."""
    return {
        "key": key,
        "id": name,
        "side": side,
        "number": number,
        "num_tokens": len(sequence),
        "num_trained": sequence.num_trained,
        **{column: getattr(sequence, column) for column in _ARRAYS},
        "report": msgspec.json.encode(sequence.report).decode(),
    }


def write_items(output: Place, keys: list[str]) -> None:
    """Record the keys of the last run's items, in source order."""
    _write_parquet(output / ITEMS, pa.table({"key": pa.array(keys, pa.string())}))


def scan_cache(output: Place) -> pl.LazyFrame:
    empty = pl.DataFrame(SCHEMA.empty_table()).lazy()
    # Diagonal: a part written before a column existed gets nulls.
    return pl.concat([empty, *(scan_parquet(part, SCHEMA) for part in _list_parts(output))], how="diagonal")


def read_sequences(output: Path, where: pl.Expr | None = None) -> Iterator[tuple[str, str, Sequence]]:
    """Yield the sequences of the last run in source order, with id and side ("", "chosen" or "rejected")."""
    rows = _Rows(output)
    frame = rows.frame if where is None else rows.frame.filter(where)
    for name, side, row in frame.select("id", "side", "row").iter_rows():
        yield name, side, rows.sequence(row)


def list_refusals(output: Place, where: pl.Expr | None = None) -> list[tuple[str, str, str]]:
    """Return the refusals of the last run in source order: id, reason, detail."""
    keys = scan_parquet(output / ITEMS, pa.schema([("key", pa.string())])).unique(maintain_order=True)
    rows = scan_cache(output).filter(pl.col("refusal").is_not_null()).unique("key", keep="first")
    frame = keys.join(rows, on="key", how="inner", maintain_order="left")
    frame = frame if where is None else frame.filter(where)
    return list(frame.select("id", "refusal", "detail").collect().iter_rows())


class CachedPairs:
    """The encoded pairs of the last run, without refused ones, by position. Their arrays are read-only views of a
    mapped file; collators copy them."""

    def __init__(self, output: Path) -> None:
        self._rows = _Rows(output)
        sides = [self._rows.frame.filter(pl.col("side") == name) for name in ("chosen", "rejected")]
        # Both sides of a pair have the `place` of its item in the source.
        frame = sides[0].join(sides[1], on="place", how="inner", maintain_order="left", suffix="_rejected")
        if not frame.height and self._rows.frame.height:
            raise TableError(f"{output}: {self._rows.frame.height:,} sequences but no pairs: encode a folder of pairs")
        self.ids: list[str] = frame["id"].to_list()  # in source order
        self.lengths: Array = frame.select("num_tokens", "num_tokens_rejected").to_numpy()  # (N, 2)
        self.prompt_lengths: Array = frame["prompt_length"].to_numpy()  # (N,) tokens that both sides share
        # (N, 2) rows of both sides in the mapped file.
        self._places: Array = frame.select("row", "row_rejected").to_numpy()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> EncodedPair:
        chosen, rejected = (self._rows.sequence(int(row)) for row in self._places[position])
        return EncodedPair(chosen=chosen, rejected=rejected, prompt_length=int(self.prompt_lengths[position]))

    def __iter__(self) -> Iterator[EncodedPair]:
        return (self[position] for position in range(len(self)))


class CachedSequences:
    """The sequences of one side ("" for runs) by position, read lazily."""

    def __init__(self, output: Path, side: str = "") -> None:
        self._rows = _Rows(output)
        frame = self._rows.frame.filter(pl.col("side") == side)
        self.ids: list[str] = frame["id"].to_list()  # of items, in source order; an item may have several sequences
        self.lengths: Array = frame["num_tokens"].to_numpy()  # (N,)
        self._places: Array = frame["row"].to_numpy()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> Sequence:
        return self._rows.sequence(int(self._places[position]))


class _Rows:
    """The rows of the last run in a memory-mapped file; `frame` lists them in source order."""

    def __init__(self, output: Path) -> None:
        self._source = pa.memory_map(str(build_mapped_file(output)))
        reader = pa.ipc.open_file(self._source)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._batches = [{name: _column(batch.column(name)) for name in (*_ARRAYS, "report")} for batch in batches]
        # First row of each batch, to find a row's batch by bisection.
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])[:-1]
        narrow: Any = pl.from_arrow(
            pa.Table.from_batches(batches, schema=reader.schema).select(
                ["key", "id", "side", "number", "prompt_length", "num_tokens"]
            )
        )
        # For each sequence: the place of its item in the source, and its row in the mapped file.
        places = pl.read_parquet(output / ITEMS).with_row_index("place")
        self.frame: pl.DataFrame = places.join(
            narrow.with_row_index("row"), on="key", how="inner", maintain_order="left_right"
        )

    def sequence(self, row: int) -> Sequence:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        batch, place = self._batches[number], row - int(self._starts[number])
        arrays: dict[str, Any] = {}
        for name in _ARRAYS:
            offsets, values, valid = batch[name]  # list column: a row is a slice of the values
            known = valid is None or valid[place]
            arrays[name] = values[offsets[place] : offsets[place + 1]] if known else None
        # Stored as bytes (see `_write_mapped`): a view, not a copy.
        arrays["mask"] = arrays["mask"].view(np.bool_)
        offsets, text, _ = batch["report"]
        return Sequence(**arrays, report=_decode_report(text[offsets[place] : offsets[place + 1]]))


def _column(column: Any) -> tuple[Array, Any, Array | None]:
    """Return offsets, values and validity of a column of lists or texts; only validity is copied."""
    valid = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_string(column.type):
        # Buffers of a text column: validity, offsets (N + 1,), UTF-8 data.
        _, offsets, data = column.buffers()
        return np.frombuffer(offsets, np.int32), memoryview(data or b""), valid
    values = column.values.to_numpy(zero_copy_only=True)
    return column.offsets.to_numpy(zero_copy_only=True), values, valid


def build_mapped_file(output: Path) -> Path:
    """Return the file to map; build it from the Parquet files unless it exists for these parts and items."""
    if not (output / ITEMS).is_file():
        raise TableError(f"{output}: no {ITEMS}; make one with: pairwright tokens SOURCE --tokenizer DIR -o {output}")
    # The name hashes the items and the names of the parts, which are immutable.
    digest = xxhash.xxh3_64((output / ITEMS).read_bytes())
    for part in _list_parts(output):
        digest.update(part.name.encode())
    path = output / f"mapped-{digest.hexdigest()}.arrow"
    if not path.is_file():
        with write_atomic(path, error=PairwrightError, durable=False) as temporary:
            _write_mapped(temporary, output)
            stale = [old for old in output.glob("mapped-*.arrow") if old != path]
        for old in stale:
            old.unlink(missing_ok=True)
    return path


def _write_mapped(path: Path, output: Path) -> None:
    """Write the rows of the last run part by part: no refusals, each key once, masks as bytes."""
    wanted = set(pl.read_parquet(output / ITEMS)["key"].to_list())
    types = {"mask": pa.list_(pa.uint8())}  # Arrow packs booleans into bits, which cannot be mapped as an array
    schema = pa.schema([pa.field(name, types.get(name, SCHEMA.field(name).type)) for name in _MAPPED])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for part in _list_parts(output):
            written = set(pq.read_schema(part).names)
            names = [name for name in (*_MAPPED, "refusal") if name in written]
            table = pq.read_table(part, columns=names, use_threads=False)
            for name in set(_MAPPED) - written:  # columns newer than the part
                table = table.append_column(name, pa.nulls(len(table), SCHEMA.field(name).type))
            is_wanted = [
                key in wanted and refusal is None
                for key, refusal in zip(table["key"].to_pylist(), table["refusal"].to_pylist(), strict=True)
            ]
            # The first part with a key has all its rows; later parts may repeat them.
            wanted.difference_update(set(table["key"].to_pylist()))
            rows = table.filter(pa.array(is_wanted, pa.bool_())).select(_MAPPED)
            for batch in rows.cast(schema).combine_chunks().to_batches():
                writer.write_batch(batch)


def _list_parts(output: Place) -> Items[Place]:
    return [output / name for name in list_names(output, missing_ok=True) if fnmatchcase(name, _PARTS)]


def _write_parquet(path: Place, table: pa.Table) -> None:
    with write_atomic(path, error=PairwrightError) as temporary:
        pq.write_table(table, temporary, compression="zstd", compression_level=1)


# What sequences lack: field of a report -> name of its count, and the name in words.
LOSSES = {
    "dropped": "with_dropped_content",
    "prompt_dropped": "with_dropped_prompt_content",
    "images": "with_images_left_out",
    "left_out": "with_turns_left_out",
    "added_tokens": "with_added_tokens",
    "declared": "with_declared_turns",
}
_IN_WORDS = {
    "with_dropped_content": "lack text or calls that the model generated: the chat template does not render them",
    "with_dropped_prompt_content": "lack text, calls or tool schemas of the prompt: the chat template does not render "
    "them",
    "with_added_tokens": "have tokens that nobody generated: a thought that was closed before a turn (not trained), or "
    "a stop token that the chat template does not show (trained)",
    "with_declared_turns": "have turns whose form is declared for the family of the model: the chat template does not "
    "show it",
    "with_images_left_out": "are trained without their images, audio, video or files",
    "with_turns_left_out": "are sides of pairs of which only the first turn that differs is trained: the chat template "
    "shows later turns in contexts of their own",
}


def count_items(output: Place, keys: list[str], num_cached: int) -> dict[str, Any]:
    """Count exact and refused items, reasons, lengths, dropped content, the share of trained tokens.

    `exact` items train exactly what the model generated, as shown by a render of the template or by recorded ids.
    `encoded` also includes items with allowed dropped content, added tokens, or turns written by a declared row.
    """
    names = ["key", "side", "number", "num_tokens", "num_trained", "report", "refusal"]
    wanted = pl.DataFrame({"key": keys}, schema={"key": pl.String}).unique()
    rows = scan_cache(output).select(names).join(wanted.lazy(), on="key", how="semi").collect()
    rows = rows.unique(["key", "side", "number"], keep="first", maintain_order=True)  # concurrent runs: duplicates
    good = rows.filter(pl.col("refusal").is_null())
    lengths = good["num_tokens"]
    reports = [msgspec.json.decode(text) for text in good["report"].to_list()]
    per_item = good.group_by("key", "side").len()["len"]  # more than one: the template rewrites history
    num_encoded = wanted.height - int(rows.height - good.height)
    inexact = {
        key
        for key, report in zip(good["key"].to_list(), reports, strict=True)
        if any(report.get(name) for name in ("dropped", "added_tokens", "declared"))
    }
    tokens, trained = int(lengths.sum()), int(good["num_trained"].sum())
    return {
        "items": wanted.height,
        "from_cache": num_cached,
        "encoded": num_encoded,
        "exact": num_encoded - len(inexact),
        "refused": dict(sorted(rows.filter(pl.col("refusal").is_not_null())["refusal"].value_counts().iter_rows())),
        "sequences": good.height,
        "template_rewrites_history": int((per_item > 1).sum()),
        "recorded": sum(report.get("source") == "recorded" for report in reports),
        "recorded_text_differs": sum(bool(report.get("text_differs")) for report in reports),
        "turns_not_selected": sum(len(report.get("not_selected", ())) for report in reports),
        "turns_masked_by_credit": sum(len(report.get("masked_by_credit", ())) for report in reports),
        "credit": _count_credit(good["side"].to_list(), reports),
        "turns_with_value": sum(one[2] is not None for report in reports for one in report.get("credit", ())),
        "unstopped": sum(bool(report.get("unstopped")) for report in reports),
        "truncated": sum(report.get("truncated", 0) > 0 for report in reports),
        **{name: sum(bool(report.get(field)) for report in reports) for field, name in LOSSES.items()},
        "added_tokens": sum(report.get("added_tokens", 0) for report in reports),
        "turns_by_rule": _count_values(str(rule) for report in reports for rule in report.get("rules", ())),
        "modes": _count_values(
            ", ".join(f"{name}={value}" for name, value in report["mode"].items())
            for report in reports
            if report.get("mode")
        ),
        "dropped_fields": _count_fields(reports),
        "tokens": tokens,
        "trained_tokens": trained,
        "trained_share": trained / tokens if tokens else 0.0,
        "length": {
            "min": lengths.min(),
            "median": lengths.median(),
            "p95": lengths.quantile(0.95),
            "max": lengths.max(),
        },
    }


def _count_credit(sides: list[str], reports: list[Json]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for side, report in zip(sides, reports, strict=True):
        for _, verdict, _, _ in report.get("credit", ()):
            counts.setdefault(side or "runs", Counter())[verdict] += 1
    return {side: dict(sorted(counted.items())) for side, counted in counts.items()}


def _count_values(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _count_fields(reports: list[Json]) -> dict[str, int]:
    """Count fields that the template does not render, in trained turns and in the prompt."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(name for _, name in report.get("dropped", ()))
        counts.update(f"prompt: {name}" for _, name in report.get("prompt_dropped", ()))
    return dict(sorted(counts.items()))


def describe_losses(manifest: dict[str, Any]) -> list[str]:
    """Return one line for each kind of loss: refused items by reason, content that is not rendered, images."""
    lines = []
    if refused := manifest.get("refused"):
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in refused.items())
        lines.append(f"{sum(refused.values()):,} of {manifest['items']:,} items are refused: {reasons}")
    for name, text in _IN_WORDS.items():
        if count := manifest.get(name, 0):
            lines.append(f"{count:,} of {manifest['sequences']:,} sequences {text}")
    if fields := manifest.get("dropped_fields"):
        lines.append(f"not rendered: {', '.join(f'{name} {count:,}' for name, count in fields.items())}")
    return lines

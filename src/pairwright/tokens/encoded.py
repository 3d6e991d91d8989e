"""Sequences that the tokens stage has written, taken as they are: nothing is encoded here.

Whoever trains on a folder of sequences needs to know that they are those of its table, its tokenizer and its options.
What does not agree is refused with the command that encodes it.
"""

from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pydantic

from pairwright.config.tokens import TokensConfig
from pairwright.errors import ConfigError, TableError
from pairwright.messages import Json
from pairwright.pairs.table import FILE_NAME, pair_batches
from pairwright.places import Place, place
from pairwright.tokens.cache import ITEMS, scan_cache
from pairwright.tokens.stage import folder_hash, open_source

MANIFEST = "manifest.json"


def read_manifest(tokens: Path) -> Json:
    """What `pairwright tokens` wrote about the sequences in a folder."""
    if not (tokens / ITEMS).is_file() or not (tokens / MANIFEST).is_file():
        raise TableError(
            f"{tokens}: expected a folder of sequences ({ITEMS}, {MANIFEST}); make one with: "
            f"pairwright tokens SOURCE --tokenizer DIR -o {tokens}"
        )
    try:
        manifest = msgspec.json.decode((tokens / MANIFEST).read_bytes(), type=dict[str, Any])
        _ = manifest["source"], manifest["tokenizer"], manifest["options"]
    except (msgspec.MsgspecError, KeyError) as error:
        raise TableError(f"{tokens / MANIFEST}: cannot be read: {error}; run pairwright tokens again") from error
    return manifest


def missing_table(tokens: Path, *, has_pairs: bool, has_experience: bool) -> dict[str, Place]:
    """The table that sequences were made of, by its kind ("pairs" or "experience"), unless there is one of its kind."""
    if has_pairs if holds_pairs(tokens) else has_experience:
        return {}
    name = str(read_manifest(tokens)["source"])
    source = place(name)
    if (source / FILE_NAME).exists():
        return {"pairs": source}
    if (source / "table.json").exists():
        return {"experience": source}
    raise TableError(
        f"{tokens}: its sequences were made of {name}, which is not there: name the table with --pairs DIR or "
        "--experience DIR"
    )


def holds_pairs(tokens: Path) -> bool:
    """Whether the sequences are the sides of pairs, not runs."""
    read_manifest(tokens)
    keys = pl.scan_parquet(tokens / ITEMS)
    sides = scan_cache(tokens).filter(pl.col("side") != "").select("key").join(keys, on="key", how="semi")
    return bool(sides.head(1).collect().height)


def adopt_options(tokens: Path, options: TokensConfig) -> TokensConfig:
    """`options` as the sequences in a folder were encoded: those that are not set are what they were then. One that is
    set to something else is refused."""
    manifest = read_manifest(tokens)
    try:
        before = TokensConfig(**manifest["options"]).content()
    except pydantic.ValidationError as error:
        raise ConfigError(
            f"{tokens}: encoded by a version with other options ({error.error_count()} differ); "
            f"{_encode_again(tokens, manifest)}"
        ) from None
    now = options.content()
    changed = [name for name in now if name in options.model_fields_set and now[name] != before[name]]
    if changed:
        differences = ", ".join(f"tokens.{name} was {before[name]!r}, is {now[name]!r}" for name in changed)
        raise ConfigError(
            f"{tokens}: encoded with other options ({differences}): restore them, or {_encode_again(tokens, manifest)}"
        )
    return options.model_copy(update=before)


def read_encoded(source: Path, tokens: Path, options: TokensConfig) -> Json:
    """The manifest of the sequences in `tokens`, if they are those of the table `source` with these options."""
    manifest = read_manifest(tokens)
    options = adopt_options(tokens, options)
    tokenizer_hash = folder_hash(Path(str(options.tokenizer)))
    again = _encode_again(tokens, {"source": source}, options.tokenizer)
    if manifest["tokenizer"] != tokenizer_hash:
        raise ConfigError(f"{tokens}: encoded with another tokenizer or template than {options.tokenizer}'s: {again}")
    read = open_source(source, tokenizer_hash, options)
    encoded = set(pl.read_parquet(tokens / ITEMS)["key"].to_list())
    keys = set(read.keys())
    if keys == encoded or (read.is_pairs and read.lacks_recorded() and _ids(source) == _encoded_ids(tokens)):
        return manifest
    raise TableError(
        f"{tokens}: not the sequences of {source} as it is: {len(keys - encoded):,} of its {len(keys):,} items are not "
        f"among them, {len(encoded - keys):,} are of other items: {again}"
    )


def _ids(pairs: Path) -> set[str]:
    return {name for batch in pair_batches(pairs, ["id"]) for name in batch.column("id").to_pylist()}


def _encoded_ids(tokens: Path) -> set[str]:
    """The ids of the items of the last run. A pair's id is a hash of its content."""
    keys = pl.scan_parquet(tokens / ITEMS)
    return set(scan_cache(tokens).join(keys, on="key", how="semi").select("id").collect()["id"].to_list())


def _encode_again(tokens: Path, manifest: Json, tokenizer: str | None = "DIR") -> str:
    return f"pairwright tokens {manifest['source']} --tokenizer {tokenizer} -o {tokens} encodes them again"

"""The tokens stage: encodes an experience table or pairs as cached sequences with a manifest; `Encoded` is its result.

    OUT/manifest.json    counts, lengths, share of trained tokens, versions; the other files: cache.py

A row's key hashes the content, the tokenizer, the template and the options, so nothing is encoded twice: running the
same command again encodes only new items. A refusal is also a row, with its reason.
"""

import os
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
import pydantic
import xxhash

from pairwright.config.config_file import adjust_config
from pairwright.config.sections import TokensConfig
from pairwright.engines import Engine, Pool
from pairwright.engines.progress import Progress, progress_of
from pairwright.errors import ConfigError, TableError
from pairwright.pairs.container import Pairs
from pairwright.pairs.pair_table import FILE_NAME, pair_batches
from pairwright.paths import Place, claim_folder, place, write_bytes
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, content_hash
from pairwright.store.table import Table
from pairwright.tokens.batch.collate import PreferenceBatch, collate_preference
from pairwright.tokens.clock import FIXED
from pairwright.tokens.encode_options import EncodeOptions
from pairwright.tokens.encode_pairs import EncodedPair
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import truncate, weigh_turns
from pairwright.tokens.stage.cache import (
    ITEMS,
    CachedPairs,
    count_items,
    scan_cache,
    sequence_row,
    write_items,
    write_part,
)
from pairwright.tokens.stage.items import Item, Source, encode_pair_items
from pairwright.tokens.tokenizer import ChatTokenizer, choose_template, load_tokenizer
from pairwright.tokens.tokenizer_files import FILES, find_folder, find_tiktoken_files
from pairwright.tokens.train_turns import fingerprint_function

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.text import Text

# Limits of a task, the unit of work of a worker and the most that a killed run loses.
ITEMS_PER_TASK = 256
MESSAGES_PER_TASK = 2048
_VERSION = 7  # version of the rows: incrementing it invalidates cached rows


def encode_source(
    source: Place,
    output: Place,
    options: TokensConfig,
    *,
    num_workers: int | None = None,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Encode items that are not cached, count all items, and return the manifest.

    Without an engine, work runs in local processes: `num_workers`, by default one per core. Only one process at a time
    encodes into a folder.
    """
    with claim_folder(output, "items.parquet", work="tokens"):
        return encode_into(source, output, options, progress, engine or (Pool(num_workers) if num_workers else None))


def encode_into(
    source: Place,
    output: Place,
    options: TokensConfig,
    progress: Callable[[int, int], None],
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Like `encode_source`, in a folder that the caller has already claimed (as training does)."""
    if options.tokenizer is None:
        raise ConfigError("tokens.tokenizer: expected the folder of a model")
    # Fails before anything is read if the tokenizer is broken.
    tokenizer = load_tokenizer(options)
    options = fix_clock(source, tokenizer, options)
    _loaded[_loaded_key(options)] = load_tokenizer(options)  # replaces one that was loaded earlier
    tokenizer_hash = hash_tokenizer(options)
    read = open_source(source, tokenizer_hash, options)
    output.mkdir(parents=True, exist_ok=True)
    known = set(scan_cache(output).select("key").collect()["key"].to_list())
    keys = list(read.keys())
    done = num_cached = len(known.intersection(keys))
    engine = engine or Pool(options.workers or os.cpu_count() or 1)
    for rows in engine.map(partial(encode_items, options=options), _split_tasks(read.items(known))):
        # One file per task: an interrupted run keeps its encoded items.
        write_part(output, rows)
        done += len({row["key"] for row in rows})
        progress(done, len(keys))
    write_items(output, keys)
    manifest = count_items(output, keys, num_cached) | {
        "source": str(source),
        "is_pairs": read.is_pairs,
        "tokenizer": tokenizer_hash,
        "options": options.content(),
    }
    write_bytes(output / "manifest.json", msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


def fix_clock(source: Place, tokenizer: ChatTokenizer, options: TokensConfig) -> TokensConfig:
    """Set the time that the template prints; unchanged if it prints none."""
    if options.clock is not None or not tokenizer.reads_clock:
        return options
    imported = Source(source, TokensConfig(recorded="ignore")).imported_at()
    return options.model_copy(update={"clock": (imported or FIXED).isoformat()})


def open_source(source: Place, tokenizer_hash: str, options: TokensConfig) -> Source:
    functions = fingerprint_function(options.train_turns, "pairwright.train_turns")
    functions += fingerprint_function(options.credit.function, "pairwright.credit")
    return Source(source, options, salt=content_hash(_VERSION, tokenizer_hash, options.content(), *functions))


def hash_tokenizer(options: TokensConfig) -> str:
    """Hash the tokenizer of the options, and their chat template and grammar if set."""
    folder = str(options.tokenizer)
    digest = folder_hash(find_folder(folder))
    more = [] if options.chat_template is None else [choose_template(folder, options.chat_template)]
    more += [] if options.grammar is None else [Path(options.grammar).read_text(encoding="utf-8")]
    return content_hash(digest, *more) if more else digest


def folder_hash(folder: Path) -> str:
    """Hash a tokenizer's files (128 bits): vocabulary, special tokens, templates."""
    folder = folder.parent if folder.name == "tokenizer.json" else folder
    digest = xxhash.xxh3_128()
    names = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
    vocabulary = FILES[:1] if (folder / FILES[0]).is_file() else FILES
    paths = [folder / name for name in (*vocabulary, *names)]
    if not any(path.is_file() for path in paths[: len(vocabulary)]):
        paths += find_tiktoken_files(folder)
    for path in [*paths, *sorted(folder.rglob("*.jinja"))]:
        if path.is_file():
            # A zero byte, which no file name has, separates name and content.
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _split_tasks(items: Iterator[Item]) -> Iterator[list[Item]]:
    """Split the items into tasks, depending only on the items, so that every run writes the same files."""
    task, num_messages = list[Item](), 0
    for item in items:
        task.append(item)
        run = item.experience.messages if item.experience is not None else ()
        num_messages += len(run) + len(item.prompt) + len(item.chosen) + len(item.rejected)
        if len(task) >= ITEMS_PER_TASK or num_messages >= MESSAGES_PER_TASK:
            yield task
            task, num_messages = [], 0
    if task:
        yield task


# Tokenizers of this process by their options: loading takes longer than encoding a task.
_loaded: dict[str, ChatTokenizer] = {}


def _loaded_key(options: TokensConfig) -> str:
    named = options.tokenizer, options.chat_template, options.grammar, options.clock
    return content_hash(*named, options.chat_template_kwargs)


def encode_items(items: list[Item], options: TokensConfig) -> list[Json]:
    key = _loaded_key(options)
    if key not in _loaded:
        _loaded[key] = load_tokenizer(options)
    tokenizer = _loaded[key]
    rows: list[Json] = []
    for item in items:
        if item.experience is not None:
            try:
                rows += _experience_rows(tokenizer, item, item.experience, options)
            except TokensError as error:
                rows.append(_refusal_row(item, error))
    compared = [item for item in items if item.experience is None]
    for item, encoded in zip(compared, encode_pair_items(tokenizer, compared, options), strict=True):
        if isinstance(encoded, TokensError):
            rows.append(_refusal_row(item, encoded))
            continue
        chosen = weigh_turns(encoded.chosen.with_report(uid=item.uids[0]), item.prompt + item.chosen)
        rejected = weigh_turns(encoded.rejected.with_report(uid=item.uids[1]), item.prompt + item.rejected)
        sides = ("chosen", chosen), ("rejected", rejected)
        length = {"prompt_length": encoded.prompt_length}
        rows += [sequence_row(item.key, item.id, side, sequence) | length for side, sequence in sides]
    return rows


def _experience_rows(tokenizer: ChatTokenizer, item: Item, experience: Experience, options: TokensConfig) -> list[Json]:
    facts = item.facts[0] if item.facts else None
    sequences = encode_experience(tokenizer, experience, EncodeOptions.of(options), facts)
    if not any(sequence.num_trained for sequence in sequences):
        raise Refusal("not_generated", "the completion has nothing that the model generated")
    if options.max_length is not None:
        cut = (options.max_length, options.truncation)
        sequences = [truncate(sequence, *cut, keep_first=options.keep_first) for sequence in sequences]
    return [sequence_row(item.key, item.id, "", sequence, number) for number, sequence in enumerate(sequences)]


def _refusal_row(item: Item, error: TokensError) -> Json:
    reason = error.reason if isinstance(error, Refusal) else "template_error"
    return {"key": item.key, "id": item.id, "side": "", "refusal": reason, "detail": str(error)}


MANIFEST = "manifest.json"
SPLITS = ("train", "validation", "all")


class Encoded:
    """Pairs as tokens, in a folder that `encode` or `pairwright tokens` wrote.

    Args:
        path: The folder of the sequences.
        tokenizer: Folder of the model or tokenizer they were encoded with; only `show` and `to_trl` need it.

    >>> import pairwright as pw
    >>> data = pw.Encoded("runs/first/tokens", "models/tiny")
    >>> len(data), data.manifest["refused"], [len(batch.chosen_ids) for batch in data.batches(3)]
    (4, {}, [3, 1])
    """

    def __init__(self, path: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path)
        self.tokenizer = tokenizer
        self.manifest: Json = read_manifest(self.path)

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, position: int) -> EncodedPair:
        # `range` resolves negative positions and raises IndexError beyond the end.
        return self._pairs[range(len(self))[position]]

    def __iter__(self) -> Iterator[EncodedPair]:
        return iter(self._pairs)

    def show(self, position: int = 0) -> "Text":
        """Return both sides of a pair in colours, trained tokens underlined, for notebooks and `rich.print`."""
        from rich.text import Text

        from pairwright.tokens.stage.paint import legend, paint_text

        ready = ChatTokenizer.from_folder(self._named_tokenizer("show"))
        pair, text = self[position], legend()
        for name, side in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            title = f"\n{name}: {len(side)} tokens, {side.num_trained} trained\n"
            text = Text.assemble(text, (title, "bold"), paint_text(ready, side))
        return text

    def batches(
        self, size: int, *, split: str = "train", seed: int | None = None, multiple_of: int = 1
    ) -> Iterator[PreferenceBatch]:
        """Yield padded batches of NumPy arrays; `pairwright.tokens.as_torch` converts a batch to tensors.

        Args:
            size: Pairs per batch; the last batch may have fewer.
            split: "train", "validation" or "all".
            seed: Shuffle with this seed, such as the epoch; by default, keep the order of the table.
            multiple_of: Pad to a multiple of this length.
        """
        if size < 1:
            raise ConfigError(f"size: got {size!r}, expected at least 1")
        if split not in SPLITS:
            raise ConfigError(f"split: got {split!r}, expected one of {', '.join(SPLITS)}")
        positions = np.arange(len(self))  # positions of the pairs, in the order of the table
        if split != "all":
            positions = positions[[self._splits.get(name) == split for name in self._pairs.ids]]
        if seed is not None:
            positions = np.random.default_rng(seed).permutation(positions)
        for start in range(0, len(positions), size):
            pairs = [self._pairs[int(position)] for position in positions[start : start + size]]
            yield collate_preference(pairs, pad_id=0, multiple_of=multiple_of)  # attention comes from lengths

    def to_trl(
        self,
        kind: str = "dpo",
        *,
        split: str = "train",
        reference: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> "Dataset":
        """Return the sequences as rows for a trainer of `pairwright.trl`, which uses them unchanged.

        Args:
            kind: "dpo" or "sft" for pairs, "sft" or "kto" for runs.
            split: "train", "validation" or "all".
            reference: A model whose log-probabilities are added to the rows; this needs
                `precompute_ref_log_probs=True` and the same model in TRL. By default TRL uses its own reference.
            **options: Options of the section train that decide what is trained: `where`, `kto`, ...
        """
        import pairwright  # trl is downstream of tokens; the package loads it lazily

        return pairwright.trl.make_dataset(
            self.path, self._named_tokenizer("to_trl"), kind, split=split, reference=reference, **options
        )

    def _named_tokenizer(self, name: str) -> str:
        if self.tokenizer is None:
            raise ConfigError(f"{name}: name the tokenizer's folder: Encoded({str(self.path)!r}, 'path/to/model')")
        return os.fspath(self.tokenizer)

    @cached_property
    def _pairs(self) -> CachedPairs:
        return CachedPairs(self.path)

    @cached_property
    def _splits(self) -> dict[str, str]:
        source = place(self.manifest["source"])
        rows = (zip(*batch.to_pydict().values(), strict=True) for batch in pair_batches(source, ["id", "split"]))
        return {name: split for batch in rows for name, split in batch}

    def __repr__(self) -> str:
        return f"Encoded({str(self.path)!r})"

    def _repr_html_(self) -> str:
        import html

        names = ("items", "encoded", "refused", "tokens", "trained_share", "length")
        rows = "".join(f"<tr><td>{name}</td><td>{html.escape(str(self.manifest[name]))}</td></tr>" for name in names)
        return f"<p><code>{html.escape(repr(self))}</code></p><table>{rows}</table>"


def encode(
    source: "Pairs | Table | str | os.PathLike[str]",
    tokenizer: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    progress: bool | Progress = False,
    **options: Any,
) -> Encoded:
    """Encode pairs (or experiences) with a model's tokenizer and chat template. Nothing is encoded twice.

    Args:
        source: Pairs, an experience table, or the folder of either.
        tokenizer: Folder of a model or of its tokenizer.
        output: Folder of the sequences; by default `tokens` beside the source.
        workers: Processes; by default one per core.
        progress: True prints progress to stderr; a function is called with the number of items done and the total.
        **options: Every other option of the `tokens` section: `max_length`, `truncation`, `allow_dropped`, ...

    Returns:
        The sequences. Items that have no exact mask are refused and counted in `manifest["refused"]`.

    >>> import pairwright as pw
    >>> data = pw.encode("runs/first/pairs", "models/tiny")
    >>> data.manifest["items"], data.manifest["exact"]
    (4, 4)
    """
    folder = source_folder(source)
    target = place(output) if output is not None else folder.parent / "tokens"
    settings = adjust_config(tokens={**options, "tokenizer": os.fspath(tokenizer), "workers": workers}).tokens
    encode_source(folder, target, settings, progress=progress_of(progress, "encoded items:"))
    return Encoded(str(target), tokenizer)


def source_folder(source: "Pairs | Table | str | os.PathLike[str]") -> Place:
    """Return the folder of pairs or experiences; refuse a filtered view, which would be encoded unfiltered."""
    if isinstance(source, Pairs):
        return source.on_disk()
    if isinstance(source, Table):
        if source.where is not None:
            raise ConfigError(f"{source}: a filtered table cannot be encoded: encode the table, and filter in training")
        return source.path
    return place(source)


def read_manifest(tokens: Path) -> Json:
    if not (tokens / ITEMS).is_file() or not (tokens / MANIFEST).is_file():
        raise TableError(
            f"{tokens}: expected a folder of sequences ({ITEMS}, {MANIFEST}); make one with: "
            f"pairwright tokens SOURCE --tokenizer DIR -o {tokens}"
        )
    try:
        manifest = msgspec.json.decode((tokens / MANIFEST).read_bytes(), type=dict[str, Any])
        # Fail here, not later, if a required field is missing.
        _ = manifest["source"], manifest["tokenizer"], manifest["options"]
    except (msgspec.MsgspecError, KeyError) as error:
        raise TableError(f"{tokens / MANIFEST}: cannot be read: {error}; run pairwright tokens again") from error
    return manifest


def missing_table(tokens: Path, *, has_pairs: bool, has_experience: bool) -> dict[str, Place]:
    """Return the table that the sequences were encoded from, by kind ("pairs" or "experience"); empty if the user named
    one."""
    if has_pairs if holds_pairs(tokens) else has_experience:
        return {}
    name = str(read_manifest(tokens)["source"])
    source = place(name)
    if (source / FILE_NAME).exists():
        return {"pairs": source}
    if (source / "table.json").exists():
        return {"experience": source}
    raise TableError(
        f"{tokens}: its sequences were encoded from {name}, which was not found: name the table with --pairs DIR or "
        "--experience DIR"
    )


def holds_pairs(tokens: Path) -> bool:
    """Return whether the sequences are sides of pairs rather than runs."""
    manifest = read_manifest(tokens)
    if "is_pairs" in manifest:  # pairs that were all refused have no sides
        return bool(manifest["is_pairs"])
    keys = pl.scan_parquet(tokens / ITEMS)
    # Semi-join: the cache may hold rows of earlier runs; only rows of the last run are used.
    sides = scan_cache(tokens).filter(pl.col("side") != "").select("key").join(keys, on="key", how="semi")
    return bool(sides.head(1).collect().height)


def adopt_options(tokens: Path, options: TokensConfig) -> TokensConfig:
    """Fill unset `options` with those that the sequences in a folder were encoded with; refuse options that are set
    differently."""
    manifest = read_manifest(tokens)
    try:
        encoded = TokensConfig(**manifest["options"])
    except pydantic.ValidationError as error:
        raise ConfigError(
            f"{tokens}: encoded by a version with other options ({error.error_count()} differ); "
            f"{_encode_again(tokens, manifest)}"
        ) from None
    now, before = options.content(), encoded.content()
    # Compare only options that the user set; the others are taken from the manifest.
    changed = [name for name in now if name in options.model_fields_set and now[name] != before[name]]
    if changed:
        differences = ", ".join(f"tokens.{name} was {before[name]!r}, is {now[name]!r}" for name in changed)
        raise ConfigError(
            f"{tokens}: encoded with other options ({differences}): restore them, or {_encode_again(tokens, manifest)}"
        )
    return options.model_copy(update={name: getattr(encoded, name) for name in before})


def read_encoded(source: Path, tokens: Path, options: TokensConfig) -> Json:
    """Read the manifest of `tokens`, after checking that its sequences are those of `source` with these options."""
    manifest = read_manifest(tokens)
    options = adopt_options(tokens, options)
    tokenizer_hash = hash_tokenizer(options)
    again = _encode_again(tokens, {"source": source}, options.tokenizer)
    if manifest["tokenizer"] != tokenizer_hash:
        raise ConfigError(f"{tokens}: encoded with another tokenizer or template than {options.tokenizer}'s: {again}")
    read = open_source(source, tokenizer_hash, options)
    encoded = set(pl.read_parquet(tokens / ITEMS)["key"].to_list())
    keys = set(read.keys())
    if keys == encoded:
        return manifest
    if read.is_pairs and read.lacks_recorded():
        # A pair's key depends on its recorded ids; without the experience table, only the ids of pairs can be compared.
        pairs = {name for batch in pair_batches(source, ["id"]) for name in batch.column("id").to_pylist()}
        last_run = scan_cache(tokens).join(pl.scan_parquet(tokens / ITEMS), on="key", how="semi")
        if pairs == set(last_run.select("id").collect()["id"].to_list()):
            return manifest
    raise TableError(
        f"{tokens}: not the current sequences of {source}: {len(keys - encoded):,} of its {len(keys):,} items are not "
        f"among them, {len(encoded - keys):,} are of other items: {again}"
    )


def _encode_again(tokens: Path, manifest: Json, tokenizer: str | None = "DIR") -> str:
    return f"pairwright tokens {manifest['source']} --tokenizer {tokenizer} -o {tokens} encodes them again"

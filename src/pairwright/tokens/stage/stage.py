"""The tokens stage: an experience table or pairs into cached sequences, with a manifest; and `Encoded`, its result.

    OUT/sequences-<id>.parquet   one row a sequence, or a refusal (see cache.py)
    OUT/items.parquet            which items this is, in the order of the source
    OUT/manifest.json            counts, lengths, share of trained tokens, versions

A row's key is a hash of the content, the tokenizer, the template and the options, so nothing is encoded twice: the same
command again reads the keys and encodes what is new. A refusal is a row, too, with its reason.
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
from pairwright.tokens.encode_pairs import EncodedPair, PairMessages, encode_pairs
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import Sequence, name_record, truncate, weigh_turns
from pairwright.tokens.stage.cache import ITEMS, CachedPairs, count_items, scan_cache, write_items, write_part
from pairwright.tokens.stage.items import Item, Source, encode_pair_items
from pairwright.tokens.tokenizer import ChatTokenizer, choose_template, load_tokenizer
from pairwright.tokens.tokenizer_files import FILES, find_folder, find_tiktoken_files
from pairwright.tokens.train_turns import fingerprint_function

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.text import Text

# What a worker encodes at a time, and a killed run loses at most: so many items, fewer where they are long.
ITEMS_PER_TASK = 256
MESSAGES_PER_TASK = 2048
_VERSION = 7  # of what is written for an item: a new one makes old rows unknown


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

    Without an engine the work is done by processes of this machine: `num_workers`, or as many as there are cores. One
    process at a time encodes into a folder.
    """
    with claim_folder(output, "items.parquet", work="tokens"):
        return encode_into(source, output, options, num_workers=num_workers, engine=engine, progress=progress)


def encode_into(
    source: Place,
    output: Place,
    options: TokensConfig,
    *,
    num_workers: int | None = None,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Do what `encode_source` does in a folder that the caller holds, as the processes of a training hold theirs."""
    if options.tokenizer is None:
        raise ConfigError("tokens.tokenizer: expected the folder of a model")
    # Fails before anything is read if the tokenizer is broken.
    tokenizer = load_tokenizer(options)
    options = fix_clock(source, tokenizer, options)
    _loaded[_loaded_key(options)] = load_tokenizer(options)  # replaces one that was loaded earlier
    tokenizer_hash = hash_tokenizer(options)
    read = open_source(source, tokenizer_hash, options)
    output.mkdir(parents=True, exist_ok=True)
    # Keys that are in the cache, whichever run wrote them.
    known = set(scan_cache(output).select("key").collect()["key"].to_list())
    keys = list(read.keys())
    # Progress starts at what is in the cache already.
    done = num_cached = len(known.intersection(keys))
    engine = engine or Pool(num_workers or options.workers or os.cpu_count() or 1)
    for rows in engine.map(partial(encode_items, options=options), _split_tasks(read.items(known))):
        # Every task is a file of its own: an interrupted run keeps what it has encoded.
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
    """The options with the time that the template is given; nothing is set where it prints none."""
    if options.clock is not None or not tokenizer.reads_clock:
        return options
    imported = Source(source, salt="", use_recorded=False).imported_at()
    return options.model_copy(update={"clock": (imported or FIXED).isoformat()})


def open_source(source: Place, tokenizer_hash: str, options: TokensConfig) -> Source:
    """The items of a table, with the keys that they have for this tokenizer and these options."""
    functions = fingerprint_function(options.train_turns, "pairwright.train_turns")
    functions += fingerprint_function(options.credit.function, "pairwright.credit")
    return Source(
        source,
        salt=content_hash(_VERSION, tokenizer_hash, options.content(), *functions),
        experience=options.experience,
        use_recorded=options.recorded == "use",
        use_variables=options.record_kwargs == "use",
        credit=options.credit if options.uses_credit else None,
        use_errors=options.train_turns == "after-error",
    )


def hash_tokenizer(options: TokensConfig) -> str:
    """128 bits of the tokenizer that the options name, and of their chat template where they name one."""
    folder = str(options.tokenizer)
    digest = folder_hash(find_folder(folder))
    more = [] if options.chat_template is None else [choose_template(folder, options.chat_template)]
    more += [] if options.grammar is None else [Path(options.grammar).read_text(encoding="utf-8")]
    return content_hash(digest, *more) if more else digest


def folder_hash(folder: Path) -> str:
    """128 bits of a tokenizer's files: vocabulary, special tokens, templates."""
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
    """Yield the items in tasks; their bounds depend on the items alone, so that every run writes the same files."""
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


# By folder, chat template and its variables, in each process: loading takes longer than encoding a task.
_loaded: dict[str, ChatTokenizer] = {}


def _loaded_key(options: TokensConfig) -> str:
    named = options.tokenizer, options.chat_template, options.grammar, options.clock
    return content_hash(*named, options.chat_template_kwargs)


def encode_items(items: list[Item], options: TokensConfig) -> list[Json]:
    """The rows of items: one a sequence, or one with the refusal."""
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
    compared = [item for item in items if item.experience is None]  # pairs: encoded together, which is faster
    for item, encoded in zip(compared, encode_pair_items(tokenizer, compared, options, _encode_pairs), strict=True):
        if isinstance(encoded, TokensError):
            rows.append(_refusal_row(item, encoded))
            continue
        chosen, rejected = map(name_record, (encoded.chosen, encoded.rejected), item.uids)
        chosen = weigh_turns(chosen, item.prompt + item.chosen)
        rejected = weigh_turns(rejected, item.prompt + item.rejected)
        sides = ("chosen", chosen), ("rejected", rejected)
        rows += [_row(item, side, 0, sequence) | {"prompt_length": encoded.prompt_length} for side, sequence in sides]
    return rows


def _experience_rows(tokenizer: ChatTokenizer, item: Item, experience: Experience, options: TokensConfig) -> list[Json]:
    facts = item.facts[0] if item.facts else None
    sequences = encode_experience(tokenizer, experience, EncodeOptions.of(options), facts)
    if not any(sequence.num_trained for sequence in sequences):
        raise Refusal("not_generated", "the completion has nothing that the model generated")
    if options.max_length is not None:
        cut = (options.max_length, options.truncation)
        sequences = [truncate(sequence, *cut, keep_first=options.keep_first) for sequence in sequences]
    return [_row(item, "", number, sequence) for number, sequence in enumerate(sequences)]


def _encode_pairs(
    tokenizer: ChatTokenizer, items: list[Item], options: TokensConfig
) -> Iterator[EncodedPair | TokensError]:
    compared = (
        PairMessages(item.prompt, item.chosen, item.rejected, list(item.tools) or None, item.sources, item.cut)
        for item in items
    )
    return encode_pairs(tokenizer, compared, EncodeOptions.of(options, max_length=options.pair_length))


def _refusal_row(item: Item, error: TokensError) -> Json:
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
        "weights": sequence.weights,
        "report": msgspec.json.encode(sequence.report).decode(),
    }


# The result of the stage: `Encoded` for Python, and the checks of a training that reads the sequences as they are.

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
        """Both sides of a pair in colours, trained tokens underlined: shown by notebooks and by `rich.print`."""
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
        """The pairs in batches of NumPy arrays, padded; `pairwright.tokens.as_torch` makes tensors of one.

        Args:
            size: Pairs of a batch; the last one may have fewer.
            split: "train", "validation" or "all".
            seed: Shuffle with this seed, say the number of the epoch; by default the order is the table's.
            multiple_of: Pad to a multiple of this length.
        """
        if size < 1:
            raise ConfigError(f"size: got {size!r}, expected at least 1")
        if split not in SPLITS:
            raise ConfigError(f"split: got {split!r}, expected one of {', '.join(SPLITS)}")
        positions = np.arange(len(self))  # of pairs, in the order of the table
        if split != "all":
            # A list of booleans over all pairs selects those of the split.
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
        """The sequences as rows for a trainer of `pairwright.trl`, which takes them unchanged.

        Args:
            kind: "dpo" or "sft" for pairs, "sft" or "kto" for runs.
            split: "train", "validation" or "all".
            reference: A model whose log-probabilities the rows carry. By default TRL computes those of its own
                reference; rows that carry them need `precompute_ref_log_probs=True` and the same model.
            **options: Options of the section train that decide what is trained: `where`, `run_weight`, `kto`, ...
        """
        import pairwright  # trl lies downstream of tokens; the package loads it when it is asked for

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
        # Columns of a batch to rows (id, split).
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
        workers: Processes; by default one a core.
        progress: True prints progress to stderr; a function is called with items done and in all.
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
    """The folder of pairs or of experiences; a filtered view is refused where it would be read whole."""
    if isinstance(source, Pairs):
        return source.on_disk()
    if isinstance(source, Table):
        if source.where is not None:
            raise ConfigError(f"{source}: a filtered table cannot be encoded: encode the table, and filter in training")
        return source.path
    return place(source)


def read_manifest(tokens: Path) -> Json:
    """What `pairwright tokens` wrote about the sequences in a folder."""
    if not (tokens / ITEMS).is_file() or not (tokens / MANIFEST).is_file():
        raise TableError(
            f"{tokens}: expected a folder of sequences ({ITEMS}, {MANIFEST}); make one with: "
            f"pairwright tokens SOURCE --tokenizer DIR -o {tokens}"
        )
    try:
        manifest = msgspec.json.decode((tokens / MANIFEST).read_bytes(), type=dict[str, Any])
        # Fields that readers rely on: a missing one is a KeyError here, not later.
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
    manifest = read_manifest(tokens)
    if "is_pairs" in manifest:  # pairs that were all refused have no sides
        return bool(manifest["is_pairs"])
    keys = pl.scan_parquet(tokens / ITEMS)
    # Semi-join: the cache may hold rows of earlier runs, and only those of the last run count.
    sides = scan_cache(tokens).filter(pl.col("side") != "").select("key").join(keys, on="key", how="semi")
    return bool(sides.head(1).collect().height)


def adopt_options(tokens: Path, options: TokensConfig) -> TokensConfig:
    """`options` as the sequences in a folder were encoded: those that are not set are what they were then. One that is
    set to something else is refused."""
    manifest = read_manifest(tokens)
    try:
        encoded = TokensConfig(**manifest["options"])
    except pydantic.ValidationError as error:
        raise ConfigError(
            f"{tokens}: encoded by a version with other options ({error.error_count()} differ); "
            f"{_encode_again(tokens, manifest)}"
        ) from None
    now, before = options.content(), encoded.content()
    # Only options that the user set count: the others are taken from the manifest.
    changed = [name for name in now if name in options.model_fields_set and now[name] != before[name]]
    if changed:
        differences = ", ".join(f"tokens.{name} was {before[name]!r}, is {now[name]!r}" for name in changed)
        raise ConfigError(
            f"{tokens}: encoded with other options ({differences}): restore them, or {_encode_again(tokens, manifest)}"
        )
    return options.model_copy(update={name: getattr(encoded, name) for name in before})


def read_encoded(source: Path, tokens: Path, options: TokensConfig) -> Json:
    """The manifest of the sequences in `tokens`, if they are those of the table `source` with these options."""
    manifest = read_manifest(tokens)
    options = adopt_options(tokens, options)
    tokenizer_hash = hash_tokenizer(options)
    again = _encode_again(tokens, {"source": source}, options.tokenizer)
    if manifest["tokenizer"] != tokenizer_hash:
        raise ConfigError(f"{tokens}: encoded with another tokenizer or template than {options.tokenizer}'s: {again}")
    read = open_source(source, tokenizer_hash, options)
    encoded = set(pl.read_parquet(tokens / ITEMS)["key"].to_list())
    keys = set(read.keys())
    # The key of a pair depends on its recorded ids; without the experience table only the ids of pairs can be compared.
    lacks_table = keys != encoded and read.is_pairs and read.lacks_recorded()
    if keys == encoded or (lacks_table and _read_pair_ids(source) == _read_encoded_ids(tokens)):
        return manifest
    raise TableError(
        f"{tokens}: not the sequences of {source} as it is: {len(keys - encoded):,} of its {len(keys):,} items are not "
        f"among them, {len(encoded - keys):,} are of other items: {again}"
    )


def _read_pair_ids(pairs: Path) -> set[str]:
    return {name for batch in pair_batches(pairs, ["id"]) for name in batch.column("id").to_pylist()}


def _read_encoded_ids(tokens: Path) -> set[str]:
    """The ids of the items of the last run. A pair's id is a hash of its content."""
    keys = pl.scan_parquet(tokens / ITEMS)
    return set(scan_cache(tokens).join(keys, on="key", how="semi").select("id").collect()["id"].to_list())


def _encode_again(tokens: Path, manifest: Json, tokenizer: str | None = "DIR") -> str:
    return f"pairwright tokens {manifest['source']} --tokenizer {tokenizer} -o {tokens} encodes them again"

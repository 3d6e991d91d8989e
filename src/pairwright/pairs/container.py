"""`Pairs`, the Python interface to a pairs table, and `make_pairs`, which builds one from experience tables."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from pairwright.config.config_file import adjust_config
from pairwright.engines.progress import Progress, progress_of
from pairwright.errors import ConfigError, TableError
from pairwright.pairs.build import build_pairs
from pairwright.pairs.funnel import read_funnel
from pairwright.pairs.lineage import LINEAGE_FILE, source_tables, table_references
from pairwright.pairs.options import pair_options
from pairwright.pairs.pair_stats import Finding, lint_pairs, pair_statistics
from pairwright.pairs.pair_table import FILE_NAME, PAIR_SCHEMA, count_pairs, pair_batches, pairs_of_batch, write_pairs
from pairwright.paths import Place, place, write_json
from pairwright.records.experience import Pair
from pairwright.records.messages import Json
from pairwright.store.arrow import import_datasets
from pairwright.store.conditions import parse_where
from pairwright.store.row_access import Chunk, RowAccess, join_conditions
from pairwright.store.table import Table

if TYPE_CHECKING:
    import datasets

    from pairwright import Encoded, ExportSummary, HubSummary

AnyTable = Table | str | os.PathLike[str]


class Pairs(RowAccess[Pair]):
    """Preference pairs in a folder: a lazily read sequence of `Pair`.

    Args:
        path: The folder, or an address such as s3://bucket/runs/first/pairs.

    Raises:
        TableError: There are no pairs in the folder.

    >>> import pairwright as pw
    >>> pairs = pw.Pairs("runs/first/pairs")
    >>> len(pairs), pairs[0].chosen[0].text, len(pairs.filter("gap > 5"))
    (4, 'it is red', 0)
    """

    _shown_columns = ("task", "strategy", "gap", "split", "prompt", "chosen", "rejected")

    def __init__(self, path: str | os.PathLike[str] | Place) -> None:
        self.path: Place = place(path)
        self._where: str | None = None
        if not self.path.exists() or not (self.path.is_file() or (self.path / FILE_NAME).exists()):
            raise TableError(
                f"{self.path}: no pairs here; build some with pairwright.Table(...).pairs({str(self.path)!r}), or: "
                f"pairwright pairs build EXPERIENCE -o {self.path}"
            )

    def filter(self, where: str) -> "Pairs":
        """Return a view of the pairs that satisfy a condition, e.g. "gap > 0.2 AND split = 'train'"."""
        parse_where(where, PAIR_SCHEMA, option="filter")
        view = Pairs(self.path)
        view._where = join_conditions(self._where, where)
        return view

    def scan(self, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows as record batches; reads only `columns`, by default all."""
        if self._where is None:
            yield from pair_batches(self.path, columns)
            return
        import polars as pl

        # The condition may need columns that were not requested: they are read, but not returned.
        condition = parse_where(self._where, PAIR_SCHEMA, option="filter")
        names = PAIR_SCHEMA.names if columns is None else list(columns)
        for batch in pair_batches(self.path, list(dict.fromkeys([*names, *condition.meta.root_names()]))):
            holds = pl.DataFrame(batch).select(condition).to_series().to_arrow()
            yield batch.filter(holds).select(names)

    def to_arrow(self) -> pa.Table:
        return pa.Table.from_batches(self.scan(), schema=PAIR_SCHEMA)

    def to_hf(self) -> "datasets.Dataset":
        """Return the pairs as a Hugging Face dataset with the columns and messages that TRL's DPOTrainer expects."""
        with TemporaryDirectory() as folder:
            lines = Path(folder) / "pairs.jsonl"
            self.export("trl", lines)
            rows = [msgspec.json.decode(line) for line in lines.read_bytes().splitlines()]
        return import_datasets().Dataset.from_list(rows)

    @property
    def funnel(self) -> Json:
        """The funnel of the build: counts of inputs, outputs and dropped items by reason."""
        return read_funnel(self.path)

    def stats(self) -> Json:
        """Return counts, gaps, lengths, duplicates and splits."""
        return pair_statistics(self.on_disk())

    def lint(self, *, max_length_effect: float = 0.5, max_near: float = 0.2) -> list[Finding]:
        """Return the problems to fix before training on these pairs; an empty list if there are none."""
        return lint_pairs(self.on_disk(), max_length_effect=max_length_effect, max_near=max_near)

    def export(self, target: str, output: str | os.PathLike[str], **options: Any) -> "ExportSummary":
        """Write the pairs for another tool.

        Args:
            target: "trl", "nemo-rl-preference", "openai-preference", "parquet", ...: see docs/reference/exports.md.
            output: The file (for "hf": the folder) to write.
            **options: Fields of ExportOptions: `split`, `history`, `arguments`, `needs_rows`.
        """
        import pairwright  # lazy: pairs/ must not import export/

        return pairwright.export_pairs(self, target, output, **options)

    def push(self, repo: str, **options: Any) -> "HubSummary":
        """Push the pairs to a dataset repository of the Hub, with a card; `pairwright.pull` gets them back.

        Args:
            repo: Id of the repository, such as "me/pairs"; it is created if it is missing.
            **options: `private`, `revision`, `license`, `token`: see docs/how-to/share.md.
        """
        import pairwright  # lazy: pairs/ must not import export/

        return pairwright.push(self.on_disk(), repo, **options)

    def encode(
        self, tokenizer: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, **options: Any
    ) -> "Encoded":
        """Return these pairs as tokens; see `pairwright.encode` for the arguments."""
        import pairwright  # lazy: pairs/ must not import tokens/

        return pairwright.encode(self, tokenizer, output, **options)

    def save(self, output: str | os.PathLike[str] | Place) -> "Pairs":
        """Write these pairs, with the filter applied, to a new folder."""
        folder = place(output)
        write_pairs(folder, self.scan())
        references = table_references(source_tables(self.path), folder)
        write_json(folder / LINEAGE_FILE, {"tables": references})
        return Pairs(folder)

    def on_disk(self) -> Place:
        """Return a folder with exactly these pairs; a filtered view is written to a subfolder of `path`."""
        if self._where is None:
            return self.path
        # Named by the condition, so that equal views share a folder.
        name = hashlib.sha256(self._where.encode()).hexdigest()[:16]
        return self.save(self.path / "filtered" / name).path

    def _chunks(self) -> Iterator[Chunk]:
        # Rows are counted only with a filter; without one the Parquet footer has the number.
        narrow = (batch.num_rows for batch in self.scan(columns=["id"]))
        yield (count_pairs(self.path) if self._where is None else sum(narrow)), self.scan

    def _decode(self, batch: pa.RecordBatch) -> list[Pair]:
        return pairs_of_batch(batch)

    def __repr__(self) -> str:
        where = "" if self._where is None else f".filter({self._where!r})"
        return f"Pairs({str(self.path)!r}){where}"


def make_pairs(
    tables: AnyTable | Sequence[AnyTable],
    output: str | os.PathLike[str] | None = None,
    *,
    strategy: str | None = None,
    min_gap: float | None = None,
    seed: int = 0,
    progress: bool | Progress = False,
    **options: Any,
) -> Pairs:
    """Build preference pairs from experience tables: candidates of one task, step and prompt, compared by reward.

    Args:
        tables: A table, its folder, or a list of them. A filtered table gives pairs of only its own rows.
        output: Folder of the pairs; by default `pairs` beside the first table. Existing pairs are replaced.
        strategy: "all", "best-worst", "stratified", "divergence", "teachers", "imported": docs/reference/pairs.md. By
            default that of the preset, else "all".
        min_gap: Minimum difference of rewards, by default the value of the preset, else 0. Ties are never paired.
        seed: Seed of the sample and of the split.
        progress: True prints progress to stderr; a function is called with the number of pieces done and in total.
        **options: Every other option of the `pairs` section: `validation`, `max_pairs`, `weight`, `where`, ...

    Returns:
        The pairs. If there are none, `pairs.funnel["hint"]` says what to change.

    >>> import pairwright as pw
    >>> pairs = pw.make_pairs("runs/first/experience", strategy="best-worst", min_gap=0.1)
    >>> len(pairs), pairs.funnel["pairs"], pairs[0].gap
    (4, 4, 1.0)
    """
    named = [tables] if isinstance(tables, Table | str | os.PathLike) else list(tables)
    if not named:
        raise ConfigError("tables: expected an experience table, its folder, or a list of them")
    opened = [table if isinstance(table, Table) else Table(table, create=False) for table in named]
    # The build reads whole tables: the condition of filtered ones becomes its `where`.
    conditions = {table.where for table in opened} - {None}
    if len(conditions) > 1 or (conditions and any(table.where is None for table in opened)):
        raise ConfigError("tables: all of them need the same filter; build the pairs of each separately")
    for condition in conditions:
        options["where"] = join_conditions(options.get("where"), str(condition))
    for score in {table.score_name for table in opened} - {None}:
        if options.setdefault("score", score) != score:
            raise ConfigError("score: the tables are views with another score; build the pairs of each separately")
    # Only explicit values: a default would override the preset.
    options |= {key: value for key, value in (("strategy", strategy), ("min_gap", min_gap)) if value is not None}
    config = adjust_config(seed=seed, pairs=options)
    folder = place(output) if output is not None else opened[0].path.parent / "pairs"
    whole = [Table(table.path, create=False) for table in opened]
    build_pairs(whole, folder, pair_options(config), progress=progress_of(progress, "built pieces:"))
    return Pairs(folder)

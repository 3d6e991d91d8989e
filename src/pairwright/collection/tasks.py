"""Tasks from a dataset: JSON, JSON Lines, CSV, Parquet, or a Hugging Face dataset on disk.

The id of a task does not change when the dataset is reordered or extended: it is a field of the row, or a hash of its
content. Duplicate ids are an error, since records of different tasks would be mixed.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from pairwright.config import CollectConfig
from pairwright.errors import ConfigError, SourceError
from pairwright.paths.parquet_files import parquet_batches
from pairwright.records.messages import Json, content_hash
from pairwright.sources.fields import identifier
from pairwright.sources.files import document, is_json_lines, line_units
from pairwright.sources.format import Rejected

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from pairwright.collection.proxy.agent_endpoint import RunAddress

_ROWS = 1024
_LISTS = ("data", "tasks", "rows", "examples")  # keys under which a JSON document may hold its list of tasks


@dataclass(frozen=True)
class Task:
    """One problem for the agent, in one run: `task["question"]` is a field of its dataset row."""

    id: int | str
    data: Json = field(default_factory=dict)
    batch: int | str = 0
    run: int = 0
    seed: int = 0
    endpoint: "RunAddress | None" = field(default=None, repr=False, compare=False)

    @property
    def base_url(self) -> str:
        """An OpenAI-compatible endpoint for this run: the policy answers, and every call is recorded."""
        return self._address.base_url

    @property
    def api_key(self) -> str:
        """The API key of the endpoint; it expires with the run."""
        return self._address.api_key

    @property
    def client(self) -> "AsyncOpenAI":
        """An `openai.AsyncOpenAI` client of the endpoint."""
        return self._address.client

    @property
    def _address(self) -> "RunAddress":
        if self.endpoint is None:
            raise ConfigError(f"task {self.id!r}: has an endpoint only while a collection runs it")
        return self.endpoint

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.data.get(key, default)


def run_seed(seed: int, batch: int | str, task: int | str, run: int) -> int:
    """Return the seed of one run of one task; 63 bits."""
    # 63 of 64 bits, so that the seed is not negative as a signed 64-bit integer
    return int(content_hash("run", seed, batch, task, run)[:16], 16) >> 1


def load_tasks(config: CollectConfig, rows: Iterable[Json] | None = None) -> list[Task]:
    """Return the tasks of a configuration, or of `rows`, which override its dataset."""
    if rows is None and config.dataset is None:
        if config.num_tasks is None:
            raise ConfigError("collect: expected a dataset of tasks, or num_tasks")
        return [Task(number) for number in range(config.num_tasks)]
    where = "tasks" if rows is not None else str(config.dataset)
    rows = rows if rows is not None else read_task_rows(Path(str(config.dataset)), split=config.split)
    tasks: list[Task] = []
    first_rows: dict[int | str, int] = {}  # the row in which each id was first seen
    num_copies: dict[str, int] = {}  # how often each content was seen
    for number, row in enumerate(rows, start=1):
        if config.num_tasks is not None and len(tasks) >= config.num_tasks:
            break
        task = identifier(row.get(config.id_field))
        if task is None:  # no id: a hash of the row; equal rows get .2, .3, ...
            key = content_hash(row)[:16]
            num_copies[key] = num_copies.get(key, 0) + 1
            task = key if num_copies[key] == 1 else f"{key}.{num_copies[key]}"
        if task in first_rows:
            raise SourceError(
                f"{where}: row {number} has the {config.id_field} {task!r} of row {first_rows[task]}: give each its own"
            )
        first_rows[task] = number
        tasks.append(Task(task, row))
    if not tasks:
        raise SourceError(f"{where}: no tasks in it")
    return tasks


def read_task_rows(path: Path, *, split: str | None = None) -> Iterator[Json]:
    """Read the rows of a dataset, by type of file; a malformed row is an error with its position."""
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder")
    if path.is_dir():
        yield from _hf_rows(path, split)
    elif path.suffix == ".csv":
        yield from _csv_rows(path)
    elif path.suffix in (".parquet", ".pq"):
        yield from _parquet_rows(path)
    else:
        yield from _json_rows(path)


def _json_rows(path: Path) -> Iterator[Json]:
    if is_json_lines(path):
        for unit in line_units(path):
            if isinstance(unit, Rejected):
                raise SourceError(f"{path}:{unit.line}: {unit.reason}")
            origin, value = unit
            yield _row(value, f"{path}:{origin.line}")
        return
    value = document(path)
    if isinstance(value, Rejected):
        raise SourceError(f"{path}: {value.reason}")
    if isinstance(value, dict):
        # exactly one such list: two would be ambiguous
        listed = [value[name] for name in _LISTS if isinstance(value.get(name), list)]
        value = listed[0] if len(listed) == 1 else value
    if not isinstance(value, list):
        raise SourceError(f"{path}: expected a list of tasks, or an object with one under {', '.join(_LISTS)}")
    for number, item in enumerate(value):
        yield _row(item, f"{path}[{number}]")


def _csv_rows(path: Path) -> Iterator[Json]:
    # utf-8-sig drops the byte order mark that spreadsheets write
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        try:
            for row in reader:
                # csv marks extra cells with the key None, and missing cells with the value None
                if None in row or None in row.values():
                    width = len(reader.fieldnames or ())
                    raise SourceError(f"{path}:{reader.line_num}: expected {width} cells as in the first line")
                yield dict(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise SourceError(f"{path}:{reader.line_num}: {error}") from None


def _parquet_rows(path: Path) -> Iterator[Json]:
    try:
        for batch in parquet_batches(path, None, _ROWS):
            yield from _plain(batch.to_pylist(), str(path))
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(f"{path}: not a Parquet file that can be read: {error}") from error


def _hf_rows(path: Path, split: str | None) -> Iterator[Json]:
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError:
        raise SourceError(f"{path}: a folder is read as a Hugging Face dataset: pip install 'pairwright[hf]'") from None
    try:
        dataset = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: not a dataset that `save_to_disk` wrote: {error}") from error
    if isinstance(dataset, DatasetDict):
        if split is None and len(dataset) > 1:
            raise ConfigError(f"{path}: has the splits {', '.join(dataset)}: say which with collect.split")
        if split is not None and split not in dataset:
            raise ConfigError(f"{path}: no split {split!r}, there are {', '.join(dataset)}")
        dataset = dataset[split or next(iter(dataset))]
    yield from _plain(dataset, str(path))


def _plain(rows: Iterable[Any], where: str) -> Iterator[Json]:
    """Convert rows to JSON values: dates and similar values become text."""
    for row in rows:
        try:
            yield _row(msgspec.to_builtins(row), where)
        except (TypeError, ValueError) as error:
            raise SourceError(f"{where}: a value that JSON does not have: {error}") from None


def _row(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise SourceError(f"{where}: expected an object with the fields of a task, got {type(value).__name__}")
    return value

"""Scores of one model on tasks: from a score file (CSV, JSON, JSON Lines) or from an experience table.

    {"task": "ticket-17", "run": 0, "score": 0.8, "steps": 4}

A row is one attempt (run) at a task; its numbers are metrics. In an experience table a metric is the reward, a
component of it, one of the record's metrics, or a stored score (`judge`, `judge.helpful`). Runs with the same number
are compared with each other, since they had the same seed. A cell that is empty, null, NaN or infinite is a missing
score: it is stored as None, not skipped.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pairwright.errors import ConfigError, SourceError
from pairwright.records.json_text import from_json
from pairwright.sources.field_map import NO_MAP
from pairwright.sources.fields import BadRecord, kind_of
from pairwright.sources.files import document, line_units
from pairwright.sources.format import Rejected
from pairwright.sources.tables import table_rows
from pairwright.store.score_log import stored_scores
from pairwright.store.table import Table

Reduce = Literal["refuse", "mean", "last", "sum", "max", "min"]
Key = tuple[str, int]  # task and run
# Columns that identify a row; all others are metrics
_IDENTITY = ("task", "task_id", "id", "run")
_ENDINGS = (".csv", ".json", ".jsonl")


@dataclass(frozen=True)
class Scores:
    """The metrics of each run of each task, in the order in which they were read."""

    source: str
    runs: dict[Key, dict[str, float | None]]

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics for which any run has a number."""
        return list(
            dict.fromkeys(name for row in self.runs.values() for name, value in row.items() if value is not None)
        )

    def column(self, metric: str) -> dict[Key, float | None]:
        return {key: row[metric] for key, row in self.runs.items() if metric in row}


def read_scores(path: Path, *, where: pl.Expr | None = None, reduce: Reduce = "refuse") -> Scores:
    """Read the scores of a file or of an experience table's folder."""
    if (path / "table.json").exists():
        return _from_table(path, where, reduce)
    if where is not None:
        raise ConfigError(f"{path}: a condition needs an experience table, this is a score file")
    if path.is_dir():
        raise SourceError(f"{path}: no experience table in this folder; expected one, or a .csv, .json or .jsonl file")
    if path.suffix not in _ENDINGS:
        raise ConfigError(
            f"{path}: unknown ending {path.suffix!r}, expected an experience table, {', '.join(_ENDINGS)}"
        )
    try:
        rows = ((f"row {number}", row) for number, row in enumerate(_file_rows(path), 1))
        return scores_of(rows, source=str(path), reduce=reduce)
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except (OSError, BadRecord) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error


def scores_of(rows: Iterable[tuple[str, Mapping[str, Any]]], *, source: str, reduce: Reduce = "refuse") -> Scores:
    """Scores from rows with a task, optionally a run, and numbers; each row comes with its position for errors."""
    rows_by_run: dict[Key, list[dict[str, float | None]]] = {}
    for where, row in rows:
        key = _key(row, source, where)
        if None in row:  # csv puts cells beyond the header under the key None
            raise SourceError(f"{source}: {where}: more cells than the header has names")
        metrics = {name: _number(value) for name, value in row.items() if name not in _IDENTITY}
        rows_by_run.setdefault(key, []).append(metrics)
    if not rows_by_run:
        raise SourceError(f"{source}: no scores")
    return Scores(source, {key: _reduce_runs(rows, key, source, reduce) for key, rows in rows_by_run.items()})


def _from_table(path: Path, where: pl.Expr | None, reduce: Reduce) -> Scores:
    columns = ["uid", "task", "run", "step", "reward", "reward_components", "metrics"]
    stored = stored_scores(path)
    rows = []
    for batch in Table(path, create=False).scan(where=where, columns=columns):
        for row in batch.to_pylist():
            # the reward comes last, so that a component or metric named "reward" cannot replace it
            numbers = _flat(row["metrics"]) | _flat(row["reward_components"]) | stored.get(row["uid"], {})
            numbers |= {"reward": row["reward"]}
            rows.append((row["step"], f"step {row['step']}", {**numbers, "task": row["task"], "run": row["run"]}))
    rows.sort(key=lambda row: row[0])  # stable: `last` is the last step, however the rows were appended
    return scores_of(((place, row) for _, place, row in rows), source=str(path), reduce=reduce)


def _flat(text: str | None) -> dict[str, Any]:
    """The numbers and booleans of a JSON object; other values are not metrics."""
    value = from_json(text) if text else {}
    return {name: item for name, item in value.items() if isinstance(item, int | float)} if type(value) is dict else {}


def _file_rows(path: Path) -> Iterator[Any]:
    """Yield the rows of a score file, of any encoding and separator."""
    if path.suffix == ".jsonl":
        units = [
            (f"{path}:{unit.line}", unit) if isinstance(unit, Rejected) else ("", unit[1]) for unit in line_units(path)
        ]
    elif path.suffix == ".csv":
        units = [(str(path), row) for row in table_rows(path, NO_MAP)]
    else:
        value = document(path)
        if not isinstance(value, list | Rejected):
            raise SourceError(f"{path}: expected a list of rows, got {kind_of(value)}")
        units = [(str(path), row) for row in (value if isinstance(value, list) else [value])]
    for where, row in units:
        if isinstance(row, Rejected | BadRecord):
            raise SourceError(f"{where}: {row.reason if isinstance(row, Rejected) else row}")
        yield row


def _key(row: Any, source: str, where: str) -> Key:
    if not isinstance(row, Mapping):
        raise SourceError(f"{source}: {where}: expected a task with its scores, got {row!r:.120}")
    # the first of task, task_id and id that is set
    task = next((row[name] for name in _IDENTITY[:3] if row.get(name) not in (None, "")), None)
    if not isinstance(task, str | int) or isinstance(task, bool):
        raise SourceError(f"{source}: {where}: no task; expected a text or a whole number under task, task_id or id")
    run = row.get("run")
    try:
        number = 0 if run in (None, "") else int(str(run))
    except ValueError:
        raise SourceError(f"{source}: {where}: run is {run!r:.120}, expected a whole number") from None
    return str(task), number


def _number(value: Any) -> float | None:
    """A finite number, or None: text, lists and NaN are not scores."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _reduce_runs(rows: list[dict[str, float | None]], key: Key, source: str, reduce: Reduce) -> dict[str, float | None]:
    if len(rows) == 1:
        return rows[0]
    if reduce == "refuse":
        raise SourceError(
            f"{source}: run {key[1]} of task {key[0]!r} has {len(rows)} scores: say which counts with "
            "--reduce mean, last, sum, max or min, or leave the others out"
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _reduce_values([row[name] for row in rows if name in row], reduce) for name in names}


def _reduce_values(values: list[float | None], reduce: Reduce) -> float | None:
    """Reduce several scores of a run to one; None if any is missing, except for `last`."""
    if reduce == "last":
        return values[-1]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return None
    if reduce in ("max", "min"):
        return max(numbers) if reduce == "max" else min(numbers)
    # exact in the decimals as written: 0.1 + 0.2 is 0.3, in any order
    total = sum((Fraction(repr(number)) for number in numbers), Fraction())
    return float(total / len(numbers) if reduce == "mean" else total)

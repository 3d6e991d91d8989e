"""Writes experience tables of any size, with eight candidates per task, column by column without building records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from bench.trace_files import WORDS
from pairwright import Table
from pairwright.pairs.candidates.pair_ids import hex_digits, seeded_draws
from pairwright.store.columns import SCHEMA

PER_TASK = 8
ROWS_PER_PART = 1_000_000
ROWS_PER_BATCH = 65_536


def write_candidates(folder: Path, num_rows: int, *, rows_per_part: int = ROWS_PER_PART) -> None:
    """Write a table with about 900 characters of text per row. The runs of a task are far apart, as in real tables."""
    table = Table(folder)
    for start in range(0, num_rows, rows_per_part):
        table.write_part(_batches(start, min(num_rows, start + rows_per_part), num_rows))


def _batches(start: int, stop: int, num_rows: int) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(start)
    sentences = [" ".join(rng.choice(WORDS, 70)) for _ in range(2_000)]
    texts = pa.array(sentences, pa.large_string())
    num_tasks = max(1, num_rows // PER_TASK)
    for first in range(start, stop, ROWS_PER_BATCH):
        numbers = np.arange(first, min(stop, first + ROWS_PER_BATCH))
        tasks, runs = numbers % num_tasks, numbers // num_tasks
        prompt = _joined('[{"role":"user","content":"task ', tasks, ": ", texts.take(tasks % 2_000), '"}]')
        answer = _joined(
            '[{"role":"assistant","content":"', texts.take(rng.integers(0, 2_000, len(numbers))), " ", numbers, '"}]'
        )
        yield _batch(tasks, runs, prompt, answer, rng)


def _batch(tasks: Any, runs: Any, prompt: pa.Array, answer: pa.Array, rng: np.random.Generator) -> pa.RecordBatch:
    hashes = [_hashes(1, tasks), _hashes(2, tasks * PER_TASK + runs)]
    columns = {
        "uid": _joined('["b","', tasks, '",', runs, ',0,"s"]'), "tid": _joined('["b","', tasks, '"]'), "batch": "b",
        "task": _joined(tasks), "run": runs, "step": np.zeros_like(runs), "kind": "single_turn",
        "reward": rng.integers(0, 1000, len(runs)) / 1000, "prompt_hash": hashes[0], "completion_hash": hashes[1],
        "num_prompt_messages": np.ones_like(runs), "num_completion_messages": np.ones_like(runs),
        "num_completion_characters": pc.binary_length(answer), "num_tool_calls": np.zeros_like(runs),
        "num_errors": np.zeros_like(runs), "prompt": prompt, "completion": answer,
    }  # fmt: skip
    arrays = []
    for field in SCHEMA:
        value = columns.get(field.name)
        if value is None:
            arrays.append(pa.nulls(len(runs), field.type))
        else:
            arrays.append(
                pa.array([value] * len(runs), field.type)
                if isinstance(value, str)
                else pa.array(value).cast(field.type)
            )
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _joined(*parts: Any) -> pa.Array:
    texts = [
        pa.scalar(part, pa.large_string()) if isinstance(part, str) else pa.array(part).cast(pa.large_string())
        for part in parts
    ]
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _hashes(kind: int, numbers: Any) -> pa.Array:
    words = np.stack([numbers, np.full_like(numbers, kind)], axis=1).astype(np.uint64)
    mixed = np.stack([seeded_draws(kind, words), seeded_draws(kind + 9, words)], axis=1)
    return pl.Series(hex_digits(mixed)).to_arrow().cast(pa.string())

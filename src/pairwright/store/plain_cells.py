"""Plain rollouts as cells of the table: the columns of columns.py, made without building records first.

For each line that sources/nemo_gym_plain.py calls plain, `PlainCells.row` gives what `to_batch` would have put into the
row; columns that it does not name are constant or null for such lines. tests/store/test_plain_lane.py compares the two.
"""

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pairwright.canonical import buffered_hash, digest
from pairwright.jsontext import encode, to_json
from pairwright.places import Place
from pairwright.sources.format import Origin, label_of, suffix_of
from pairwright.sources.nemo_gym import NAME, batch_of
from pairwright.sources.nemo_gym_plain import PlainRollouts
from pairwright.store.column_arrays import column_array
from pairwright.store.columns import SCHEMA

# The columns that differ from row to row, in the order of a row's cells.
VARYING = (
    "uid", "tid", "task", "run", "kind", "reward", "model_version", "prompt_hash", "completion_hash",
    "num_prompt_messages", "num_completion_messages", "num_completion_characters", "num_tool_calls", "num_errors",
    "source_line", "prompt", "tools", "completion", "errors", "info",
)  # fmt: skip
UID, COMPLETION = VARYING.index("uid"), VARYING.index("completion")
Cells = tuple[Any, ...]


class PlainCells:
    """Reads the plain lines of one file into cells."""

    def __init__(self, path: Place, label: str = "") -> None:
        self.file = str(path)
        self._batch = batch_of(self.file)
        self._label = label_of(Origin(self.file, label=label))
        self._constant = {
            "batch": self._batch, "step": 0, "source_format": NAME, "source": self.file,
        }  # fmt: skip
        self._read = PlainRollouts().read
        self._task = ""
        self._tid = ""
        self._hash = buffered_hash()
        self._fixed: dict[int, dict[str, pa.Array]] = {}
        self._models: dict[str | None, str | None] = {None: None}

    def row(self, number: int, line: bytes) -> Cells | None:
        """The cells of a plain line; None if it is for the general reader."""
        found = self._read(line)
        if found is None:
            return None
        given, reward, info = found.given, found.reward, found.info
        completion, canonical, num_turns, num_characters, num_calls = found.answer
        if reward is not None and not math.isfinite(reward):
            return None
        if found.task != self._task:
            self._task, self._tid = found.task, encode((self._batch, found.task)).decode()
        model = self._models.get(found.model) or self._model_version(found.model)
        run = number - 1 if found.run is None else found.run
        suffix = suffix_of(self._hash, given.hash, completion, [None, None, reward, None, info, self._label])
        return (
            f'{self._tid[:-1]},{run},0,"{suffix}"]',
            self._tid,
            self._task,
            run,
            "single_turn" if num_turns == 1 else "multi_turn",
            reward,
            model,
            given.prompt_hash,
            digest(canonical),
            len(given.messages),
            num_turns,
            num_characters,
            num_calls,
            len(found.errors),
            number,
            given.prompt if given.messages else None,
            given.tools.text if given.tools.tools else None,
            completion,
            encode(found.errors) if found.errors else None,
            to_json(info) if info else None,
        )

    def _model_version(self, model: str | None) -> str | None:
        if model is None:
            return None
        if len(self._models) > 64:
            self._models.clear()
        text = self._models[model] = encode(model).decode()
        return text

    def batch(self, rows: Sequence[Cells]) -> pa.RecordBatch:
        """Rows as one record batch with the table's schema."""
        arrays = dict(self._fixed_columns(len(rows)))
        for name, values in zip(VARYING, zip(*rows, strict=True), strict=True):
            arrays[name] = column_array(values, SCHEMA.field(name).type)
        return pa.RecordBatch.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)

    def _fixed_columns(self, num_rows: int) -> dict[str, pa.Array]:
        """The columns that are the same in every batch of so many rows; nearly all batches are of one size."""
        if num_rows not in self._fixed:
            self._fixed = {num_rows: {field.name: pa.nulls(num_rows, field.type) for field in SCHEMA}}
            for name, value in self._constant.items():
                self._fixed[num_rows][name] = column_array([value] * num_rows, SCHEMA.field(name).type)
        return self._fixed[num_rows]

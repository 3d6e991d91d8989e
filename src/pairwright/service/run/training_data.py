"""The files of a dataset as what the trainer reads, row by row. A row that cannot be used ends the job with its place.

    dpo   {prompt, chosen_response, rejected_response}   ->  OUT/pairs, a pairs table with both splits
    sft   {prompt, completion} or {messages}             ->  OUT/experience and OUT/validation, experience tables

Training and validation files give the splits; nothing is dropped or reordered.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from pairwright.errors import PairwrightError, RecordError, SourceError
from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
from pairwright.records.canonical import content_hash
from pairwright.records.experience import Experience, Pair
from pairwright.sources.datasets import customizer_rows as customizer
from pairwright.sources.datasets.openai_chat import tools_of
from pairwright.sources.datasets.preference_rows import answer_from, prompt_from
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, build, split_at_first_answer
from pairwright.sources.shapes.chat_messages import messages_from_chat
from pairwright.store.arrow import to_batch
from pairwright.store.table import Table

ROWS_PER_BATCH = 1024
MAX_LINE_BYTES = 64 * 2**20
SFT_TABLES = {"train": "experience", "validation": "validation"}
Record = TypeVar("Record")


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset: its path there, where its bytes are, and its split."""

    path: str
    blob: Path
    split: str


def write_training_data(files: Sequence[DataFile], output: Path, *, training_type: str) -> dict[str, int]:
    """Write the tables of a dataset below `output`; returns the number of rows of each split."""
    counts = {"train": 0, "validation": 0}
    if training_type == "dpo":
        write_pairs(output / "pairs", _pair_batches(files, counts))
    else:
        for split, name in SFT_TABLES.items():
            chosen = [file for file in files if file.split == split]
            with Table(output / name) as table:
                table.write_part(_experience_batches(chosen, counts))
    if not counts["train"]:
        raise PairwrightError("the training files of the dataset have no rows")
    return counts


def _pair_batches(files: Sequence[DataFile], counts: dict[str, int]) -> Iterator[pa.RecordBatch]:
    seen: Counter[str] = Counter()
    for rows in _batches(files, _preference, counts):
        yield pairs_to_batch([_once(pair, seen) for pair in rows])


def _experience_batches(files: Sequence[DataFile], counts: dict[str, int]) -> Iterator[pa.RecordBatch]:
    for rows in _batches(files, _example, counts):
        yield to_batch(rows)


def _batches(
    files: Sequence[DataFile], read: Callable[[dict[str, Any], DataFile, int], Record], counts: dict[str, int]
) -> Iterator[list[Record]]:
    pending: list[Record] = []
    for file in files:
        for number, row in _rows(file):
            try:
                pending.append(read(row, file, number))
            except (BadRecord, RecordError) as error:
                raise SourceError(f"{file.path}:{number}: {error}") from None
            counts[file.split] += 1
            if len(pending) >= ROWS_PER_BATCH:
                yield pending
                pending = []
    if pending:
        yield pending


def _rows(file: DataFile) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(file.blob, "rb") as opened:
        number = 0
        while line := opened.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise SourceError(f"{file.path}:{number}: a row of more than {MAX_LINE_BYTES:,} bytes")
            if not line.strip():
                continue
            try:
                row = msgspec.json.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise SourceError(f"{file.path}:{number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise SourceError(f"{file.path}:{number}: expected an object, got {type(row).__name__}")
            yield number, row


def _preference(row: dict[str, Any], file: DataFile, number: int) -> Pair:
    if not customizer.matches(row):
        raise BadRecord(f"expected the keys prompt, chosen_response and rejected_response, got {sorted(row)[:10]}")
    (found,) = customizer.read_unit(row, Origin(file.path, number, number - 1), Options())
    if not isinstance(found, Experience):
        raise BadRecord(found.reason)
    assert found.chosen is not None
    assert found.rejected is not None
    chosen, rejected = found.chosen.messages, found.rejected.messages
    if chosen == rejected:
        raise BadRecord("chosen_response and rejected_response are the same")
    better, worse = found.chosen.reward, found.rejected.reward
    if better is None or worse is None:
        better, worse = 1.0, 0.0
    if not better > worse:
        raise BadRecord(f"the chosen response has reward {better!r}, the rejected one {worse!r}")
    return Pair(
        id=pair_id(found.prompt, found.tools, chosen, rejected),
        prompt=found.prompt,
        tools=found.tools,
        chosen=chosen,
        rejected=rejected,
        chosen_reward=better,
        rejected_reward=worse,
        chosen_eid=found.eid,
        rejected_eid=found.eid,
        gap=better - worse,
        strategy="given",
        split="validation" if file.split == "validation" else "train",
    )


def _once(pair: Pair, seen: Counter[str]) -> Pair:
    """A row that stands in a dataset twice is two rows, each in its own split: the second gets an id of its own."""
    seen[pair.id] += 1
    if seen[pair.id] == 1:
        return pair
    return msgspec.structs.replace(pair, id=content_hash(pair.id, seen[pair.id]))


def _example(row: dict[str, Any], file: DataFile, number: int) -> Experience:
    if "messages" in row:
        prompt, answer = split_at_first_answer(messages_from_chat(row["messages"], "messages"))
    elif "prompt" in row and "completion" in row:
        prompt, answer = prompt_from(row["prompt"], "prompt"), answer_from(row["completion"], "completion")
    else:
        raise BadRecord(f"expected the keys prompt and completion, or messages, got {sorted(row)[:10]}")
    if not prompt or not answer or not answer[0].is_generated:
        raise BadRecord("expected a prompt and an answer of the assistant after it")
    if not any(message.text.strip() or message.tool_calls for message in answer):
        raise BadRecord("the answer is empty")
    origin = Origin(file.path, number, number - 1)
    return build("customizer", origin, task=None, prompt=prompt, completion=answer, tools=tools_of(row), reward=1.0)

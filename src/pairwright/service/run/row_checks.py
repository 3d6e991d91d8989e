"""Reads the rows of uploaded files as training will, and refuses the first that cannot be trained on.

Rows are read by `sources/`: for preferences whatever format is one there ({prompt, chosen_response, rejected_response},
TRL, OpenAI, HelpSteer3 ...), for demonstrations the format customizer-sft. Used when a job is submitted, and again by
its worker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pairwright.errors import SourceError
from pairwright.records.experience import Experience
from pairwright.records.messages import Message
from pairwright.sources.datasets import customizer_rows as customizer
from pairwright.sources.files import read_lines
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, read_file

# "text" is a prompt or answer outside any chat template.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "text"})
# The paths of blobs are none of the reader's business: a file is named by its path in the dataset.
_OPTIONS = Options()


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset: its path in the dataset, the blob with its content, and its split."""

    path: str
    blob: Path
    split: str


def check_rows(files: Sequence[DataFile], training_type: str, *, max_bytes: int | None = None) -> int:
    """Raise SourceError for the first row that cannot be trained on, with file, line and reason.

    Args:
        files: the files of a dataset.
        training_type: dpo or sft.
        max_bytes: how much of the files to read at most, from the start of each; None reads them whole.

    Returns:
        The number of rows that were read.
    """
    count = 0
    for file in files:
        layout = layout_of(file, training_type)
        if layout is None:
            continue
        whole = max_bytes is None or file.blob.stat().st_size <= max_bytes
        # Of a file above the limit, as many rows as fit at the size of its first ones.
        most = None if whole else _rows_within(file.blob, max_bytes or 0)
        for record in islice(read_file(file.blob, layout, _OPTIONS), most):
            if isinstance(record, Rejected):
                raise refuse_row(file.path, record.line, record.reason.replace(str(file.blob), file.path))
            check_record(record, training_type, file.path)
            count += 1
        if max_bytes is not None:
            max_bytes = max(1, max_bytes - file.blob.stat().st_size)
    return count


def layout_of(file: DataFile, training_type: str) -> Layout | None:
    """Return how a file is read, None for a file without rows. Raises SourceError for a file of something else."""
    name = customizer.NAME if training_type == "dpo" else customizer.SFT_NAME
    layout = detect(file.blob, name)
    if isinstance(layout, Rejected):
        if next(read_lines(file.blob), None) is None:
            return None
        raise refuse_row(file.path, layout.line, layout.reason.replace(str(file.blob), file.path))
    if training_type == "dpo":
        other = detect(file.blob)
        if isinstance(other, Layout) and _has_preferences(file.blob, other):
            return other
    if layout.format != name:
        raise SourceError(f"{file.path}: expected JSON Lines, got a file of the format {layout.format}")
    if layout.shape == "document" and next(read_lines(file.blob), None) is None:
        return None
    return layout


def check_record(record: Experience, training_type: str, path: str) -> None:
    """Raise SourceError if a record cannot be trained on."""
    line = record.source.line if record.source is not None else None
    for message in (*record.prompt, *record.completion):
        _check_role(message, path, line)
    if training_type != "dpo":
        return
    if record.chosen is None or record.rejected is None:
        raise refuse_row(path, line, "expected a preference: a prompt with a chosen and a rejected response")
    for name, side in (("chosen_response", record.chosen), ("rejected_response", record.rejected)):
        for message in side.messages:
            _check_role(message, path, line)
        if not any(message.is_generated and (message.text.strip() or message.tool_calls) for message in side.messages):
            raise refuse_row(path, line, f"{name}: the answer is empty")
    if record.chosen.messages == record.rejected.messages:
        raise refuse_row(path, line, "chosen_response and rejected_response are the same")
    chosen, rejected = record.chosen.reward, record.rejected.reward
    if chosen is not None and rejected is not None and chosen <= rejected:
        raise refuse_row(path, line, f"the chosen response has reward {chosen!r}, the rejected one {rejected!r}")


def refuse_row(path: str, line: int | None, reason: str) -> SourceError:
    return SourceError(f"{path}: {reason}" if line is None else f"{path}:{line}: {reason}")


def _check_role(message: Message, path: str, line: int | None) -> None:
    if message.role not in ROLES:
        raise refuse_row(path, line, f"role: got {message.role[:40]!r}, expected one of {', '.join(sorted(ROLES))}")


def _has_preferences(blob: Path, layout: Layout) -> bool:
    """Whether the first record that can be read in this layout is a preference."""
    records: Iterator[Experience | Rejected] = read_file(blob, layout, _OPTIONS)
    first = next((record for record in islice(records, 20) if isinstance(record, Experience)), None)
    return first is not None and first.chosen is not None and first.rejected is not None


def _rows_within(blob: Path, max_bytes: int) -> int:
    with open(blob, "rb") as file:
        start = file.read(min(max_bytes, 2**20))
    return max(1, max_bytes * max(1, start.count(b"\n")) // max(1, len(start)))

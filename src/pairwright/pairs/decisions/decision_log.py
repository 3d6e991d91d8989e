"""The file format of votes, ratings and exclusions: CSV with a header, appended line by line, read incrementally.

Every line ends with its time, which distinguishes a last line without line break from one that a crash cut off.
"""

import csv
import io
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from pairwright.errors import PairwrightError, SourceError
from pairwright.paths import Place, append_lines, repair_tail

# Also proves that a line is complete: no proper prefix of a time is a time.
_TIME = re.compile(rb"(^|,)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\r?$")
MAX_NAME = 100
MAX_TEXT = 2_000
MAX_ID = 10_000


@dataclass(frozen=True)
class Line:
    """One line of a file: its number, and its cells by column."""

    number: int
    cells: dict[str, str]


class DecisionLog:
    """A CSV file that people's decisions are appended to. Several processes and threads may use one file.

    path: the file; it is created with the first decision. An unfinished last line is removed on opening.
    columns: the names of the columns; the last is "time", which `append` fills in.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        assert columns[-1] == "time", "the time ends the line"
        self.path = path
        self._columns = tuple(columns)
        self._header = ",".join(columns).encode()
        self._lines: list[Line] = []
        self._offset = self._num_lines = 0  # of the part read so far
        self._file_id: tuple[int, int] | None = None
        self._lock = Lock()
        self.unfinished = repair_tail(path, header=self._header, is_whole=has_time).decode(errors="replace")
        """What was removed from the end of the file when it was opened: a line that was never saved."""

    def append(self, **cells: str) -> None:
        """Add a line durably: it is on disk when the call returns."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow([{**cells, "time": now}[name] for name in self._columns])
        append_lines(self.path, [text.getvalue().encode()], header=self._header, is_whole=has_time)

    def read(self) -> list[Line]:
        """Return all lines of the file, including those that other processes have added."""
        with self._lock:
            added = self._read_added()
            # Text after the last line break is still being written.
            whole = added[: added.rfind(b"\n") + 1]
            rows = read_csv(self.path, whole, self._num_lines + 1)
            if not self._offset and whole:
                next(rows)  # the header, which was checked when the file was opened
            self._lines += [Line(number, dict(zip(self._columns, row, strict=False))) for number, row in rows if row]
            self._offset += len(whole)
            self._num_lines += whole.count(b"\n")
            return list(self._lines)

    def _read_added(self) -> bytes:
        """Return the bytes added since the last read; all bytes if the file was replaced or truncated."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._file_id != (status.st_dev, status.st_ino) or status.st_size < self._offset:
                    self._lines, self._offset, self._num_lines = [], 0, 0
                    self._file_id = (status.st_dev, status.st_ino)
                file.seek(self._offset)
                return file.read()
        except FileNotFoundError:
            self._lines, self._offset, self._num_lines, self._file_id = [], 0, 0, None
            return b""
        except OSError as error:
            raise PairwrightError(f"{self.path}: {error.strerror or error}") from error


def has_time(line: bytes) -> bool:
    """Return whether a line is complete, i.e. ends with a time."""
    return bool(_TIME.search(line))


def read_csv(path: Place, content: bytes, first: int = 1) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of CSV text with their line numbers; raises SourceError that names the line."""
    number = first
    try:
        text = content.decode("utf-8-sig" if first == 1 else "utf-8")
        reader = csv.reader(io.StringIO(text, newline=""))
        for row in reader:
            number = first + reader.line_num - 1
            yield number, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path}:{number}: cannot be read: {error}") from error


def read_lines(path: Place, columns: Sequence[str]) -> list[Line]:
    """Read the complete lines of a local or remote file without repairing it; empty if there is no file.

    Raises SourceError if the file cannot be read, or a column is missing.
    """
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    end = content.rfind(b"\n") + 1
    is_torn = bool(content[end:]) and not has_time(content[end:])
    rows = read_csv(path, content[:end] if is_torn else content)
    header = next(rows, (1, []))[1]
    if not set(columns) <= set(header):
        raise SourceError(f"{path}:1: got columns {header}, expected {','.join(columns)}")
    return [Line(number, dict(zip(header, row, strict=False))) for number, row in rows if row]


def check_name(name: str) -> str:
    """Return a person's name in Unicode normal form; raises PairwrightError if it is empty, too long or multi-line."""
    return _check_text(name, what="name", most=MAX_NAME)


def check_reason(reason: str) -> str:
    """Return a reason in Unicode normal form; raises PairwrightError if it is empty, too long or multi-line."""
    return _check_text(reason, what="reason", most=MAX_TEXT)


def check_uid(uid: str) -> str:
    """Return the id of an experience; raises PairwrightError for an invalid id."""
    # Ids are JSON text, in which line breaks are escaped.
    if not uid or len(uid) > MAX_ID or any(letter in uid for letter in "\n\r\0"):
        raise PairwrightError(f"id: got {uid[:100]!r}, expected the uid of an experience")
    return uid


def _check_text(text: str, *, what: str, most: int) -> str:
    text = unicodedata.normalize("NFC", text.strip())
    is_odd = any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text)
    if not text or len(text) > most or is_odd:
        raise PairwrightError(f"{what}: got {text[:100]!r}, expected 1 to {most:,} characters on one line")
    return text

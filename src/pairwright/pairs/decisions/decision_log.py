"""The file format of votes, ratings and exclusions: CSV with a header, appended line by line.

Every line ends with its time. A last line without a line break is complete if it ends with a time; otherwise a crash
has cut it off.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pairwright.errors import PairwrightError, SourceError
from pairwright.paths import Place, append_lines, local_path, repair_tail

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
    """A CSV file that decisions are appended to by several processes and threads; created with the first decision.

    The last of its columns is "time", which `append` fills in. An unfinished last line is removed on opening.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        assert columns[-1] == "time", "the time ends the line"
        self.path = path
        self._columns = tuple(columns)
        self._header = ",".join(columns).encode()
        self.unfinished = repair_tail(path, header=self._header, is_whole=has_time).decode(errors="replace")
        """The unfinished last line that was removed when the file was opened."""

    def append(self, **cells: str) -> None:
        """Add a line durably: it is on disk when the call returns."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow([{**cells, "time": now}[name] for name in self._columns])
        append_lines(self.path, [text.getvalue().encode()], header=self._header, is_whole=has_time)

    def read(self) -> list[Line]:
        """Return all lines of the file, including those that other processes have added."""
        return read_lines(self.path, self._columns)


def open_log(folder: Place, name: str, columns: Sequence[str], *, what: str) -> DecisionLog:
    """Open the log of a table in its folder, which must be on this machine."""
    local = local_path(folder)
    if local is None:
        raise PairwrightError(f"{folder}: {what} need a local folder: copy the table to this machine")
    return DecisionLog(local / name, columns)


def has_time(line: bytes) -> bool:
    """Return whether a line is complete, i.e. ends with a time."""
    return bool(_TIME.search(line))


def read_lines(path: Place, columns: Sequence[str]) -> list[Line]:
    """Read the complete lines of a file without repairing it; empty if there is none."""
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    header, lines, _ = parse_lines(path, content)
    if not set(columns) <= set(header):
        raise SourceError(f"{path}:1: got columns {header}, expected {','.join(columns)}")
    return lines


def parse_lines(path: Place, content: bytes) -> tuple[list[str], list[Line], int]:
    """Return the columns of CSV text, its complete lines, and the number of unfinished ones, which were never saved.

    Lines are complete if they end with a time; without a column of times, the last line needs no line break. Raises
    SourceError that names the line.
    """
    end = content.rfind(b"\n") + 1
    has_times = content.partition(b"\n")[0].rstrip(b"\r").endswith(b",time")
    is_torn = has_times and 0 < end < len(content) and not has_time(content[end:])
    number = 1
    rows: list[tuple[int, list[str]]] = []
    try:
        text = (content[:end] if is_torn else content).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""))
        for row in reader:
            number = reader.line_num
            rows.append((number, row))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path}:{number}: cannot be read: {error}") from error
    header = rows[0][1] if rows else []
    lines = [Line(number, dict(zip(header, row, strict=False))) for number, row in rows[1:] if row]
    return header, lines, int(is_torn)


def check_name(name: str, *, what: str = "name", most: int = MAX_NAME) -> str:
    """Return a person's name in Unicode normal form; raises PairwrightError if it is empty, too long or multi-line."""
    text = unicodedata.normalize("NFC", name.strip())
    is_odd = any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text)
    if not text or len(text) > most or is_odd:
        raise PairwrightError(f"{what}: got {text[:100]!r}, expected 1 to {most:,} characters on one line")
    return text


def check_reason(reason: str) -> str:
    """Return a reason, checked like a name."""
    return check_name(reason, what="reason", most=MAX_TEXT)


def check_uid(uid: str) -> str:
    """Return the id of an experience; raises PairwrightError for an invalid id."""
    # Ids are JSON text, in which line breaks are escaped.
    if not uid or len(uid) > MAX_ID or any(letter in uid for letter in "\n\r\0"):
        raise PairwrightError(f"id: got {uid[:100]!r}, expected the uid of an experience")
    return uid

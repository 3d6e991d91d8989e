"""Files of any kind as decoded JSON units: JSON, JSON lines, gzip and zstd, in bounded memory.

A unit comes with its line and ordinal. What cannot be decoded comes as Rejected, with the line and the reason, and
reading goes on behind it: a torn last line, invalid UTF-8, a line of a gigabyte, a list nested ten thousand deep.
"""

import glob
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import zstandard

from pairwright.errors import SourceError
from pairwright.sources.format import Origin, Rejected

MAX_LINE_BYTES = 128 * 2**20
MAX_DOCUMENT_BYTES = 512 * 2**20
_CHUNK = 4 * 2**20
_SKIPPED_NAMES = {"quarantine.jsonl", "table.json"}
_decode = msgspec.json.decode

Unit = tuple[Origin, Any]


def expand_paths(paths: list[str]) -> list[Path]:
    """The files that paths, folders and globs name, each once, in a stable order. A path with no file is an error."""
    found: dict[Path, None] = {}
    for path in paths:
        matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        files = [file for match in matches for file in _files_below(Path(match))]
        if not files:
            raise SourceError(f"{path}: no file there")
        found |= dict.fromkeys(files)
    unique: dict[Path, Path] = {}
    for file in found:
        unique.setdefault(file.resolve(), file)
    return list(unique.values())


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """A file as bytes, decompressed by what its first bytes say; the name does not matter."""
    with open(path, "rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic[:2] == b"\x1f\x8b":
            with gzip.open(file) as unzipped:
                yield cast(IO[bytes], unzipped)
        elif magic == b"\x28\xb5\x2f\xfd":
            with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(file) as plain:
                yield plain
        else:
            yield file


def read_lines(
    path: Path, *, start: int = 0, stop: int | None = None, line: int = 1
) -> Iterator[tuple[int, bytes | int]]:
    """The non-empty lines that begin in [start, stop), each with its number; an overlong line only as its length."""
    with open_bytes(path) as file:
        if start:
            file.seek(start)
        pending, position, skipped = b"", start, 0
        while chunk := file.read(_CHUNK):
            *lines, rest = (pending + chunk).split(b"\n")
            for text in lines:
                if stop is not None and position >= stop:
                    return
                position += len(text) + 1 + skipped
                if skipped:
                    yield line, skipped + len(text)
                    skipped = 0
                elif text and not text.isspace():
                    yield line, text
                line += 1
            pending = rest
            if len(pending) > MAX_LINE_BYTES:  # drop the line as it comes, keeping only its length
                skipped += len(pending)
                pending = b""
        if (pending or skipped) and not (stop is not None and position >= stop) and not pending.isspace():
            yield line, skipped + len(pending) if skipped else pending


def _decoded_line(path: Path, number: int, text: bytes | int, decode: Callable[[bytes], Any]) -> Any:
    """The value of a line, or Rejected with the reason."""
    if isinstance(text, int):
        return Rejected(str(path), number, f"a line of {text:,} bytes; the limit is {MAX_LINE_BYTES:,}")
    try:
        return decode(text)
    except msgspec.ValidationError:  # valid JSON, but not what a format's own decoder wants: for its reader to refuse
        return _decoded_line(path, number, text, _decode)
    except (ValueError, RecursionError) as error:
        return _second_look(path, number, text, error)


def line_units(
    path: Path,
    *,
    start: int = 0,
    stop: int | None = None,
    line: int = 1,
    decode: Callable[[bytes], Any] = _decode,
) -> Iterator[Unit | Rejected]:
    """Each line of a JSON lines file as a unit; its ordinal is its line number less one."""
    file = str(path)
    for number, text in read_lines(path, start=start, stop=stop, line=line):
        value = _decoded_line(path, number, text, decode)
        yield value if isinstance(value, Rejected) else (Origin(file, number, number - 1), value)


def document(path: Path) -> Any:
    """The value of a whole JSON file, or Rejected with the reason."""
    with open_bytes(path) as file:
        data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        return Rejected(str(path), None, f"a JSON document of more than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        return _decode(data)
    except (ValueError, RecursionError) as error:
        return _second_look(path, None, data, error)


def is_json_lines(path: Path) -> bool:
    """True if the first non-empty line is a JSON value of its own and another line follows, or the file is one line."""
    with open_bytes(path) as file:
        head = file.read(_CHUNK).lstrip()
        while head and b"\n" not in head and len(head) <= MAX_LINE_BYTES and (more := file.read(_CHUNK)):
            head += more
    first, newline, rest = head.partition(b"\n")
    try:
        value = _decode(first)
    except (ValueError, RecursionError):
        # a broken first line is still a line if the second one is whole
        second = rest.partition(b"\n")[0]
        return bool(newline) and first[:1] == b"{" and second[:1] == b"{" and second.rstrip().endswith(b"}")
    return (isinstance(value, dict) and (bool(rest.strip()) or path.suffix in (".jsonl", ".ndjson"))) or (
        isinstance(value, list) and bool(rest.strip())
    )


def ranges(path: Path, size: int) -> list[tuple[int, int, int]]:
    """An uncompressed JSON lines file cut into (start, stop, first line number), each of about `size` bytes."""
    total, cuts, line, position = path.stat().st_size, [(0, 1)], 1, 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            # a cut is the byte after the first newline that is at least `size` behind the cut before
            while (at := chunk.find(b"\n", max(0, cuts[-1][0] + size - position))) >= 0 and position + at + 1 < total:
                cuts.append((position + at + 1, line + chunk.count(b"\n", 0, at + 1)))
            line += chunk.count(b"\n")
            position += len(chunk)
    stops = [start for start, _ in cuts[1:]] + [total]
    return [(start, stop, number) for (start, number), stop in zip(cuts, stops, strict=True)]


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name not in _SKIPPED_NAMES:
                yield Path(folder, name)


def _second_look(path: Path, number: int | None, data: bytes, error: Exception) -> Any:
    """Python's own JSON has NaN and infinities, which the fast decoder does not; anything else is rejected."""
    raw = data[:2000].decode("utf-8", "replace")
    if isinstance(error, RecursionError):
        return Rejected(str(path), number, "nested too deep", raw=raw)
    if isinstance(error, UnicodeDecodeError):
        return Rejected(str(path), number, f"invalid UTF-8: {error.reason}", raw=raw)
    if b"NaN" in data or b"Infinity" in data:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            pass
    return Rejected(str(path), number, f"not valid JSON: {error}", raw=raw)


# What reading a compressed file that is damaged raises.
BROKEN_STREAM = (OSError, EOFError, zlib.error, zstandard.ZstdError)

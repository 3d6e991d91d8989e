"""Read JSON and JSON Lines files, plain or compressed with gzip or zstd, as decoded units in bounded memory.

Each unit carries its line number and ordinal. Input that cannot be decoded (a truncated last line, invalid UTF-8, an
overlong line, excessive nesting) is yielded as Rejected with its line and the reason, and reading continues after it.
A byte order mark names the encoding; `repairs` counts what `repair_and_decode` changed.
"""

import codecs
import gzip
import io
import json
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np
import zstandard

from pairwright.errors import SourceError
from pairwright.paths import Place, open_binary, place, scratch, size_of
from pairwright.paths.listing import list_files
from pairwright.records.arrays import Array
from pairwright.sources.format import Origin, Rejected
from pairwright.sources.text_repair import Transcoder, repair_and_decode

# UTF-32 before UTF-16: its mark begins with the mark of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(begin: bytes) -> str | None:
    """Return the encoding that a byte order mark at the start of a file names: utf-8-sig, utf-16, utf-32 or None."""
    if begin.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    return next((name for mark, name in _MARKS if begin.startswith(mark)), None)


MAX_LINE_BYTES = 128 * 2**20
MAX_DOCUMENT_BYTES = 512 * 2**20
_CHUNK = 4 * 2**20
# About 60 records: they and the values derived from them fit into a core's cache. Must not exceed MAX_LINE_BYTES.
_BLOCK = 128 * 2**10
_BUFFER = _BLOCK  # so that a block is read without a copy
_HEAD = 2**16  # usually enough to distinguish lines from a document
_SKIPPED_NAMES = {"quarantine.jsonl", "table.json"}
_decode = msgspec.json.decode
# `raw_decode` decodes one value from a position and returns its end, so a list can be read item by item.
_scan = json.JSONDecoder().raw_decode
_LIST_BEGINS, _NEXT_ITEM = re.compile(r"\s*\[\s*"), re.compile(r"\s*,\s*")
_NOT_SPACE, _NEXT_VALUE = re.compile(r"\S"), re.compile(r"\n[{\[]")

# Exceptions raised when reading a damaged compressed file.
BROKEN_STREAM = (OSError, EOFError, zlib.error, zstandard.ZstdError)
_HUB_PREFIX = "datasets:"  # of a dataset of Hugging Face: datasets:ORG/NAME/CONFIG:SPLIT
# Files that `save_to_disk` of `datasets` writes besides the rows.
_NO_ROWS = frozenset({"dataset_info.json", "state.json", "dataset_dict.json"})

Unit = tuple[Origin, Any]


def expand_paths(paths: list[str]) -> list[Place]:
    """Expand paths, folders and globs to files, without duplicates and in a stable order. No match is a SourceError."""
    return list(relative_names(paths))


def relative_names(paths: list[str], refused: list[Rejected] | None = None) -> dict[Place, str]:
    """Map each file of `expand_paths` to its path relative to the folder or glob root that matched it.

    A file given by its own path is named relative to its parent folder. Anything but a regular file (a FIFO could
    wait forever) and folders that cannot be listed are left out and added to `refused`.
    """
    names: dict[Place, tuple[Place, str]] = {}  # by the resolved path, so that a file is read once
    refused = [] if refused is None else refused

    def refuse_folder(error: OSError) -> None:
        refused.append(Rejected(str(error.filename), None, f"a folder that cannot be listed: {error.strerror}"))

    for path in paths:
        num_refused = len(refused)
        is_hub = path.startswith(_HUB_PREFIX)
        files = _hub_files(path) if is_hub else list_files(path, skipped=_SKIPPED_NAMES, on_error=refuse_folder)
        files = _without_bookkeeping(files)
        if not files and len(refused) == num_refused:
            raise SourceError(f"{place(path)}: no file there")
        for file, name in files:
            # Python carries bytes that are not UTF-8 as lone surrogates.
            if any("\ud800" <= char <= "\udfff" for char in str(file)):
                shown = os.fsencode(str(file)).decode("utf-8", "backslashreplace")
                refused.append(Rejected(shown, None, "a file name that is not UTF-8; rename it"))
            elif isinstance(file, Path) and not file.is_file():
                kind = "not a regular file (a FIFO, socket or device)" if file.exists() else "a link to nothing"
                refused.append(Rejected(str(file), None, kind))
            else:
                names.setdefault(file.resolve(), (file, name))
    return dict(names.values())


@contextmanager
def with_stdin(paths: list[str]) -> Iterator[list[str]]:
    """Replace "-" by a temporary copy of the standard input, which detection and reading both read from the start."""
    if "-" not in paths:
        yield paths
        return
    with scratch() as folder:
        with open(folder / "stdin", "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK)
        yield [str(folder / "stdin") if path == "-" else path for path in paths]


@contextmanager
def open_bytes(path: Place) -> Iterator[IO[bytes]]:
    """Open a file, decompressed (gzip or zstd), as UTF-8 if a byte order mark names another encoding."""
    with open_binary(path, _BUFFER) as file:
        magic = file.read(4)
        file.seek(0)
        # Magic bytes of gzip (RFC 1952), below of zstd (RFC 8878).
        if magic[:2] == b"\x1f\x8b":
            with gzip.open(file) as unzipped:
                reader = io.BufferedReader(cast(io.RawIOBase, unzipped), _BUFFER)
                yield _as_utf8(reader, reader.peek(4))
        elif magic == b"\x28\xb5\x2f\xfd":
            with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(file) as plain:
                reader = io.BufferedReader(cast(io.RawIOBase, plain), _BUFFER)
                yield _as_utf8(reader, reader.peek(4))
        else:
            yield _as_utf8(file, magic)


def _as_utf8(file: IO[bytes], begin: bytes) -> IO[bytes]:
    encoding = encoding_of(begin)
    if encoding == "utf-8-sig":
        file.read(3)  # skip the mark; the rest is UTF-8
        return file
    return file if encoding is None else io.BufferedReader(Transcoder(file, encoding))


def read_line_blocks(
    path: Place, *, start: int = 0, stop: int | None = None, line: int = 1
) -> Iterator[tuple[int, list[bytes | int]]]:
    """Yield (number of the first line, lines) for the lines that start in [start, stop), about 128 KiB at a time.

    Lines keep their newline, and empty lines are included; an overlong line is replaced by its length.
    """
    with open_bytes(path) as file:
        if start:
            file.seek(start)
        # The pieces of a line that continues in the next block, and their length; `position` is its start.
        pieces: list[bytes] = []
        num_bytes, position, end = 0, start, start
        while (stop is None or position < stop) and (block := file.read(_BLOCK)):
            end += len(block)
            head, *others = io.BytesIO(block).readlines()  # looks for newlines faster than `split`
            pieces.append(head)
            num_bytes += len(head)
            if num_bytes > MAX_LINE_BYTES + 1:
                del pieces[:-1]  # overlong: only its length is still counted
            if block.find(b"\n") < 0:
                continue
            rest = b"" if block.endswith(b"\n") else others.pop()
            lines: list[bytes | int] = [_joined(pieces, num_bytes), *others]
            if stop is not None and end > stop:
                starts = accumulate([position, num_bytes, *map(len, others)])
                lines = [text for text, begin in zip(lines, starts, strict=False) if begin < stop]
            yield line, lines
            line += len(lines)
            pieces, num_bytes, position = [rest], len(rest), end - len(rest)
        if num_bytes and (stop is None or position < stop):
            yield line, [_joined(pieces, num_bytes)]


def _joined(pieces: list[bytes], num_bytes: int) -> bytes | int:
    """Return the whole line, or the length of one that is too long."""
    num_bytes -= bool(pieces and pieces[-1].endswith(b"\n"))
    return num_bytes if num_bytes > MAX_LINE_BYTES else b"".join(pieces)


def _decode_line(
    path: Place, number: int, text: bytes | int, decode: Callable[[bytes], Any], repairs: Counter[str] | None
) -> Any:
    if isinstance(text, int):
        return Rejected(str(path), number, f"a line of {text:,} bytes; the limit is {MAX_LINE_BYTES:,}")
    try:
        return decode(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError) and decode is not _decode:
            # Valid JSON that the format's own decoder does not accept: its reader refuses it.
            return _decode_line(path, number, text, _decode, repairs)
        return _second_look(path, number, text, error, repairs)


def line_units(path: Place, repairs: Counter[str] | None = None) -> Iterator[Unit | Rejected]:
    """Yield each line of a JSON Lines file as a unit; its ordinal is its line number minus one."""
    return chain.from_iterable(line_batches(path, repairs=repairs))


def line_batches(
    path: Place,
    *,
    start: int = 0,
    stop: int | None = None,
    line: int = 1,
    decode: Callable[[bytes], Any] = _decode,
    label: str = "",
    repairs: Counter[str] | None = None,
) -> Iterator[list[Unit | Rejected]]:
    """Yield the units of `line_units` in the batches of `read_line_blocks`; `decode` decodes a line."""
    file = str(path)
    for first, lines in read_line_blocks(path, start=start, stop=stop, line=line):
        units: list[Unit | Rejected] = []
        for number, text in enumerate(lines, first):
            try:
                value = decode(text)  # type: ignore[arg-type]  # TypeError for the length of an overlong line
            except (ValueError, RecursionError, TypeError):
                if type(text) is bytes:
                    if text.isspace():
                        continue
                    text = text.removesuffix(b"\n")
                value = _decode_line(path, number, text, decode, repairs)
            units.append(value if type(value) is Rejected else (Origin(file, number, number - 1, label), value))
        yield units


def document(path: Place, repairs: Counter[str] | None = None) -> Any:
    """Decode a whole JSON file; return its value, or Rejected with the reason."""
    with open_bytes(path) as file:
        data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        return Rejected(str(path), None, f"a JSON document of more than {MAX_DOCUMENT_BYTES:,} bytes")
    try:
        return _decode(data)
    except (ValueError, RecursionError) as error:
        return _second_look(path, None, data, error, repairs)


def value_units(path: Place, label: str = "", repairs: Counter[str] | None = None) -> Iterator[Unit | Rejected]:
    """Yield each of several concatenated JSON values, indented or on one line, as a unit.

    After a value that cannot be read, reading continues at the next line that begins with a bracket.
    """
    with open_bytes(path) as file:
        text = file.read(MAX_DOCUMENT_BYTES).decode("utf-8", "replace")
    file_name, position, line, ordinal = str(path), 0, 1, 0
    while (begin := _NOT_SPACE.search(text, position)) is not None:
        line += text.count("\n", position, begin.start())
        position = begin.start()
        try:
            _, end = _scan(text, position)
            value = _decode_line(path, line, text[position:end].encode("utf-8", "replace"), _decode, repairs)
            if not isinstance(value, dict | list | Rejected):
                raise ValueError(f"a bare value, {text[position:end][:40]!r}")
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else f"not valid JSON: {error}"
            value = Rejected(file_name, line, reason, raw=text[position : position + 2000])
            following = _NEXT_VALUE.search(text, position + 1)
            end = len(text) if following is None else following.start() + 1
        yield value if isinstance(value, Rejected) else (Origin(file_name, line, ordinal, label), value)
        line += text.count("\n", position, end)
        position, ordinal = end, ordinal + 1


def first_items(path: Place, num_items: int) -> list[Any] | None:
    """Return the first `num_items` items of a JSON list; None if the first chunk (4 MiB) does not hold so many."""
    with open_bytes(path) as file:
        text = file.read(_CHUNK).decode("utf-8", "replace")
    items: list[Any] = []
    before = _LIST_BEGINS.match(text)
    try:
        while before is not None and len(items) < num_items:
            value, end = _scan(text, before.end())
            items.append(value)
            before = _NEXT_ITEM.match(text, end)
    except (ValueError, RecursionError):
        return None
    return items if len(items) == num_items else None


def is_json_lines(path: Place) -> bool:
    """Whether a file is JSON Lines rather than one JSON document.

    True if the first non-empty line is a JSON object or list and more lines follow, or if it is an object and the file
    is named .jsonl or .ndjson. An invalid first line passes if it and the second line look like objects.
    """
    is_named_so = not {".jsonl", ".ndjson"}.isdisjoint(Path(path.name).suffixes)  # also x.jsonl.gz
    with open_bytes(path) as file:
        head = file.read(_HEAD).lstrip()
        while b"\n" not in head or not head.partition(b"\n")[2].strip():
            piece = file.read(_CHUNK) if len(head) <= MAX_LINE_BYTES else b""
            if not piece:
                break
            head += piece
        if is_named_so and len(head) > MAX_LINE_BYTES and b"\n" not in head:
            return True  # a line that is too long
        first, newline, rest = head.partition(b"\n")
        if not rest.strip() and not is_named_so:
            return False  # a single value, which is the whole file
        try:
            value = _decode(first)
        except (ValueError, RecursionError):
            # An invalid first line still counts as a line if the second one is valid.
            second = (rest if b"\n" in rest else rest + file.read(_CHUNK)).partition(b"\n")[0]
            return bool(newline) and first[:1] == b"{" and second[:1] == b"{" and second.rstrip().endswith(b"}")
    return isinstance(value, dict | list) and (bool(rest.strip()) or (is_named_so and isinstance(value, dict)))


def ranges(path: Place, size: int) -> list[tuple[int, int, int]]:
    """Split an uncompressed JSON Lines file into (start, stop, first line number) ranges of about `size` bytes each."""
    # `cuts`: (offset, first line number) of each range.
    total, cuts, line, position = size_of(path), [(0, 1)], 1, 0
    buffer = bytearray(_BUFFER)
    newlines = np.frombuffer(buffer, np.uint8)
    with cast(io.RawIOBase, open_binary(path, 0)) as file:
        while num_bytes := file.readinto(buffer):
            # Cut after the first newline that is at least `size` bytes after the previous cut.
            while (
                at := buffer.find(b"\n", max(0, cuts[-1][0] + size - position), num_bytes)
            ) >= 0 and position + at + 1 < total:
                cuts.append((position + at + 1, line + _num_newlines(newlines[: at + 1])))
            line += _num_newlines(newlines[:num_bytes])
            position += num_bytes
    stops = [start for start, _ in cuts[1:]] + [total]
    return [(start, stop, number) for (start, number), stop in zip(cuts, stops, strict=True)]


def _num_newlines(data: Array) -> int:
    return int(np.count_nonzero(data == 10))  # several times as fast as bytes.count


def _second_look(path: Place, number: int | None, data: bytes, error: Exception, repairs: Counter[str] | None) -> Any:
    """Retry a failed decode with repairs (sources/text_repair.py); return Rejected if that fails, too."""
    raw = data[:2000].decode("utf-8", "replace")
    if isinstance(error, RecursionError):
        return Rejected(str(path), number, "nested too deep", raw=raw)
    try:
        return repair_and_decode(data, repairs)
    except UnicodeDecodeError as failure:
        return Rejected(str(path), number, f"invalid UTF-8: {failure.reason}", raw=raw)
    except (ValueError, RecursionError):
        if not data.strip(b"\0 \t\r\n"):
            return Rejected(str(path), number, "nothing but NUL bytes" if data else "an empty file", raw=None)
        return Rejected(str(path), number, f"not valid JSON: {error}", raw=raw)


def _hub_files(text: str) -> list[tuple[Place, str]]:
    """Return the Arrow files in which the library `datasets` (the extra `hf`) caches a dataset, each with a name."""
    name, _, split = text.removeprefix(_HUB_PREFIX).partition(":")
    parts = [part for part in name.split("/") if part]
    if not 1 <= len(parts) <= 3:
        raise SourceError(f"{text}: expected datasets:ORG/NAME, datasets:ORG/NAME:SPLIT or datasets:ORG/NAME/CONFIG")
    try:
        import datasets
    except ImportError:
        raise SourceError(f"{text}: needs the library datasets: pip install 'pairwright[hf]'") from None
    config = parts[2] if len(parts) == 3 else None
    try:
        loaded = datasets.load_dataset("/".join(parts[:2]), config, split=split or None)
    except Exception as error:  # network, Hub or file errors: the user sees one SourceError
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise SourceError(f"{text}: cannot be loaded: {reason[0]}") from None
    splits = loaded if isinstance(loaded, dict) else {split: loaded}
    files = [
        (place(Path(file["filename"])), f"{'/'.join(parts)}/{name}/{os.path.basename(file['filename'])}")
        for name, rows in splits.items()
        for file in rows.cache_files
    ]
    if not files:
        raise SourceError(f"{text}: the dataset has no files")
    return files


def _without_bookkeeping(files: list[tuple[Place, str]]) -> list[tuple[Place, str]]:
    """Leave out files of a dataset on disk that hold no rows: descriptions, and caches of `map` functions."""
    folders = {file.parent for file, _ in files if file.name.endswith(".arrow")}
    # A folder of splits has its own description; the rows are in its subfolders.
    folders |= {folder.parent for folder in folders}
    return [
        (file, name)
        for file, name in files
        if not (file.parent in folders and (file.name in _NO_ROWS or file.name.startswith("cache-")))
    ]

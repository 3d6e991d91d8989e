"""Samples of an Inspect `.eval` file, one at a time: a zip of `header.json` and `samples/<id>_epoch_<n>.json`.

Nothing is written to disk and no size in the file is believed: a member is read in pieces and given up on when it is
longer than MAX_MEMBER_BYTES or swells more than MAX_RATIO times, and the file when all members together do.
A run that did not finish has `_journal/start.json` in place of the header. Members may be compressed with zstd.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import zstandard

from pairwright.errors import SourceError
from pairwright.messages import Json
from pairwright.sources.fields import BadRecord

MAX_MEMBER_BYTES = 1 << 30
MAX_RATIO = 250  # repetitive logs shrink to a hundredth; deflate itself could reach a thousandth
FREE_BYTES = 16 << 20  # so much is always allowed: small members of one repeated line swell more than the rest
_PIECE = 1 << 20
_ZSTD = 93
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    zstandard.ZstdError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
)  # fmt: skip  (RuntimeError: encrypted; its subclasses NotImplementedError: unknown compression, RecursionError)


def read_eval(path: Path) -> Iterator[Json]:
    """Yield `{"eval": header's eval, "sample": sample}`; a sample that cannot be read has None and a "problem"."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield from _samples(archive, file, path)
    except (zipfile.BadZipFile, OSError, struct.error, ValueError, OverflowError, NotImplementedError) as error:
        raise SourceError(f"{path}: not an Inspect .eval file ({error})") from None


def _samples(archive: zipfile.ZipFile, file: IO[bytes], path: Path) -> Iterator[Json]:
    header = _header(archive, file, path)
    allowed = max(MAX_MEMBER_BYTES, MAX_RATIO * path.stat().st_size)
    for name in archive.namelist():
        member = archive.NameToInfo.pop(name, None)  # of members with one name the last is valid, and is taken once
        if member is None or not name.startswith("samples/") or not name.endswith(".json"):
            continue
        try:
            data = _bytes(member, archive, file)
            allowed -= len(data)
            sample = _value(data)
        except _UNREADABLE as error:
            yield {"eval": header, "sample": None, "problem": f"{name}: {str(error) or type(error).__name__}"}
            continue
        if allowed < 0:
            raise SourceError(
                f"{path}: its samples are more than {MAX_RATIO} times as long as the file; is it an attack?"
            )
        yield {"eval": header, "sample": sample}


def _header(archive: zipfile.ZipFile, file: IO[bytes], path: Path) -> Json:
    """The `eval` of the header: which task, which model."""
    for name in ("header.json", "_journal/start.json"):
        member = archive.NameToInfo.get(name)
        if member is None:
            continue
        try:
            value = _value(_bytes(member, archive, file))
        except _UNREADABLE as error:
            raise SourceError(f"{path}: {name} cannot be read ({str(error) or type(error).__name__})") from None
        header = value.get("eval") if isinstance(value, dict) else None
        if isinstance(header, dict):
            return header
    raise SourceError(f"{path}: no header.json with an `eval`; expected a file that Inspect wrote")


def _bytes(member: zipfile.ZipInfo, archive: zipfile.ZipFile, file: IO[bytes]) -> bytes:
    limit = min(MAX_MEMBER_BYTES, max(FREE_BYTES, MAX_RATIO * member.compress_size))
    pieces: list[bytes] = []
    length = 0
    with _opened(member, archive, file) as stream:
        while piece := stream.read(_PIECE):
            length += len(piece)
            if length > limit:
                raise BadRecord(f"longer than {limit} bytes, from {member.compress_size} in the file")
            pieces.append(piece)
    return b"".join(pieces)


def _opened(member: zipfile.ZipInfo, archive: zipfile.ZipFile, file: IO[bytes]) -> IO[bytes]:
    if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return archive.open(member)
    if member.compress_type != _ZSTD:  # bzip2 and lzma would swell one piece without bound
        raise BadRecord(f"compressed with method {member.compress_type}, expected deflate or zstd")
    file.seek(member.header_offset)  # zipfile does not know zstd: the data follow the member's own header
    name_length, extra_length = struct.unpack("<26xHH", file.read(30))
    file.seek(name_length + extra_length, 1)
    packed = file.read(member.compress_size)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    stream: IO[bytes] = decompressor.stream_reader(packed, read_across_frames=True)
    return stream


def _value(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return json.loads(data)  # Inspect writes NaN and Infinity, which are no JSON; this takes them

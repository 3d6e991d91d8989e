"""Byte codec of experiences: columnar, with a checksum, without pickle.

    offset  size
    0       4     magic "PWXP"
    4       1     version (1)
    5       1     compression of the metadata: 0 none, 1 zstd
    6       2     zero
    8       8     length of the metadata as stored            little-endian
    16      8     length of the metadata as JSON
    24      8     length of the array data
    32      ...   metadata: one `Block`, columns of everything but arrays (store/block.py)
    ...     ...   array data: packed columns (store/block.py)
    end     16    xxh3-128 checksum of everything before

Truncated, modified, overlong or foreign bytes raise a CodecError with position and cause, and never decode to a wrong
record. Released versions stay readable: `_DECODERS` has one function per version.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash
import zstandard

from pairwright.errors import CorruptBytes, ForeignBytes, RecordError, TruncatedBytes
from pairwright.records.experience import Experience
from pairwright.store.block import Block, block_of, experiences_of
from pairwright.store.packed_arrays import Buffer, pack

MAGIC = b"PWXP"
VERSION = 1
# Limits the allocation that a header can cause.
MAX_METADATA_BYTES = 2 * 1024**3
_HEADER = struct.Struct("<4sBB2xQQQ")
_PLAIN, _ZSTD = 0, 1
_DIGEST_SIZE = 16
_decode_block = msgspec.json.Decoder(Block).decode


def dumps(experience: Experience | Sequence[Experience]) -> bytes:
    """Write one experience, or a list of them, as bytes; `loads` reads them back.

    Args:
        experience: An experience, or a list or tuple of experiences.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", reward=reward) for reward in (0.0, 1.0)]
    >>> pw.loads(pw.dumps(runs)) == runs, pw.loads(pw.dumps(runs[0])) == runs[0]
    (True, True)
    """
    return dumps_many([experience] if isinstance(experience, Experience) else experience)


def loads(data: bytes | memoryview) -> Any:
    """Read the output of `dumps`: one experience, or a list unless there is exactly one.

    Args:
        data: The bytes of one payload. `loads_many` always returns a list.

    >>> import pairwright as pw
    >>> pw.loads(pw.dumps(pw.Experience(kind="single_turn", reward=1.0))).reward
    1.0
    """
    experiences = loads_many(data)
    return experiences[0] if len(experiences) == 1 else experiences


def dumps_many(experiences: Sequence[Experience], *, compress: bool = True) -> bytes:
    """Write many experiences as one payload: smaller and much faster than one by one.

    Args:
        experiences: A list or tuple of experiences.
        compress: Compress the metadata; without it, writing is faster and the payload a third larger.

    >>> import pairwright as pw
    >>> len(pw.loads_many(pw.dumps_many([pw.Experience(kind="single_turn")])))
    1
    """
    return b"".join(payload_pieces(experiences, compress=compress))


def payload_pieces(experiences: Sequence[Experience], *, compress: bool) -> list[Buffer]:
    """Return the payload of `dumps_many` as a list of buffers, to write it without a contiguous copy."""
    block, fields = block_of(experiences)
    block.arrays, data = pack(fields)
    metadata = msgspec.json.encode(block)
    if len(metadata) > MAX_METADATA_BYTES:
        raise RecordError("experiences", len(metadata), "at most 2 GiB of text in one payload: write several")
    # Level 1 favours speed over size. Arrays are not compressed, only narrowed (packed_arrays.py).
    stored = zstandard.ZstdCompressor(level=1).compress(metadata) if compress else metadata
    data_size = sum(map(len, data))
    header = _HEADER.pack(MAGIC, VERSION, _ZSTD if compress else _PLAIN, len(stored), len(metadata), data_size)
    digest = xxhash.xxh3_128()
    for piece in (header, stored, *data):
        digest.update(piece)
    return [header, stored, *data, digest.digest()]


def loads_many(data: bytes | memoryview) -> list[Experience]:
    """Read all experiences of a payload, equal to those written.

    Args:
        data: The bytes of one payload.

    >>> import pairwright as pw
    >>> [run.reward for run in pw.loads_many(pw.dumps(pw.Experience(kind="single_turn", reward=1.0)))]
    [1.0]
    """
    view = memoryview(data)
    size = payload_size(view)
    if len(view) > size:
        raise CorruptBytes(f"{len(view) - size} bytes after the end of the payload at {size}")
    # Check the checksum first: data decoded below was written by `dumps`, or forged on purpose.
    body, digest = view[: size - _DIGEST_SIZE], view[size - _DIGEST_SIZE :]
    if xxhash.xxh3_128_digest(body) != digest:
        raise CorruptBytes(f"checksum of the {size} bytes does not match: the payload was changed after it was written")
    return _DECODERS[view[4]](body)


def payload_size(view: memoryview) -> int:
    """Return the length of the payload at the start of `view`, from its header.

    Raises ForeignBytes if it is not a payload of a known version, TruncatedBytes if it is incomplete, and CorruptBytes
    if the header is invalid.
    """
    prefix = bytes(view[: len(MAGIC)])
    # Fewer bytes than the magic that match its start are a truncated payload, not a foreign file.
    if prefix != MAGIC[: len(prefix)] or not prefix:
        raise ForeignBytes(f"not a pairwright payload: begins with {prefix!r}, expected {MAGIC!r}")
    if len(view) < _HEADER.size:
        raise TruncatedBytes(f"{len(view)} bytes, but the header alone has {_HEADER.size}")
    if view[4] not in _DECODERS:
        raise ForeignBytes(f"payload version {view[4]}, this release reads {sorted(_DECODERS)}: upgrade pairwright")
    if view[5] not in (_PLAIN, _ZSTD) or bytes(view[6:8]) != b"\0\0":
        raise CorruptBytes(f"header bytes 5 to 7 are {bytes(view[5:8])!r}, expected 0 or 1 and two zeros")
    _, _, _, stored_size, _, data_size = _HEADER.unpack_from(view)
    size = int(_HEADER.size + stored_size + data_size + _DIGEST_SIZE)
    if len(view) < size:
        raise TruncatedBytes(f"{len(view)} bytes, but the header promises {size}")
    return size


def _decode_v1(body: memoryview) -> list[Experience]:
    """Decode a payload of version 1, without its checksum; raises CorruptBytes if it is invalid."""
    _, _, storage, stored_size, metadata_size, _ = _HEADER.unpack_from(body)
    metadata_end = _HEADER.size + stored_size
    stored = body[_HEADER.size : metadata_end]
    metadata = _decompress(stored, metadata_size) if storage == _ZSTD else stored
    if len(metadata) != metadata_size:
        raise CorruptBytes(f"{len(metadata)} bytes of metadata, but the header says {metadata_size}")
    try:
        return experiences_of(_decode_block(metadata), body[metadata_end:])
    except (msgspec.MsgspecError, RecordError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptBytes(f"the payload holds no valid experiences: {error}") from error


def _decompress(stored: memoryview, size: int) -> bytes:
    """Decompress to exactly `size` bytes, in chunks, so that a wrong size in the header allocates nothing."""
    if size > MAX_METADATA_BYTES:
        raise CorruptBytes(f"the header claims {size} bytes of metadata, the limit is {MAX_METADATA_BYTES}")
    pieces, produced = [], 0
    try:
        # A window of at most 128 MiB bounds the decompressor's memory, regardless of the frame header.
        with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(stored) as reader:
            # Read up to one byte more than claimed, to detect a larger frame.
            while piece := reader.read(min(2**20, size + 1 - produced)):
                pieces.append(piece)
                produced += len(piece)
                if produced > size:
                    break
    except zstandard.ZstdError as error:
        raise CorruptBytes(f"the metadata does not decompress: {error}") from error
    if produced != size:
        raise CorruptBytes(f"the metadata has {'more' if produced > size else 'fewer'} bytes than the {size} claimed")
    return b"".join(pieces)


_DECODERS = {1: _decode_v1}

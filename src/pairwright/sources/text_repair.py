"""Decode text that is not valid UTF-8 JSON: other encodings, and counted repairs of single lines.

A byte order mark identifies the encoding, so UTF-16 and UTF-32 are converted without a count. A repair changes or
interprets bytes (a lone surrogate is replaced, a line is read as Windows-1252), so it is counted by name.
"""

import codecs
import io
import json
import re
from collections import Counter
from typing import IO, Any

import msgspec

_REPAIR_CHUNK = 2**16
# Matches every escape of a JSON string from left to right, so that an escaped backslash never begins another.
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|.)", re.S)
_REPLACEMENT = rb"\ufffd"

SURROGATES, LATIN, NULS = "lone surrogates replaced", "lines read as Latin-1 (Windows-1252)", "NUL bytes dropped"


class Transcoder(io.RawIOBase):
    """UTF-8 bytes, without a byte order mark, of a stream in another encoding."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)("replace")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = self._file.read(_REPAIR_CHUNK)
            self._rest = self._decoder.decode(chunk, not chunk).encode()
            if not chunk:
                break
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def repair_and_decode(data: bytes, repairs: Counter[str] | None) -> Any:
    """Decode JSON that a strict decoder refused, after safe repairs; `repairs` counts them by name.

    Raises ValueError or RecursionError if the repaired text is still invalid. Accepts NaN and infinities, as Python's
    `json` writes them.
    """
    own_repairs: Counter[str] = Counter()
    if data[:1] == b"\0" or data[-1:] == b"\0":
        data = data.strip(b"\0")
        own_repairs[NULS] += 1
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # A line that also has valid multi-byte UTF-8 is damaged UTF-8, not another encoding.
        if not data.decode("utf-8", "ignore").isascii():
            raise
        text = data.decode("cp1252")
        own_repairs[LATIN] += 1
    if "\\u" in text:
        clean, num_lone = _replace_lone_surrogates(text.encode())
        if num_lone:
            text, own_repairs[SURROGATES] = clean.decode(), num_lone
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        if "NaN" not in text and "Infinity" not in text:
            raise
        value = json.loads(text)
    if repairs is not None:
        repairs.update(own_repairs)
    return value


def _replace_lone_surrogates(data: bytes) -> tuple[bytes, int]:
    """Replace `\\u` escapes of surrogates without a partner by U+FFFD; also return their number."""
    num_lone = 0

    def replaced(match: re.Match[bytes]) -> bytes:
        nonlocal num_lone
        if match[1] is None:
            return match[0]
        code = int(match[1], 16)
        if 0xD800 <= code < 0xDC00 and match[2]:
            return match[0]
        first, second = b"\\u" + match[1], match[2] or b""
        if 0xD800 <= code < 0xE000:
            first, num_lone = _REPLACEMENT, num_lone + 1
        if second:
            second, num_lone = _REPLACEMENT, num_lone + 1
        return first + second

    return _ESCAPE.sub(replaced, data), num_lone

"""Where each token stands in the text, from the bytes that tokens spell.

Encoding without offsets is faster by a quarter, and offsets that come as tuples cost as much again. Where the bytes of
the tokens, put together, are the bytes of the text, each token's place follows from lengths alone: that is checked for
every text, so what is returned is right. It is None where the bytes differ: a normalizer changed the text, a control
token swallowed white space, a space was put before the first word. Then the tokenizer's own offsets are used.
"""

import re

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders

_NEVER = b"\xff"  # in no text: a token that has it is never a match
_MISSES = 16  # in a row
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes(dict[int, bytes]):
    """The bytes that a token spells, looked up when it is first met."""

    def __init__(self, backend: Tokenizer) -> None:
        is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        for number, token in backend.get_added_tokens_decoder().items():
            self[number] = token.content.encode() if is_byte_level or token.special else _with_spaces(token.content)
        self._backend = backend
        self._misses = 0
        self._spelt = _byte_level if is_byte_level else _with_spaces

    def __missing__(self, number: int) -> bytes:
        token = self._backend.id_to_token(number)
        self[number] = _NEVER if token is None else self._spelt(token)
        return self[number]

    @property
    def pays(self) -> bool:
        """No, where one text after the other is not spelt byte by byte: this tokenizer changes every text."""
        return self._misses < _MISSES

    def offsets(self, text: str, ids: list[int]) -> NDArray[np.int32] | None:
        """Character offsets (N, 2), or None where the tokens do not spell the text byte by byte."""
        data = text.encode()
        parts = list(map(self.__getitem__, ids))
        if b"".join(parts) != data:
            self._misses += 1
            return None
        self._misses = 0
        both = np.zeros((2, len(ids)), dtype=np.int32)  # by columns: starts and ends are read apart
        starts, ends = both
        np.cumsum(np.fromiter(map(len, parts), np.int32, count=len(ids)), out=ends)
        starts[1:] = ends[:-1]
        if len(data) != len(text):
            character = _character_of_byte(data)
            both[0] = character[starts]
            both[1] = character[np.maximum(ends, 1) - 1] + 1
        return both.T


def _character_of_byte(data: bytes) -> NDArray[np.int32]:
    """For each byte of UTF-8 the number of the character that it belongs to."""
    is_first = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
    numbers: NDArray[np.int32] = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    return numbers


def _byte_level(token: str) -> bytes:
    try:
        return bytes(map(_BYTES.__getitem__, token))
    except KeyError:
        return _NEVER


def _with_spaces(token: str) -> bytes:
    """SentencePiece: a bar for a space, bytes that are in no other token by number."""
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else token.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones for themselves, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()

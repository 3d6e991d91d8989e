"""Text and bytes of single tokens, for log-probabilities; a token may be part of a character."""

import re
from functools import lru_cache

from pairwright.generate import Engine
from pairwright.records.messages import Json

# SentencePiece writes a byte without a token as <0x0A>.
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_LEAST = -9999.0  # OpenAI's value for a probability of zero; JSON has no infinity


class TokenTexts:
    """Cache of the text and bytes of single tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # token id -> its text, and its bytes as numbers
        self._known: dict[int, tuple[str, list[int]]] = {}
        backend = getattr(engine.tokenizer, "backend_tokenizer", None)
        self._is_byte_level = backend is not None and "ByteLevel" in str(backend.decoder)

    def of(self, token: int) -> tuple[str, list[int]]:
        if token not in self._known:
            self._known[token] = self._read_token(token)
        return self._known[token]

    def logprob(self, token: int, logprob: float) -> Json:
        text, as_bytes = self.of(token)
        return {"token": text, "logprob": max(float(logprob), _LEAST), "bytes": as_bytes}

    def _read_token(self, token: int) -> tuple[str, list[int]]:
        piece = str(self._engine.tokenizer.convert_ids_to_tokens(int(token)))
        if match := _BYTE.fullmatch(piece):
            content = bytes([int(match[1], 16)])
        # Byte-level BPE: each letter of the token represents one byte.
        elif self._is_byte_level and all(character in byte_letters() for character in piece):
            content = bytes(byte_letters()[character] for character in piece)
        else:
            content = self._engine.text([token], skip_special_tokens=False).encode()
        return content.decode("utf-8", "replace"), list(content)


@lru_cache(1)
def byte_letters() -> dict[str, int]:
    """Map the characters of byte-level BPE to bytes: printable bytes to themselves, others from code point 256 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(number): number for number in printed}
    others = [number for number in range(256) if number not in set(printed)]
    return letters | {chr(256 + place): number for place, number in enumerate(others)}

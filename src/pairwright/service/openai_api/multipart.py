"""Parses `multipart/form-data` bodies that were written to a file, without holding them in memory.

Parts are returned by where they are in the file. Invalid bodies are refused; no part is skipped.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

from pairwright.service.api_errors import Refusal

MAX_PARTS = 20
MAX_HEAD = 16_384
_PIECE = 2**20


@dataclass(frozen=True)
class Part:
    """A field of a form: its name, its file name if it is a file, and the place of its content in the body."""

    name: str
    filename: str | None
    body: Path
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def pieces(self) -> Iterator[bytes]:
        with open(self.body, "rb") as file:
            file.seek(self.start)
            left = self.size
            while left and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                yield piece

    def text(self, limit: int = 1000) -> str:
        """Return the content of a short field. Raises a 422 refusal if it is none."""
        if self.size > limit:
            raise Refusal(422, "bad_form", f"{self.name[:100]}: expected at most {limit} bytes")
        try:
            return b"".join(self.pieces()).decode()
        except UnicodeDecodeError:
            raise Refusal(422, "bad_form", f"{self.name[:100]}: expected text") from None


def read_parts(body: Path, content_type: str) -> dict[str, Part]:
    """Return the fields of a form by name. Raises a 422 refusal for a body that is no form."""
    boundary = _parameter("content-type", content_type, "boundary")
    if not content_type.lower().startswith("multipart/form-data") or not boundary or not body.stat().st_size:
        raise Refusal(422, "bad_form", "expected multipart/form-data with the fields file and purpose")
    mark = b"--" + boundary.encode("latin-1", "replace")
    parts: dict[str, Part] = {}
    with open(body, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = text.find(mark)
        while start >= 0:
            start += len(mark)
            if text[start : start + 2] == b"--":
                return parts
            head_end = text.find(b"\r\n\r\n", start, start + MAX_HEAD)
            end = text.find(b"\r\n" + mark, start)
            if head_end < 0 or end < head_end or len(parts) >= MAX_PARTS:
                break
            part = _part(text[start:head_end], body, head_end + 4, end)
            if part.name in parts:
                raise Refusal(422, "bad_form", f"the field {part.name[:100]!r} stands twice")
            parts[part.name] = part
            start = end + 2
    raise Refusal(422, "bad_form", "the form is cut short, or has too many fields")


def _part(head: bytes, body: Path, start: int, end: int) -> Part:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            field = _parameter("content-disposition", value, "name")
            if field:
                return Part(field, _parameter("content-disposition", value, "filename"), body, start, end)
    raise Refusal(422, "bad_form", "a part of the form has no name")


def _parameter(header: str, value: str, name: str) -> str | None:
    message = Message()
    message[header] = value.strip().replace("\r", " ").replace("\n", " ")
    parameter = message.get_param(name, header=header)
    # A parameter in the encoding of RFC 2231 is a tuple: character set, language, text.
    return parameter[2] if isinstance(parameter, tuple) else parameter

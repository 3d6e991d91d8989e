"""Parses commit requests of hub clients: JSON Lines with a header, base64 files and deletions.

A line can be as large as its file. The body is spooled to a temporary file, memory-mapped, and decoded in pieces, so
that no large file is held in memory. Invalid lines are refused with their line number; none is skipped.
"""

import base64
import binascii
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pairwright.service.api_errors import Refusal
from pairwright.service.rows.blob_store import Blob, Blobs
from pairwright.service.rows.names import check_path
from pairwright.service.rows.schema import Tree

PIECE = 4 * 2**20  # a multiple of four: base64 decodes piece by piece


class _Line(msgspec.Struct):
    key: str
    # Raw: the value stays a slice of the line until its type is known.
    value: msgspec.Raw


class _Header(msgspec.Struct):
    summary: str = ""
    description: str = ""
    parentCommit: str | None = None


class _File(msgspec.Struct):
    path: str
    content: msgspec.Raw
    encoding: str = "base64"


class _LargeFile(msgspec.Struct):
    path: str
    oid: str
    algo: str = "sha256"


class _Deleted(msgspec.Struct):
    path: str


@dataclass
class Change:
    """Changes of a commit: files to add, and files and folders to delete before that."""

    title: str = "commit"
    parent: str | None = None
    files: dict[str, Blob] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    deleted_folders: list[str] = field(default_factory=list)

    def apply(self, tree: Tree) -> Tree:
        # Deletions come first: a path that is both deleted and added in a commit exists afterwards.
        gone = set(self.deleted)
        folders = tuple(f"{folder}/" for folder in self.deleted_folders)
        remaining = {
            path: blob for path, blob in tree.items() if path not in gone and not (folders and path.startswith(folders))
        }
        return dict(sorted({**remaining, **self.files}.items()))


def read_change(
    body: Path,
    blobs: Blobs,
    *,
    max_files: int,
    held: list[str],
    was_sent: Callable[[str], bool] = lambda sha256: False,
) -> Change:
    """Parse the body of a commit, and store its files as blobs, which are held until the commit is written.

    `was_sent` returns whether a file that the commit names only by its sha256 was sent before.
    """
    change = Change()
    has_header = False
    for number, line in _lines(body):
        entry = _decode_entry(line, _Line, number)
        if entry.key == "header":
            header = _decode_entry(entry.value, _Header, number)
            change.title, change.parent, has_header = header.summary or "commit", header.parentCommit, True
        elif entry.key == "file":
            file = _decode_entry(entry.value, _File, number)
            path = check_path(file.path, f"line {number}: path")
            change.files[path] = _keep_file(file, blobs, number, held)
        elif entry.key == "lfsFile":
            large = _decode_entry(entry.value, _LargeFile, number)
            path = check_path(large.path, f"line {number}: path")
            blob = blobs.find(large.oid, held) if large.algo == "sha256" and was_sent(large.oid) else None
            if blob is None:
                raise Refusal(422, "file_not_sent", f"line {number}: {path!r} was not sent before the commit")
            change.files[path] = blob
        elif entry.key in ("deletedFile", "deletedFolder"):
            path = check_path(_decode_entry(entry.value, _Deleted, number).path.rstrip("/"), f"line {number}: path")
            (change.deleted if entry.key == "deletedFile" else change.deleted_folders).append(path)
        else:
            raise Refusal(
                422,
                "unknown_commit_line",
                f"line {number}: got key {entry.key[:40]!r}, expected header, file, lfsFile, deletedFile or "
                "deletedFolder",
            )
        if len(change.files) > max_files:
            raise Refusal(413, "too_many_files", f"line {number}: more than {max_files:,} files in one commit")
    if not has_header:
        raise Refusal(422, "no_commit_header", "the commit has no header line")
    return change


def _lines(body: Path) -> Iterator[tuple[int, memoryview]]:
    """Yield (line number, view) of the memory-mapped file. The mapping is freed with the last view."""
    if not body.stat().st_size:
        return
    with open(body, "rb") as file:
        # The mapping outlives the file object.
        text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start, number = 0, 1
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        if end > start:
            yield number, memoryview(text)[start:end]
        start, number = end + 1, number + 1


def _decode_entry(data: Any, kind: type[Any], number: int) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(422, "bad_commit_line", f"line {number}: not a line of a commit: {error}") from None


def _keep_file(file: _File, blobs: Blobs, number: int, held: list[str]) -> Blob:
    if file.encoding != "base64":
        raise Refusal(422, "bad_commit_line", f"line {number}: encoding: expected 'base64'")
    raw = memoryview(file.content)
    # Raw JSON of a string includes its quotes. Escapes are not decoded, but refused as no base64.
    if not len(raw) >= 2 or not raw[0] == raw[-1] == ord('"'):
        raise Refusal(422, "bad_commit_line", f"line {number}: content: expected text")
    content = raw[1:-1]
    # Each = means one byte less in the last group of three.
    padding = bytes(content[-2:]).count(b"=")
    if len(content) % 4:
        raise Refusal(422, "bad_base64", f"line {number}: content: {len(content)} characters are not whole base64")
    starts = range(0, len(content), PIECE)
    pieces = (base64.b64decode(content[start : start + PIECE], validate=True) for start in starts)
    try:
        return blobs.add(pieces, len(content) // 4 * 3 - padding, held)
    except binascii.Error as error:
        raise Refusal(422, "bad_base64", f"line {number}: content: not base64: {error}") from None
    except ValueError:
        raise Refusal(422, "bad_base64", f"line {number}: content: not base64") from None

"""Files by their content: `blobs/ab/abcd...` is the file with that sha256. Written once, complete, never changed.

A blob takes its name when it is whole and synced, so a crash or a full disk leaves at most a temporary file in
`incoming/`, which the next start removes. Equal files are kept once.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pairwright.places import publish, sync


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A file: content hash, size, and the id that git would give it (what hub clients compare with)."""

    sha256: str
    size: int
    git: str


class Blobs:
    """The store below a folder."""

    def __init__(self, data: Path) -> None:
        self.folder = data / "blobs"
        self.incoming = data / "incoming"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.incoming.mkdir(parents=True, exist_ok=True)

    def clear_incoming(self) -> int:
        """Remove what interrupted uploads left; only for the one process that serves."""
        left = list(self.incoming.iterdir())
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def new_upload(self) -> Path:
        """A name for a file on its way in."""
        return self.incoming / f"{os.getpid()}-{os.urandom(8).hex()}.part"

    def add(self, pieces: Iterable[bytes], size: int) -> Blob:
        """Keep a file of `size` bytes; returns what it is. The size must be known before, as git's id contains it."""
        hidden = self.new_upload()
        sha256, git, seen = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), 0
        try:
            with open(hidden, "xb") as file:
                for piece in pieces:
                    sha256.update(piece)
                    git.update(piece)
                    seen += len(piece)
                    file.write(piece)
            if seen != size:
                raise ValueError(f"{seen} bytes instead of {size}")
            blob = Blob(sha256.hexdigest(), size, git.hexdigest())
            self._name(hidden, self.path(blob.sha256))
        finally:
            hidden.unlink(missing_ok=True)
        return blob

    def _name(self, hidden: Path, path: Path) -> None:
        if path.exists():
            return
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
            sync(self.folder)
        publish(hidden, path)

"""Blob store: content-addressed, immutable files; `blobs/ab/abcd...` is the file with that sha256."""

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pairwright.paths import publish, sync


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A stored file: sha256, size, and git blob id, which hub clients compare."""

    sha256: str
    size: int
    git: str


def hash_file(path: Path) -> Blob:
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), git_hash(size)
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            sha256.update(piece)
            git.update(piece)
    return Blob(sha256.hexdigest(), size, git.hexdigest())


def git_hash(size: int) -> "hashlib._Hash":
    """Return the hash of a git blob to which the content has to be added: the SHA-1 of "blob SIZE", null, content."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


class Blobs:
    def __init__(self, data: Path) -> None:
        self.folder = data / "blobs"
        self.incoming = data / "incoming"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Blobs that a request has stored, but not yet referenced, by sha256: they must not be removed.
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[list[str]]:
        """Protect the blobs that are appended to the list from removal, until their commit is written."""
        held: list[str] = []
        try:
            yield held
        finally:
            with self._lock:
                self._held -= Counter(held)

    def remove(self, names: Iterable[str]) -> int:
        """Remove blobs that are not held. Returns how many were removed."""
        count = 0
        for name in names:
            with self._lock:
                if not self._held[name] and self.path(name).is_file():
                    self.path(name).unlink(missing_ok=True)
                    count += 1
        return count

    def clear_incoming(self) -> None:
        """Remove leftovers of interrupted uploads. Only the server process may call this."""
        for path in list(self.incoming.iterdir()):
            path.unlink(missing_ok=True)

    def path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def new_upload(self) -> Path:
        return self.incoming / f"{os.getpid()}-{os.urandom(8).hex()}.part"

    def add(self, pieces: Iterable[bytes], size: int, held: list[str]) -> Blob:
        """Store a file and return its blob. `size` is needed in advance, because the git id hashes it first."""
        hidden = self.new_upload()
        sha256, git, num_read = hashlib.sha256(), git_hash(size), 0
        try:
            with open(hidden, "xb") as file:
                for piece in pieces:
                    sha256.update(piece)
                    git.update(piece)
                    num_read += len(piece)
                    file.write(piece)
            if num_read != size:
                raise ValueError(f"{num_read} bytes instead of {size}")
            blob = Blob(sha256.hexdigest(), size, git.hexdigest())
            # Held before it is looked up: an existing blob may be about to be removed.
            with self._lock:
                self._held[blob.sha256] += 1
            held.append(blob.sha256)
            path = self.path(blob.sha256)
            # Named by content: an existing file is identical.
            if not path.exists():
                if not path.parent.is_dir():
                    path.parent.mkdir(exist_ok=True)
                    # The new folder must be on disk before a file in it.
                    sync(self.folder)
                publish(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        return blob

    def find(self, sha256: str, held: list[str]) -> Blob | None:
        """Return a stored file by its hash, and hold it; None if there is none."""
        path = self.path(sha256)
        with self._lock:
            self._held[sha256] += 1
        held.append(sha256)
        return hash_file(path) if path.is_file() else None

"""An address: `s3://bucket/key` and the like, with the operations that the stages need there.

What is put appears whole or not at all: it is written here first, and gets its name with the end of the upload. There
are no locks and no appends. As text an address has neither what stands before its @ nor what stands behind its ?.
"""

import contextlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from pairwright.errors import PairwrightError, PlaceError

# The file system of an address, and what its errors say.

_NATIVE = frozenset({"s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs"})
_NO_FOLDERS = frozenset({"s3", "gcs", "abfs"})  # by Arrow's names: folders there are only a part of names
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_MOST_SAID = 300
_PIECE_BYTES = 8 * 2**20
_abandoned: list[Any] = []
_SERVICE_ERROR = re.compile(r"AWS Error (\w+) during (\w+) operation:(.*)", re.S)
_HINTS = {
    "ACCESS_DENIED": "access denied: credentials are taken from the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...)",
    "INVALID_ACCESS_KEY_ID": "the access key is not known there (AWS_ACCESS_KEY_ID)",
    "SIGNATURE_DOES_NOT_MATCH": "the secret key is not the one of the access key (AWS_SECRET_ACCESS_KEY)",
    "NO_SUCH_BUCKET": "no such bucket",
    "NETWORK_CONNECTION": "no connection: see the network, and AWS_ENDPOINT_URL",
}


@lru_cache(maxsize=64)
def file_system(scheme: str, authority: str, login: str, query: str) -> tuple[Any, str]:
    """Arrow's file system for addresses that begin so, and the path of their root in it."""
    shown, root = f"{scheme}://{authority}", f"{scheme}://{login}{'@' if login else ''}{authority}/"
    with told(shown, login, query):
        if scheme in _NATIVE:
            from pyarrow.fs import FileSystem

            asked = _with_region(scheme, query)
            found, path = FileSystem.from_uri(root + (f"?{asked}" if asked else ""))
            return found, path
        return _fsspec(scheme, root, shown)


def has_folders(found: Any) -> bool:
    """Whether a file needs its folder to be made first."""
    return found.type_name not in _NO_FOLDERS


def send(system: Any, path: str, local: Path) -> None:
    """Copy a file of this machine. A stream that is closed early would appear with what it has, also if it is only
    forgotten: one that fails, or is interrupted, is kept open for as long as the process lives."""
    stream = system.open_output_stream(path)
    try:
        with open(local, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                stream.write(piece)
        stream.close()
    except BaseException:
        _abandoned.append(stream)
        raise


@contextmanager
def told(shown: object, *secrets: str) -> Iterator[None]:
    """What goes wrong at an address, as one line that names it."""
    from pyarrow import ArrowException

    try:
        yield
    except PairwrightError:
        raise
    except (OSError, ArrowException) as error:
        raise PlaceError(f"{shown}: {_reason(error, secrets)}") from None


def _reason(error: Exception, secrets: tuple[str, ...]) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = " ".join(str(error).split())
    for secret in secrets:
        for piece in (secret, *re.split(r"[:&=]", secret)):
            text = text.replace(piece, "***") if len(piece) > 3 else text
    found = _SERVICE_ERROR.search(text)
    if found is None:
        return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}…"
    code, operation, said = found.groups()
    said = re.sub(r" \(Request ID: [^)]*\)", "", said)
    return f"{_HINTS.get(code, said.strip() or 'refused')} ({code}, {operation})"


def _with_region(scheme: str, query: str) -> str:
    """Buckets of AWS are asked for their region; those of an endpoint of one's own have the one that is set, or any."""
    has_endpoint = "endpoint_override=" in query or any(os.environ.get(name) for name in _ENDPOINTS)
    if scheme != "s3" or "region=" in query or not has_endpoint:
        return query
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return f"{query}{'&' if query else ''}region={region}"


def _fsspec(scheme: str, root: str, shown: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        found, path = url_to_fs(root)
    except (ImportError, ValueError) as error:  # no fsspec, not the package that it needs, or no such scheme
        reason = " ".join(str(error).replace(root, shown).split())
        raise PlaceError(
            f"{shown}: no file system for {scheme!r} here ({reason}): s3, gs, abfs and hdfs need nothing more, others "
            "a package of fsspec's"
        ) from None
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(found)), path


# An address: `s3://bucket/key` and the like, with the operations that the stages need there.

READ_BYTES = 2 * 2**20  # asked for at a time where a file is read from its beginning on
_MOST_COPIED = 5 * 2**30  # what an object store copies by itself


@dataclass(frozen=True)
class Remote:
    """A file or folder at an address. `key` is its path there; `login` and `query` may be secrets."""

    scheme: str
    authority: str
    key: str
    login: str = field(default="", repr=False)
    query: str = field(default="", repr=False)
    known_size: int | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> "Remote":
        return self.at("/".join(part for part in (self.key, name) if part))

    def at(self, key: str) -> "Remote":
        """Another path of the same file system."""
        return replace(self, key=key, known_size=None)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def parent(self) -> "Remote":
        return self.at(self.key.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> "Remote":
        return self.parent / f"{self.stem}{suffix}"

    def absolute(self) -> "Remote":
        return self

    def resolve(self) -> "Remote":
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing to do: folders come with their files."""

    def exists(self) -> bool:
        return self._kind() != "NotFound"

    def is_dir(self) -> bool:
        return self._kind() == "Directory"

    def is_file(self) -> bool:
        return self._kind() == "File"

    def size(self) -> int:
        """Bytes; as they were when the folder was listed, where it was."""
        if self.known_size is not None:
            return self.known_size
        with self.told():
            found = self._info()
            if found.size is None:
                raise PlaceError(f"{self}: no such file")
            return int(found.size)

    def stamp(self) -> tuple[int, int]:
        """The size and the time of the last change, in nanoseconds."""
        with self.told():
            found = self._info()
            return int(found.size or 0), int(found.mtime_ns or 0)

    def entries(self, *, recursive: bool = False) -> list[tuple["Remote", bool]]:
        """What is in a folder, in the order of the names, and whether each is a folder. Nothing where there is none."""
        from pyarrow.fs import FileSelector, FileType

        system, path = self.located()
        with self.told():
            try:
                infos = system.get_file_info(FileSelector(path, recursive=recursive))
            except FileNotFoundError:
                return []
        found = []
        for info in sorted(infos, key=lambda info: info.path):
            child = self / info.path.strip("/").removeprefix(path.strip("/")).strip("/")
            found.append((replace(child, known_size=info.size), info.type == FileType.Directory))
        return found

    def names(self) -> list[str]:
        """The names in a folder, sorted."""
        return [child.name for child, _ in self.entries()]

    def open(self) -> IO[bytes]:
        """A file to be read from its beginning on, a few megabytes at a time."""
        return io.BufferedReader(_Raw(self), READ_BYTES)

    def open_input(self) -> Any:
        """A file of Arrow's, for reads here and there. Its errors are not told by us: see `told`."""
        system, path = self.located()
        with self.told():
            return system.open_input_file(path)

    def read_bytes(self) -> bytes:
        with self.told(), self.open_input() as file:
            return bytes(file.read())

    def put(self, local: Path) -> None:
        """Copy a file of this machine here, in place of what is there. It appears when all of it was sent."""
        system, path = self.located()
        with self.told():
            if not has_folders(system):
                send(system, path, local)
            else:  # there a file can be seen while it is written, but renamed at once
                hidden = self.parent / f".{self.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
                hidden._send_and_move(path, local)
            if self._info().size != local.stat().st_size:
                raise PlaceError(f"{self}: what arrived is not what was sent: try again")

    def fetch(self, local: Path) -> None:
        """Copy the file to this machine."""
        with self.told(), self.open() as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, READ_BYTES)

    def rename(self, target: "Remote") -> None:
        """Give a file of this file system another name; where there are no folders it has both for a moment."""
        system, path = self.located()
        with self.told():
            if has_folders(system):
                system.move(path, target.located()[1])
                return
            if self.size() > _MOST_COPIED:
                with tempfile.TemporaryDirectory(prefix="pairwright-") as folder:
                    self.fetch(Path(folder, "file"))
                    target.put(Path(folder, "file"))
            else:
                system.copy_file(path, target.located()[1])
            system.delete_file(path)

    def unlink(self, *, missing_ok: bool = False) -> None:
        system, path = self.located()
        with self.told():
            try:
                system.delete_file(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_tree(self) -> None:
        """Delete a folder and all that is in it, if it is there."""
        system, path = self.located()
        with self.told():
            try:
                system.delete_dir(path)
            except FileNotFoundError:
                return

    def located(self) -> tuple[Any, str]:
        """The file system, and the path in it."""
        system, root = file_system(self.scheme, self.authority, self.login, self.query)
        if not root or not self.key:
            return system, root or self.key
        return system, f"{root.rstrip('/')}/{self.key}"

    def told(self) -> Any:
        """Errors of the file system as one line that names the address."""
        return told(self, self.login, self.query)

    def _info(self) -> Any:
        system, path = self.located()
        return system.get_file_info(path)

    def _kind(self) -> str:
        with self.told():
            return str(self._info().type.name)

    def _send_and_move(self, target: str, local: Path) -> None:
        system, path = self.located()
        if "/" in path.strip("/"):
            system.create_dir(path.rpartition("/")[0], recursive=True)
        try:
            send(system, path, local)
            system.move(path, target)
        except BaseException:
            with contextlib.suppress(OSError):
                system.delete_file(path)
            raise


class _Raw(io.RawIOBase):
    """A remote file as Python reads one. A piece that cannot be had is an error of the place, not of the data."""

    def __init__(self, remote: Remote) -> None:
        self._remote, self._file = remote, remote.open_input()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._remote.told():
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

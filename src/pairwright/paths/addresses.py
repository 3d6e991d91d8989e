"""Remote files: addresses such as `s3://bucket/key`, and the operations that the stages need.

Uploads are atomic: a file is written locally first, and appears under its name when the upload completes. There are no
locks and no appends. The text of an address omits credentials (before the @) and the query (after the ?).
"""

import contextlib
import ctypes
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

# Schemes that pyarrow.fs implements itself; any other scheme goes through fsspec
_NATIVE = frozenset({"s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs"})
_NO_FOLDERS = frozenset({"s3", "gcs", "abfs"})  # Arrow's names of object stores, in which folders are key prefixes
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_MAX_REASON_CHARS = 300
READ_BYTES = 2 * 2**20  # buffer of a sequential read
_MAX_COPY_BYTES = 5 * 2**30  # limit of a server-side copy in S3
_CHUNK_BYTES = 8 * 2**20
_SERVICE_ERROR = re.compile(r"AWS Error (\w+) during (\w+) operation:(.*)", re.S)
# AWS error code in Arrow's messages -> advice for the user
_HINTS = {
    "ACCESS_DENIED": "access denied: credentials are taken from the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...)",
    "INVALID_ACCESS_KEY_ID": "the server does not know the access key (AWS_ACCESS_KEY_ID)",
    "SIGNATURE_DOES_NOT_MATCH": "the secret key does not belong to the access key (AWS_SECRET_ACCESS_KEY)",
    "NO_SUCH_BUCKET": "no such bucket",
    "NETWORK_CONNECTION": "no connection: check the network and AWS_ENDPOINT_URL",
}


@lru_cache(maxsize=64)
def file_system(scheme: str, authority: str, login: str, query: str) -> tuple[Any, str]:
    """Return Arrow's file system for a scheme and authority, and the path of its root."""
    # the URI includes the login, the label in error messages does not
    label, root = f"{scheme}://{authority}", f"{scheme}://{login}{'@' if login else ''}{authority}/"
    with translate_errors(label, login, query):
        if scheme in _NATIVE:
            from pyarrow.fs import FileSystem

            full_query = _with_region(scheme, query)
            system, path = FileSystem.from_uri(root + (f"?{full_query}" if full_query else ""))
            return system, path
        return _fsspec(scheme, root, label)


def has_folders(system: Any) -> bool:
    """Whether a folder must exist before a file can be written to it."""
    return system.type_name not in _NO_FOLDERS


def send(system: Any, path: str, local: Path) -> None:
    """Upload a local file. A stream that failed or was interrupted is never destroyed: its destructor would publish a
    partial file, and when the process exits, it would wait forever for threads that have already ended."""
    stream = system.open_output_stream(path)
    try:
        with open(local, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                stream.write(chunk)
        stream.close()
    except BaseException:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
        raise


@contextmanager
def translate_errors(label: object, *secrets: str) -> Iterator[None]:
    """Translate errors of the file system to PlaceError: one line that names the address, without secrets."""
    from pyarrow import ArrowException

    try:
        yield
    except PairwrightError:
        raise
    except (OSError, ArrowException) as error:
        raise PlaceError(f"{label}: {_reason(error, secrets)}") from None


def _reason(error: Exception, secrets: tuple[str, ...]) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = " ".join(str(error).split())
    # mask login and query and each of their parts: an error may quote only the key or the password
    for secret in secrets:
        for piece in (secret, *re.split(r"[:&=]", secret)):
            text = text.replace(piece, "***") if len(piece) > 3 else text
    match = _SERVICE_ERROR.search(text)
    if match is None:
        return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}…"
    code, operation, detail = match.groups()
    detail = re.sub(r" \(Request ID: [^)]*\)", "", detail)
    return f"{_HINTS.get(code, detail.strip() or 'refused')} ({code}, {operation})"


def _with_region(scheme: str, query: str) -> str:
    """Add the configured region, else us-east-1, to the query of a custom S3 endpoint. Arrow finds the one of AWS."""
    has_endpoint = "endpoint_override=" in query or any(os.environ.get(name) for name in _ENDPOINTS)
    if scheme != "s3" or "region=" in query or not has_endpoint:
        return query
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return f"{query}{'&' if query else ''}region={region}"


def _fsspec(scheme: str, root: str, label: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(root)
    except (ImportError, ValueError) as error:  # fsspec or its backend is not installed, or the scheme is unknown
        reason = " ".join(str(error).replace(root, label).split())
        raise PlaceError(
            f"{label}: no file system for {scheme!r} here ({reason}): s3, gs, abfs and hdfs are built in, any "
            "other scheme needs its fsspec package"
        ) from None
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(system)), path


@dataclass(frozen=True)
class Remote:
    """A file or folder at an address. `key` is its path in the bucket or host; `login`, `query` may hold secrets."""

    scheme: str
    authority: str
    key: str
    login: str = field(default="", repr=False)
    query: str = field(default="", repr=False)
    # taken from a listing, which saves a request; ignored by ==
    known_size: int | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> "Remote":
        return self.at("/".join(part for part in (self.key, name) if part))

    def at(self, key: str) -> "Remote":
        """Return another path of the same file system."""
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
        """Do nothing: folders appear with their files."""

    def exists(self) -> bool:
        return self._kind() != "NotFound"

    def is_dir(self) -> bool:
        return self._kind() == "Directory"

    def is_file(self) -> bool:
        return self._kind() == "File"

    def size(self) -> int:
        """Return the size in bytes, from the listing if the file was listed."""
        if self.known_size is not None:
            return self.known_size
        with self.translate_errors():
            info = self._info()
            if info.size is None:
                raise PlaceError(f"{self}: no such file")
            return int(info.size)

    def stamp(self) -> tuple[int, int]:
        """Return the size, and the modification time in nanoseconds."""
        with self.translate_errors():
            info = self._info()
            return int(info.size or 0), int(info.mtime_ns or 0)

    def entries(self, *, recursive: bool = False) -> list[tuple["Remote", bool]]:
        """Return (entry, is_folder) pairs of a folder, sorted by name; [] if the folder does not exist."""
        from pyarrow.fs import FileSelector, FileType

        system, path = self.locate()
        with self.translate_errors():
            try:
                infos = system.get_file_info(FileSelector(path, recursive=recursive))
            except FileNotFoundError:
                return []
        children = []
        for info in sorted(infos, key=lambda info: info.path):
            # Arrow returns paths from the root of the file system: keep the part below this folder
            child = self / info.path.strip("/").removeprefix(path.strip("/")).strip("/")
            children.append((replace(child, known_size=info.size), info.type == FileType.Directory))
        return children

    def open(self) -> IO[bytes]:
        """Open for sequential reads, a few megabytes at a time."""
        return io.BufferedReader(_Raw(self), READ_BYTES)

    def open_input(self) -> Any:
        """Open as an Arrow file for random access. Exceptions of reads are not translated: use `translate_errors`."""
        system, path = self.locate()
        with self.translate_errors():
            return system.open_input_file(path)

    def read_bytes(self) -> bytes:
        with self.translate_errors(), self.open_input() as file:
            return bytes(file.read())

    def put(self, local: Path) -> None:
        """Upload a local file, replacing any existing one. It appears when the upload is complete."""
        system, path = self.locate()
        with self.translate_errors():
            if not has_folders(system):
                send(system, path, local)
            else:  # a direct upload would show a partial file; a rename is atomic
                hidden = self.parent / f".{self.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
                hidden._send_and_move(path, local)
            # detects an upload that was truncated without an error
            if self._info().size != local.stat().st_size:
                raise PlaceError(f"{self}: the upload is incomplete: try again")

    def fetch(self, local: Path) -> None:
        """Download the file."""
        with self.translate_errors(), self.open() as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, READ_BYTES)

    def rename(self, target: "Remote") -> None:
        """Rename within the file system. Object stores copy and delete, so both names exist for a moment."""
        system, path = self.locate()
        with self.translate_errors():
            if has_folders(system):
                system.move(path, target.locate()[1])
                return
            # above the limit of a server-side copy, copy through this machine
            if self.size() > _MAX_COPY_BYTES:
                with tempfile.TemporaryDirectory(prefix="pairwright-") as folder:
                    self.fetch(Path(folder, "file"))
                    target.put(Path(folder, "file"))
            else:
                system.copy_file(path, target.locate()[1])
            system.delete_file(path)

    def unlink(self, *, missing_ok: bool = False) -> None:
        system, path = self.locate()
        with self.translate_errors():
            try:
                system.delete_file(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_tree(self) -> None:
        """Delete a folder with all its files, if it exists."""
        system, path = self.locate()
        with self.translate_errors():
            try:
                system.delete_dir(path)
            except FileNotFoundError:
                return

    def locate(self) -> tuple[Any, str]:
        """Return the file system, and the path in it."""
        system, root = file_system(self.scheme, self.authority, self.login, self.query)
        # some file systems have the root "", and a bucket has the key "": avoid a leading or trailing "/"
        if not root or not self.key:
            return system, root or self.key
        return system, f"{root.rstrip('/')}/{self.key}"

    def translate_errors(self) -> Any:
        """Translate errors of the file system to PlaceError with this address."""
        return translate_errors(self, self.login, self.query)

    def _info(self) -> Any:
        system, path = self.locate()
        return system.get_file_info(path)

    def _kind(self) -> str:
        with self.translate_errors():
            return str(self._info().type.name)

    def _send_and_move(self, target: str, local: Path) -> None:
        system, path = self.locate()
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
    """A remote file as a raw Python stream. Failed reads raise PlaceError, so they are not mistaken for bad data."""

    def __init__(self, remote: Remote) -> None:
        self._remote, self._file = remote, remote.open_input()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._remote.translate_errors():
            return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


# A path on this machine, or an address.
Place = Path | Remote

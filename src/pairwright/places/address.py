"""An address: `s3://bucket/key` and the like, with the operations that the stages need there.

What is put appears whole or not at all: it is written here first, and gets its name with the end of the upload. There
are no locks and no appends. As text an address has neither what stands before its @ nor what stands behind its ?.
"""

import contextlib
import io
import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from pairwright.errors import PlaceError
from pairwright.places.file_systems import file_system, has_folders, send, told

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

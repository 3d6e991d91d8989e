"""The file system of an address, and what its errors say.

Arrow's own file systems speak s3, gs, abfs and hdfs; any other scheme is fsspec's. Both take credentials, endpoints and
regions from the environment, as they document. Nothing that may be a secret (what stands before an @, or behind a ?)
is ever part of a message.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from pairwright.errors import PairwrightError, PlaceError

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

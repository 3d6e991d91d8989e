"""Spooling of large request bodies to temporary files."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from pairwright.service.api_errors import Refusal
from pairwright.service.rows.blob_store import Blobs

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@asynccontextmanager
async def spool_body(request: Request, blobs: Blobs) -> AsyncIterator[Path]:
    """Write the body of a request to a temporary file, which is removed on exit."""
    path = blobs.new_upload()
    try:
        with open(path, "xb") as file:
            async for piece in request.stream():
                # Large writes go to a thread, so that they do not block the event loop.
                if len(piece) > 2**18:
                    await run_in_threadpool(file.write, piece)
                else:
                    file.write(piece)
        yield path
    finally:
        path.unlink(missing_ok=True)


def storage_refusal(error: OSError) -> Refusal | None:
    """Return a 507 refusal if the disk is full, None for other errors."""
    if error.errno not in _FULL:
        return None
    return Refusal(507, "disk_full", "the service's disk is full: nothing of this request was kept")

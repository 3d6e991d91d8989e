"""Bodies that are larger than memory should hold: written to disk as they come in, removed when they were read."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from pairwright.service.blobs import Blobs
from pairwright.service.refusals import Refusal

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@asynccontextmanager
async def spooled(request: Request, blobs: Blobs) -> AsyncIterator[Path]:
    """The body of a request as a file, for as long as the context lasts."""
    path = blobs.new_upload()
    try:
        with open(path, "xb") as file:
            async for piece in request.stream():
                if len(piece) > 2**18:
                    await run_in_threadpool(file.write, piece)
                else:
                    file.write(piece)
        yield path
    except ClientDisconnect:
        raise Refusal(400, "client_left", "the connection ended before the body did; nothing was kept") from None
    finally:
        path.unlink(missing_ok=True)


def storage_refusal(error: OSError) -> Refusal | None:
    """The refusal for a disk that is full; None for any other failure."""
    if error.errno not in _FULL:
        return None
    return Refusal(507, "disk_full", "the service's disk is full: nothing of this request was kept")

"""Spooling of large request bodies to temporary files."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from pairwright.service.rows.blob_store import Blobs


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

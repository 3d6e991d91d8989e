"""Git LFS uploads of hub clients: files that are sent before their commit, as `datasets.push_to_hub` does.

    POST /v1/hf/datasets/NS/NAME.git/info/lfs/objects/batch    returns an upload address per file
    PUT  /v1/hf/lfs/NS/NAME/SHA256?size=&until=&signature=     the file, at a signed address: no token is sent here

The commit then names files by their sha256. It may name only files that were sent to its own repository: knowing the
hash of somebody else's file does not give access to it.
"""

import hashlib
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from pairwright.service.access import CallerIs, ValidName, Writable
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context, ContextIs
from pairwright.service.rows import repositories
from pairwright.service.rows.blob_store import Blobs
from pairwright.service.run.usage import check_quota

router = APIRouter(prefix="/v1/hf", tags=["datasets on the hub endpoint"])
HOURS = 3600.0
MAX_SENT = 10_000  # files sent but not yet committed, whose hashes are kept in memory
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class LargeFile(BaseModel):
    oid: Sha256
    size: int = Field(ge=0, lt=2**53)


class BatchBody(BaseModel):
    operation: str = "upload"
    objects: list[LargeFile] = Field(max_length=1000)


@router.post("/datasets/{namespace}/{name}.git/info/lfs/objects/batch")
def plan_uploads(
    namespace: Writable, name: ValidName, body: BatchBody, request: Request, context: ContextIs
) -> dict[str, Any]:
    """Return the upload address of each file; existing files get no address."""
    with context.database.reading() as connection:
        repositories.head(connection, namespace, name)
    if body.operation != "upload":
        raise Refusal(422, "only_uploads", f"operation: got {body.operation[:40]!r}, expected 'upload'")
    check_quota(context, namespace, sum(file.size for file in body.objects))
    objects: list[dict[str, Any]] = []
    for file in body.objects:
        answer: dict[str, Any] = {"oid": file.oid, "size": file.size, "authenticated": True}
        if file.size > context.settings.max_upload_bytes:
            answer["error"] = {"code": 413, "message": f"larger than {context.settings.max_upload_bytes:,} bytes"}
        elif not was_sent(context, namespace, name, file.oid):
            until = int(time.time() + HOURS)
            signature = _sign(context, namespace, name, file.oid, file.size, until)
            path = f"v1/hf/lfs/{namespace}/{name}/{file.oid}?size={file.size}&until={until}&signature={signature}"
            answer["actions"] = {"upload": {"href": f"{request.base_url}{path}", "header": {}}}
        objects.append(answer)
    return {"transfer": "basic", "objects": objects}


@router.put("/lfs/{namespace}/{name}/{oid}")
async def receive_file(
    namespace: str,
    name: str,
    oid: str,
    request: Request,
    context: ContextIs,
    size: Annotated[int, Query(ge=0, lt=2**53)],
    until: Annotated[int, Query(ge=0, lt=2**53)],
    signature: Annotated[str, Query(max_length=100)],
) -> dict[str, str]:
    """Receive a file at a signed address."""
    expected = _sign(context, namespace, name, oid, size, until)
    if not hmac.compare_digest(signature.encode(), expected.encode()) or until < time.time():
        raise Refusal(403, "bad_signature", "the address is not one of this service, or too old: ask for it again")
    async with spool_body(request, context.blobs) as body:
        await run_in_threadpool(_keep, context, body, (namespace, name, oid), size)
    return {"oid": oid}


@router.get("/api/datasets/{namespace}/{name}/xet-write-token/{revision:path}")
def refuse_xet(namespace: str, name: str, revision: str, caller: CallerIs) -> None:
    """Refuse Xet storage, which this service does not have."""
    raise Refusal(422, "no_xet", "this service has no Xet storage: set HF_HUB_DISABLE_XET=1 for the client")


def was_sent(context: Context, namespace: str, name: str, oid: str) -> bool:
    """Return whether a file was sent to this repository, and still exists."""
    return (namespace, name, oid) in context.sent_files and context.blobs.path(oid).is_file()


def needs_large_file(path: str, user_agent: str) -> bool:
    """Return whether a client always sends this file before the commit, as `datasets` does with its shards."""
    return path.endswith(".parquet") and user_agent.startswith("datasets/")


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


def _keep(context: Context, body: Path, key: tuple[str, str, str], size: int) -> None:
    with open(body, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != key[2] or body.stat().st_size != size:
        raise Refusal(422, "other_content", f"the file has sha256 {digest}, not {key[2]}: send it again")
    with context.blobs.hold() as held, open(body, "rb") as file:
        context.blobs.add(iter(lambda: file.read(2**20), b""), size, held)
        while len(context.sent_files) >= MAX_SENT:
            context.sent_files.pop(next(iter(context.sent_files)), None)
        context.sent_files[key] = None


def _sign(context: Context, namespace: str, name: str, oid: str, size: int, until: int) -> str:
    # A separate secret: no deployment id equals this name.
    key = context.settings.secret_of("large files").encode()
    return hmac.new(key, f"{namespace}/{name}/{oid}/{size}/{until}".encode(), hashlib.sha256).hexdigest()

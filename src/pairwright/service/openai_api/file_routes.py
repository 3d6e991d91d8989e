"""Routes of OpenAI's files API: `/v1/files`, and a parser of its multipart bodies.

A file is a blob with a name, in the namespace of the caller.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from email.message import Message
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response

from pairwright.service.access import CallerIs
from pairwright.service.api_errors import Refusal, not_found
from pairwright.service.context import Context, ContextIs, Document
from pairwright.service.hub.spooling import spool_body
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_name, new_id
from pairwright.service.run.usage import check_quota, free_blobs

# Parses `multipart/form-data` bodies that were written to a file, without holding them in memory.
#
# Parts are returned as positions in the file. Invalid bodies are refused; no part is skipped.


MAX_PARTS = 20
MAX_HEAD = 16_384
_PIECE = 2**20


@dataclass(frozen=True)
class Part:
    """A field of a form: its name, its file name if it is a file, and the position of its content in the body."""

    name: str
    filename: str | None
    body: Path
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def pieces(self) -> Iterator[bytes]:
        with open(self.body, "rb") as file:
            file.seek(self.start)
            left = self.size
            while left and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                yield piece

    def text(self, limit: int = 1000) -> str:
        """Return the content of a short field. Raises a 422 refusal if it is too long or not text."""
        if self.size > limit:
            raise Refusal(422, "bad_form", f"{self.name[:100]}: expected at most {limit} bytes")
        try:
            return b"".join(self.pieces()).decode()
        except UnicodeDecodeError:
            raise Refusal(422, "bad_form", f"{self.name[:100]}: expected text") from None


def read_parts(body: Path, content_type: str) -> dict[str, Part]:
    """Return the fields of a form by name. Raises a 422 refusal for an invalid form."""
    boundary = _parameter("content-type", content_type, "boundary")
    if not content_type.lower().startswith("multipart/form-data") or not boundary or not body.stat().st_size:
        raise Refusal(422, "bad_form", "expected multipart/form-data with the fields file and purpose")
    mark = b"--" + boundary.encode("latin-1", "replace")
    parts: dict[str, Part] = {}
    with open(body, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = text.find(mark)
        while start >= 0:
            start += len(mark)
            if text[start : start + 2] == b"--":
                return parts
            head_end = text.find(b"\r\n\r\n", start, start + MAX_HEAD)
            end = text.find(b"\r\n" + mark, start)
            if head_end < 0 or end < head_end or len(parts) >= MAX_PARTS:
                break
            part = _part(text[start:head_end], body, head_end + 4, end)
            if part.name in parts:
                raise Refusal(422, "bad_form", f"the field {part.name[:100]!r} stands twice")
            parts[part.name] = part
            start = end + 2
    raise Refusal(422, "bad_form", "the form is cut short, or has too many fields")


def _part(head: bytes, body: Path, start: int, end: int) -> Part:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            field = _parameter("content-disposition", value, "name")
            if field:
                return Part(field, _parameter("content-disposition", value, "filename"), body, start, end)
    raise Refusal(422, "bad_form", "a part of the form has no name")


def _parameter(header: str, value: str, name: str) -> str | None:
    message = Message()
    message[header] = value.strip().replace("\r", " ").replace("\n", " ")
    parameter = message.get_param(name, header=header)
    # A parameter encoded by RFC 2231 is a tuple: character set, language, text.
    return parameter[2] if isinstance(parameter, tuple) else parameter


router = APIRouter(prefix="/v1/files", tags=["OpenAI files"])
PURPOSES = ("fine-tune", "evals", "user_data", "assistants", "batch", "vision")


@router.post("")
async def upload_file(request: Request, caller: CallerIs, context: ContextIs) -> Document:
    """Upload a file: a form with `file` and `purpose`."""
    namespace = home_namespace(caller, request)
    caller.check(namespace, write=True)
    async with spool_body(request, context.blobs) as body:
        parts = await run_in_threadpool(read_parts, body, request.headers.get("content-type", ""))
        return await run_in_threadpool(_keep, context, namespace, parts)


@router.get("")
def list_files(
    request: Request,
    caller: CallerIs,
    context: ContextIs,
    purpose: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=100)] = None,
) -> Document:
    """Files that the caller may read."""
    with context.database.reading() as connection:
        files = entities.every(connection, entities.FILE)
    mine = [
        file_document(document)
        for document in files
        if caller.may(document["namespace"], write=False) and purpose in (None, document["purpose"])
    ]
    return list_page(mine if order == "asc" else mine[::-1], after=after, limit=limit)


@router.get("/{file_id}")
def read_file(file_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """One file."""
    with context.database.reading() as connection:
        return file_document(find_file(connection, file_id, caller))


@router.get("/{file_id}/content", response_class=FileResponse)
def read_content(file_id: str, caller: CallerIs, context: ContextIs) -> Response:
    """The content of a file."""
    with context.database.reading() as connection:
        document = find_file(connection, file_id, caller)
    # Browsers must not run an uploaded HTML file as a page of this service.
    headers = {"x-content-type-options": "nosniff", "content-disposition": "attachment"}
    path = context.blobs.path(document["sha256"])
    return FileResponse(path, headers=headers, media_type="application/octet-stream")


@router.delete("/{file_id}")
def delete_file(file_id: str, caller: CallerIs, context: ContextIs) -> Document:
    """Delete a file; jobs that use it continue."""
    with context.database.writing() as connection:
        document = find_file(connection, file_id, caller, write=True)
        entities.delete(connection, entities.FILE, document["namespace"], file_id)
    free_blobs(context, {document["sha256"]})
    return {"id": file_id, "object": "file", "deleted": True}


def home_namespace(caller: Caller, request: Request) -> str:
    """Return the namespace of a caller, since OpenAI's API has none: the client's project, or the one it may write."""
    project = request.headers.get("openai-project")
    if project:
        return check_name(project, "OpenAI-Project")
    if caller.may("default", write=True):
        return "default"
    own = sorted(scope for scope in caller.scopes if ":" not in scope and scope != "*")
    if len(own) != 1:
        message = "the token is for several namespaces, or for none to write: name one as the client's project"
        raise Refusal(403, "no_namespace", message)
    return own[0]


def find_file(connection: Connection, file_id: str, caller: Caller, *, write: bool = False) -> Document:
    """Return the document of a file. Raises a 404 refusal if there is none, 403 if it is somebody else's."""
    document = entities.find_by_name(connection, entities.FILE, check_name(file_id, "file_id"))
    if document is None:
        raise not_found("file", file_id)
    caller.check(document["namespace"], write=write)
    return document


def file_document(document: Document) -> Document:
    """Build the API document of a file."""
    return {
        "id": document["name"],
        "object": "file",
        "bytes": document["bytes"],
        "created_at": unix_time(document["created_at"]),
        "filename": document["filename"],
        "purpose": document["purpose"],
        "status": "processed",
        "status_details": None,
    }


def list_page(documents: list[Document], *, after: str | None, limit: int) -> Document:
    """Build a page of a list, starting after the document with the id `after`."""
    start = 0
    if after is not None:
        start = next((place + 1 for place, item in enumerate(documents) if item["id"] == after), len(documents))
    data = documents[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "has_more": start + limit < len(documents),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def unix_time(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp())


def _keep(context: Context, namespace: str, parts: dict[str, Part]) -> Document:
    """Store the file of a form."""
    file, purpose = parts.get("file"), parts.get("purpose")
    if file is None or file.filename is None or purpose is None:
        raise Refusal(422, "bad_form", "expected the fields file (with a file name) and purpose")
    if purpose.text() not in PURPOSES:
        raise Refusal(422, "bad_purpose", f"purpose: got {purpose.text()[:100]!r}, expected {', '.join(PURPOSES)}")
    # The name is only displayed, never used as a path.
    filename = "".join(character for character in file.filename[:300] if character.isprintable())
    check_quota(context, namespace, file.size)
    identity = new_id("file")
    with context.blobs.hold() as held:
        blob = context.blobs.add(file.pieces(), file.size, held)
        document = {
            "namespace": namespace,
            "name": identity,
            "filename": filename or "file",
            "bytes": blob.size,
            "purpose": purpose.text(),
            "sha256": blob.sha256,
        }
        with context.database.writing() as connection:
            return file_document(entities.insert(connection, entities.FILE, namespace, identity, document))

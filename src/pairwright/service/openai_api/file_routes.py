"""Routes of OpenAI's files API: `/v1/files`.

A file is a blob with a name, in the namespace of the caller.
"""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy.engine import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

from pairwright.service.access import CallerIs
from pairwright.service.api_errors import Refusal, not_found
from pairwright.service.context import Context, ContextIs, Document
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_name, new_id
from pairwright.service.run.usage import check_quota, free_blobs

router = APIRouter(prefix="/v1/files", tags=["OpenAI files"])
MAX_FIELDS = 20
PURPOSES = ("fine-tune", "evals", "user_data", "assistants", "batch", "vision")


@router.post("")
async def upload_file(request: Request, caller: CallerIs, context: ContextIs) -> Document:
    """Upload a file: a form with `file` and `purpose`."""
    namespace = home_namespace(caller, request)
    caller.check(namespace, write=True)
    try:
        # Large files are written to a temporary file while they are received.
        async with request.form(max_files=1, max_fields=MAX_FIELDS) as form:
            return await run_in_threadpool(_keep, context, namespace, form)
    except HTTPException as error:
        raise Refusal(422, "bad_form", f"expected multipart/form-data: {error.detail}") from None


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
    """Return the document of a file. Raises a 404 refusal if there is none, 403 if the caller has no access."""
    document = entities.find_by_name(connection, entities.FILE, check_name(file_id, "file_id"))
    if document is None:
        raise not_found("file", file_id)
    caller.check(document["namespace"], write=write)
    return document


def file_document(document: Document) -> Document:
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


def _keep(context: Context, namespace: str, form: FormData) -> Document:
    files, purposes = form.getlist("file"), form.getlist("purpose")
    if len(files) != 1 or not isinstance(files[0], UploadFile) or len(purposes) != 1:
        raise Refusal(422, "bad_form", "expected the fields file (with a file name) and purpose, each once")
    file, purpose = files[0], purposes[0]
    if purpose not in PURPOSES:
        raise Refusal(422, "bad_purpose", f"purpose: got {str(purpose)[:100]!r}, expected {', '.join(PURPOSES)}")
    # The name is only displayed, never used as a path.
    filename = "".join(character for character in (file.filename or "")[:300] if character.isprintable())
    size = file.size or 0
    check_quota(context, namespace, size)
    identity = new_id("file")
    with context.blobs.hold() as held:
        blob = context.blobs.add(iter(lambda: file.file.read(2**20), b""), size, held)
        document = {
            "namespace": namespace,
            "name": identity,
            "filename": filename or "file",
            "bytes": blob.size,
            "purpose": purpose,
            "sha256": blob.sha256,
        }
        with context.database.writing() as connection:
            return file_document(entities.insert(connection, entities.FILE, namespace, identity, document))

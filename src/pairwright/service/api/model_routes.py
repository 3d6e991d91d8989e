"""Routes of models: their list and entries, and the proxy to their servers.

A model made by a job needs no explicit deployment: `/v1/chat/completions` starts one on first use, as clients of
OpenAI's API expect, and stops the least recently used one if there is no room.
"""

import asyncio
import time
from urllib.parse import urlsplit

import httpx
import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Request
from sqlalchemy.engine import RowMapping
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from pairwright.service.access import CallerIs, Readable, ValidName
from pairwright.service.api.paging import FILTERED, PagingIs, envelope
from pairwright.service.api_errors import Refusal, already_there
from pairwright.service.context import Context, ContextIs, Document
from pairwright.service.request_models import ModelBody, ModelUpdate
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_model_name, check_name, now, short_hash
from pairwright.service.rows.schema import deployments as rows
from pairwright.service.run import deployments
from pairwright.service.run.deployments import EXTERNAL, DeploymentState
from pairwright.service.run.model_names import (
    AUTOMATIC,
    MODEL_FILTERS,
    find_model,
    list_models,
    model_folder,
    remove_model,
)
from pairwright.service.settings import Settings

router = APIRouter(tags=["models"])
# Headers passed on to the model server and back; tokens of the service never reach it.
_PASSED_ON = ("content-type", "accept", "x-request-id")
_PASSED_BACK = ("content-type", "x-request-id", "retry-after", "cache-control")
_POLL_SECONDS = 0.2


@router.get("/v1/models", openapi_extra=FILTERED)
def read_models(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Response:
    """Models of jobs, base models, and entries."""
    filters = {key: values for key, _, values in asked.parts(MODEL_FILTERS, has_bounds=False)}
    with context.database.reading() as connection:
        documents, total = list_models(
            connection,
            caller,
            filters=filters,
            by_name=asked.key == "name",
            is_descending=asked.is_descending,
            start=(asked.page - 1) * asked.page_size,
            limit=asked.page_size,
        )
    return envelope(documents, total, asked)


@router.post("/v1/models")
def create_model(body: ModelBody, caller: CallerIs, context: ContextIs) -> Document:
    """Create the entry of a model."""
    check_name(body.namespace, "namespace")
    check_model_name(body.name, "name")
    caller.check(body.namespace, write=True)
    with context.database.writing() as connection:
        try:
            find_model(connection, f"{body.namespace}/{body.name}", caller)
        except Refusal as refusal:
            if refusal.status != 404:
                raise
        else:
            raise already_there("model", f"{body.namespace}/{body.name}")
        entities.insert(connection, entities.MODEL, body.namespace, body.name, body.model_dump())
        return find_model(connection, f"{body.namespace}/{body.name}", caller)


@router.get("/v1/models/{model:path}")
def read_model(model: str, caller: CallerIs, context: ContextIs) -> Document:
    """One model, by its full name."""
    with context.database.reading() as connection:
        return find_model(connection, check_model_name(model, "model"), caller)


@router.patch("/v1/models/{model:path}")
def update_model(model: str, body: ModelUpdate, caller: CallerIs, context: ContextIs) -> Document:
    """Change the entry of a model."""
    namespace, _, name = check_model_name(model, "model").partition("/")
    caller.check(check_name(namespace, "namespace"), write=True)
    with context.database.writing() as connection:
        find_model(connection, model, caller)
        changes = body.model_dump(exclude_unset=True)
        if entities.find(connection, entities.MODEL, namespace, name) is None:
            entities.insert(
                connection, entities.MODEL, namespace, name, {"namespace": namespace, "name": name, **changes}
            )
        else:
            entities.update(connection, entities.MODEL, namespace, name, changes)
        return find_model(connection, model, caller)


@router.delete("/v1/models/{model:path}")
def delete_model(model: str, caller: CallerIs, context: ContextIs) -> Document:
    """Delete a model of a job, or an entry; the job stays."""
    remove_model(context, check_model_name(model, "model"), caller)
    return {"id": model, "object": "model", "deleted": True, "deleted_at": now(), "message": "deleted"}


@router.post("/v1/chat/completions")
@router.post("/v1/completions")
async def complete(request: Request, caller: CallerIs, context: ContextIs) -> Response:
    """Complete with the model named in the body's `model`; it is deployed on first use."""
    body = await request.body()
    try:
        model = msgspec.json.decode(body, type=_Asked).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Refusal(422, "bad_body", "expected JSON with a 'model'") from None
    row = await run_in_threadpool(_row_of_model, context, caller, model)
    row = await _wait_until_ready(request, context, row)
    return await _forward(request, context, row, request.url.path.lstrip("/"), body)


@router.get("/deployments/{namespace}/{name}/{path:path}")
@router.post("/deployments/{namespace}/{name}/{path:path}")
async def ask_deployment(
    namespace: Readable, name: ValidName, path: str, request: Request, context: ContextIs
) -> Response:
    """The model server of a deployment: `/v1/chat/completions`, `/v1/models` and so on."""
    row = await run_in_threadpool(_row, context, namespace, name)
    # No other route of the model server can be reached from outside.
    if path != "health" and not path.startswith("v1/"):
        raise Refusal(404, "unknown_route", f"{path[:100]!r}: expected health or a path below v1/")
    _refuse_unready(row)
    return await _forward(request, context, row, path, await request.body())


def check_endpoint(url: str, settings: Settings) -> None:
    """Raise a 422 refusal unless the operator allows deployments that lead to this address."""
    try:
        parts = urlsplit(url)
        address = f"{parts.scheme}://{parts.netloc}"
    except ValueError:
        address = ""
    if address not in settings.external_endpoints:
        allowed = ", ".join(settings.external_endpoints) or "none; the operator names them with --external-endpoint"
        raise Refusal(
            422, "endpoint_not_allowed", f"external_endpoint.host_url: {url[:200]!r} is not allowed: {allowed}"
        )


class _Asked(msgspec.Struct):
    model: str


def _row(context: Context, namespace: str, name: str) -> RowMapping:
    with context.database.reading() as connection:
        return deployments.get(connection, namespace, name)


def _row_of_model(context: Context, caller: Caller, model: str) -> RowMapping:
    """Return the deployment of a model; starts one if a job made the model and nothing serves it."""
    # PostgreSQL rejects text with a null character.
    name = model.replace("\0", "")
    with context.database.reading() as connection:
        chosen = sa.select(rows).where(rows.c.model == name, rows.c.state != DeploymentState.FAILED)
        matches = [
            row
            for row in connection.execute(chosen.order_by(rows.c.created_at.desc())).mappings()
            if caller.may(row["namespace"], write=False)
        ]
    if matches:
        row = next((row for row in matches if row["state"] == DeploymentState.READY), matches[0])
        context.asked[row["id"]] = time.monotonic()
        return row
    return _deploy(context, caller, name)


def _deploy(context: Context, caller: Caller, model: str) -> RowMapping:
    """Start a deployment of a model. Raises a refusal if there is none (404), or the caller may only read (403)."""
    with context.database.writing_one_at_a_time("deployments") as connection:
        try:
            document = find_model(connection, check_model_name(model, "model"), caller)
            caller.check(document["namespace"], write=True)
            folder = model_folder(connection, model, caller, context.settings)
        except Refusal as refusal:
            if refusal.status == 422 or refusal.status == 404:
                raise Refusal(404, "model_not_found", f"model: no model {model[:300]!r}") from None
            raise
        # A failed deployment is replaced under the same name.
        name = AUTOMATIC + short_hash(model)
        failed = (rows.c.namespace == document["namespace"], rows.c.name == name)
        connection.execute(sa.delete(rows).where(*failed, rows.c.state == DeploymentState.FAILED))
        _make_room(connection, context)
        work = {"folder": str(folder), "arguments": ["--name", model]}
        row = deployments.insert(
            connection,
            context.settings,
            namespace=document["namespace"],
            name=name,
            model=model,
            document={"config": None, "models": [model], "description": "started on first use", "work": work},
        )
    context.asked[row["id"]] = time.monotonic()
    context.wake.set()
    return row


def _make_room(connection: sa.Connection, context: Context) -> None:
    served = deployments.served_here(connection)
    automatic = [row for row in served if row["name"].startswith(AUTOMATIC)]
    if len(served) >= context.settings.max_deployments and automatic:
        oldest = min(automatic, key=lambda row: (context.asked.get(row["id"], 0.0), row["created_at"]))
        connection.execute(sa.delete(rows).where(rows.c.id == oldest["id"]))


async def _wait_until_ready(request: Request, context: Context, row: RowMapping) -> RowMapping:
    """Wait for the server of an automatic deployment; other deployments must already be ready."""
    if row["name"].startswith(AUTOMATIC):
        deadline = time.monotonic() + context.settings.start_seconds
        while row["state"] in (DeploymentState.CREATED, DeploymentState.PENDING) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
            if await request.is_disconnected():
                raise Refusal(400, "client_left", "the client left before the model was ready")
            row = await run_in_threadpool(_row, context, row["namespace"], row["name"])
    _refuse_unready(row)
    return row


def _refuse_unready(row: RowMapping) -> None:
    if row["state"] != DeploymentState.READY or row["port"] is None:
        message = f"the deployment is {row['state']}: {row['description']}"
        raise Refusal(503, "deployment_not_ready", message, headers={"retry-after": "2"})


async def _forward(request: Request, context: Context, row: RowMapping, path: str, body: bytes) -> Response:
    client: httpx.AsyncClient = request.app.state.client
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    if row["port"] == EXTERNAL:
        work = row["document"]["work"]
        check_endpoint(work["host_url"], context.settings)
        base, key = httpx.URL(work["host_url"]), work["api_key"]
        path = base.path.rstrip("/").removesuffix("/v1").lstrip("/") + "/" + path
    else:
        base, key = httpx.URL(f"http://127.0.0.1:{row['port']}/"), context.settings.secret_of(row["id"])
    if key:
        headers["authorization"] = f"Bearer {key}"
    # Built from parts, so that the path cannot change host or port.
    url = base.copy_with(path="/" + path.lstrip("/"), query=request.url.query.encode() or None)
    asked = client.build_request(request.method, url, headers=headers, content=body)
    try:
        # Streamed, so that tokens reach the client as they are generated.
        answer = await client.send(asked, stream=True)
    except httpx.HTTPError as error:
        message = context.settings.hide_paths(f"the model server did not answer: {type(error).__name__}")
        raise Refusal(502, "model_server_failed", message) from None
    back = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
    return StreamingResponse(answer.aiter_raw(), answer.status_code, back, background=BackgroundTask(answer.aclose))

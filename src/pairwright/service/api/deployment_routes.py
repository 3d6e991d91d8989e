"""Routes of deployment configs, deployments and models, and the proxy to the model servers."""

from typing import Annotated, Any

import httpx
import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from pairwright.jobs import process
from pairwright.service.access import CallerIs
from pairwright.service.api.paging import FILTERED, Getter, PagingIs, page_of
from pairwright.service.api_errors import Refusal, already_there
from pairwright.service.request_models import DeploymentBody, DeploymentConfigBody
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.entities import check_model_name, check_name, new_id, now, split_reference
from pairwright.service.rows.schema import deployments as rows
from pairwright.service.run import deployments
from pairwright.service.run.deployments import DeploymentState, check_known, every_model, model_folder
from pairwright.service.settings import Context, context_of

router = APIRouter(tags=["deployments"])
ContextIs = Annotated[Context, Depends(context_of)]
Document = dict[str, Any]
# Headers passed on to the model server and back; tokens of the service never reach it.
_PASSED_ON = ("content-type", "accept", "x-request-id")
_PASSED_BACK = ("content-type", "x-request-id", "retry-after", "cache-control")


@router.post("/v1/deployment/configs")
def create_config(body: DeploymentConfigBody, caller: CallerIs, context: ContextIs) -> Document:
    """Say which model is to be served, under a name."""
    check_name(body.namespace, "namespace")
    check_name(body.name, "name")
    caller.check(body.namespace, write=True)
    check_model_name(body.model, "model")
    with context.database.writing() as connection:
        check_known(connection, body.model, caller)
        return entities.insert(connection, entities.DEPLOYMENT_CONFIG, body.namespace, body.name, body.model_dump())


@router.get("/v1/deployment/configs", openapi_extra=FILTERED)
def list_configs(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Document:
    """Deployment configs that the caller may read."""
    with context.database.reading() as connection:
        configs = entities.every(connection, entities.DEPLOYMENT_CONFIG)
    mine = [document for document in configs if caller.may(document["namespace"], write=False)]
    return page_of(mine, asked, {name: _field(name) for name in ("namespace", "name", "model", "project")})


@router.get("/v1/deployment/configs/{namespace}/{name}")
def read_config(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
    """One deployment config."""
    caller.check(check_name(namespace, "namespace"), write=False)
    with context.database.reading() as connection:
        return entities.get(connection, entities.DEPLOYMENT_CONFIG, namespace, check_name(name, "name"))


@router.delete("/v1/deployment/configs/{namespace}/{name}")
def delete_config(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
    """Delete a deployment config; deployments made from it stay."""
    caller.check(check_name(namespace, "namespace"), write=True)
    with context.database.writing() as connection:
        gone = entities.delete(connection, entities.DEPLOYMENT_CONFIG, namespace, check_name(name, "name"))
    return {"id": gone["id"], "deleted_at": now(), "message": "deleted"}


@router.post("/v1/deployment/model-deployments")
def create_deployment(body: DeploymentBody, request: Request, caller: CallerIs, context: ContextIs) -> Document:
    """Serve the model of a config. The deployment is `ready` when its server answers."""
    check_name(body.namespace, "namespace")
    check_name(body.name, "name")
    caller.check(body.namespace, write=True)
    config_namespace, config_name = split_reference(body.config, "config")
    caller.check(config_namespace, write=False)
    # Serialized, so that two requests cannot both see the last free place.
    with context.database.writing_one_at_a_time("deployments") as connection:
        config = entities.get(connection, entities.DEPLOYMENT_CONFIG, config_namespace, config_name)
        taken = sa.select(rows.c.id).where(rows.c.namespace == body.namespace, rows.c.name == body.name)
        if connection.scalar(taken) is not None:
            raise already_there("deployment", f"{body.namespace}/{body.name}")
        live = sa.select(sa.func.count()).select_from(rows).where(rows.c.state != DeploymentState.FAILED)
        if (connection.scalar(live) or 0) >= context.settings.max_deployments:
            raise Refusal(
                409, "too_many_deployments", f"{context.settings.max_deployments} models are served: delete one first"
            )
        folder = model_folder(connection, config["model"], caller, context.settings)
        moment = now()
        document = {
            **body.model_dump(exclude={"name", "namespace"}),
            "models": [config["model"]],
            "work": {"folder": str(folder), "arguments": ["--name", config["model"]]},
        }
        row = {
            "id": new_id("deployment"),
            "namespace": body.namespace,
            "name": body.name,
            "model": config["model"],
            "state": DeploymentState.CREATED.value,
            "description": "waiting for its model server",
            "starts": 0,
            "created_at": moment,
            "updated_at": moment,
            "state_at": moment,
            "document": msgspec.json.encode(document).decode(),
        }
        connection.execute(sa.insert(rows).values(row))
        deployment = deployments.get(connection, body.namespace, body.name)
    # Wakes the supervisor, which starts the server.
    context.wake.set()
    return deployments.deployment_document(deployment, str(request.base_url))


@router.get("/v1/deployment/model-deployments", openapi_extra=FILTERED)
def list_deployments(asked: PagingIs, request: Request, caller: CallerIs, context: ContextIs) -> Document:
    """Deployments that the caller may read, newest first."""
    with context.database.reading() as connection:
        deployment_rows = list(connection.execute(sa.select(rows)).mappings())
    base = str(request.base_url)
    mine = [
        deployments.deployment_document(row, base)
        for row in deployment_rows
        if caller.may(row["namespace"], write=False)
    ]
    filters: dict[str, Getter] = {name: _field(name) for name in ("namespace", "name", "config", "project")}
    filters["status"] = lambda document: document["status_details"]["status"]
    return page_of(mine, asked, filters)


@router.get("/v1/deployment/model-deployments/{namespace}/{name}")
def read_deployment(namespace: str, name: str, request: Request, caller: CallerIs, context: ContextIs) -> Document:
    """One deployment."""
    caller.check(check_name(namespace, "namespace"), write=False)
    with context.database.reading() as connection:
        row = deployments.get(connection, namespace, check_name(name, "name"))
    return deployments.deployment_document(row, str(request.base_url))


@router.get("/v1/deployment/model-deployments/{namespace}/{name}/logs")
def read_deployment_log(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
    """The last lines that the model server wrote."""
    caller.check(check_name(namespace, "namespace"), write=False)
    with context.database.reading() as connection:
        row = deployments.get(connection, namespace, check_name(name, "name"))
    return {"lines": process.log_end(context.settings.deployment_folder(row["id"]), 200)}


@router.delete("/v1/deployment/model-deployments/{namespace}/{name}")
def delete_deployment(namespace: str, name: str, caller: CallerIs, context: ContextIs) -> Document:
    """Stop serving a model."""
    caller.check(check_name(namespace, "namespace"), write=True)
    with context.database.writing() as connection:
        row = deployments.get(connection, namespace, check_name(name, "name"))
        connection.execute(sa.delete(rows).where(rows.c.id == row["id"]))
    context.wake.set()
    return {"id": row["id"], "deleted_at": now(), "message": "deleted"}


@router.get("/v1/models", openapi_extra=FILTERED)
def list_models(asked: PagingIs, caller: CallerIs, context: ContextIs) -> Document:
    """Models that jobs made, and base models."""
    with context.database.reading() as connection:
        models = every_model(connection, caller)
    return page_of(models, asked, {name: _field(name) for name in ("namespace", "name")})


@router.post("/v1/chat/completions")
@router.post("/v1/completions")
async def complete(request: Request, caller: CallerIs, context: ContextIs) -> Response:
    """Ask a model that is deployed, by its name in the body's `model`."""
    body = await request.body()
    try:
        model = msgspec.json.decode(body, type=_Asked).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Refusal(422, "bad_body", "expected JSON with a 'model' that is deployed") from None
    port = await run_in_threadpool(_port_of_model, context, caller, model)
    return await _forward(request, port, request.url.path.lstrip("/"), body)


@router.get("/deployments/{namespace}/{name}/{path:path}")
@router.post("/deployments/{namespace}/{name}/{path:path}")
async def ask_deployment(
    namespace: str, name: str, path: str, request: Request, caller: CallerIs, context: ContextIs
) -> Response:
    """The model server of a deployment: `/v1/chat/completions`, `/v1/models` and so on."""
    port = await run_in_threadpool(_port, context, caller, namespace, name)
    # No other route of the model server can be reached from outside.
    if path != "health" and not path.startswith("v1/"):
        raise Refusal(404, "unknown_route", f"{path[:100]!r}: expected health or a path below v1/")
    return await _forward(request, port, path, await request.body())


class _Asked(msgspec.Struct):
    model: str


def _port(context: Context, caller: Caller, namespace: str, name: str) -> int:
    caller.check(check_name(namespace, "namespace"), write=False)
    with context.database.reading() as connection:
        row = deployments.get(connection, namespace, check_name(name, "name"))
    return _ready_port(row)


def _port_of_model(context: Context, caller: Caller, model: str) -> int:
    with context.database.reading() as connection:
        # PostgreSQL refuses text with a null character.
        chosen = sa.select(rows).where(rows.c.model == model.replace("\0", "")).order_by(rows.c.created_at.desc())
        matches = [row for row in connection.execute(chosen).mappings() if caller.may(row["namespace"], write=False)]
    if not matches:
        raise Refusal(404, "model_not_deployed", f"model: {model[:300]!r} is not deployed")
    # One that is ready, else the newest, whose state tells why it cannot answer.
    return _ready_port(next((row for row in matches if row["state"] == DeploymentState.READY), matches[0]))


def _ready_port(row: Any) -> int:
    if row["state"] != DeploymentState.READY or row["port"] is None:
        raise Refusal(
            503,
            "deployment_not_ready",
            f"the deployment is {row['state']}: {row['description']}",
            headers={"retry-after": "2"},
        )
    return int(row["port"])


async def _forward(request: Request, port: int, path: str, body: bytes) -> Response:
    """Proxy a request to a model server and stream the response."""
    client: httpx.AsyncClient = request.app.state.client
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    # Built from parts, so that the path cannot change host or port.
    url = httpx.URL(f"http://127.0.0.1:{port}/", path="/" + path, query=request.url.query.encode())
    asked = client.build_request(request.method, url, headers=headers, content=body)
    try:
        # Streamed, so that tokens reach the client as they are generated.
        answer = await client.send(asked, stream=True)
    except httpx.HTTPError as error:
        raise Refusal(502, "model_server_failed", f"the model server did not answer: {error!r}") from None
    back = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
    # The connection is released after the last byte was sent.
    return StreamingResponse(answer.aiter_raw(), answer.status_code, back, background=BackgroundTask(answer.aclose))


def _field(name: str) -> Getter:
    return lambda document: document.get(name)

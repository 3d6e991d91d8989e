"""Routes of deployment configs and deployments."""

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import Response

from pairwright.jobs import process
from pairwright.service.access import CallerIs, Readable, ValidName, Writable
from pairwright.service.api.entity_crud import EntityKind, add_entity_routes, deletion_document
from pairwright.service.api.model_routes import check_endpoint
from pairwright.service.api.paging import FILTERED, PagingIs, page_of
from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context, ContextIs, Document
from pairwright.service.request_models import (
    DeploymentBody,
    DeploymentConfigBody,
    DeploymentConfigUpdate,
    DeploymentUpdate,
    InlineConfig,
    Served,
)
from pairwright.service.rows import entities
from pairwright.service.rows.api_tokens import Caller
from pairwright.service.rows.names import check_model_name, check_name, new_id, now, split_reference
from pairwright.service.rows.schema import deployments as rows
from pairwright.service.run import deployments
from pairwright.service.run.model_names import find_known, model_folder

router = APIRouter(tags=["deployments"])


@router.post("/v1/deployment/model-deployments")
def create_deployment(body: DeploymentBody, request: Request, caller: CallerIs, context: ContextIs) -> Document:
    """Serve the model of a config. The deployment is `ready` when its server answers."""
    check_name(body.namespace, "namespace")
    name = new_id("deployment") if body.name is None else check_name(body.name, "name")
    caller.check(body.namespace, write=True)
    # Serialized, so that two requests cannot both take the last free place.
    with context.database.writing_one_at_a_time("deployments") as connection:
        model, fields = _served(connection, body.config, caller, context)
        document = {**body.model_dump(exclude={"name", "namespace", "config"}), **fields}
        deployment = deployments.insert(
            connection, context.settings, namespace=body.namespace, name=name, model=model, document=document
        )
    context.wake.set()
    return deployments.deployment_document(deployment, str(request.base_url))


@router.patch("/v1/deployment/model-deployments/{namespace}/{name}")
def update_deployment(
    namespace: Writable,
    name: ValidName,
    body: DeploymentUpdate,
    request: Request,
    caller: CallerIs,
    context: ContextIs,
) -> Document:
    """Change a deployment; a new config replaces its model server."""
    with context.database.writing_one_at_a_time("deployments") as connection:
        row = deployments.get(connection, namespace, name)
        known = row["document"]
        document = known | body.model_dump(exclude_unset=True, exclude={"config"})
        model = row["model"]
        if body.config is not None:
            model, fields = _served(connection, body.config, caller, context)
            document |= fields
        if document["work"] == known["work"]:
            values = {"document": document, "updated_at": now()}
            connection.execute(sa.update(rows).where(rows.c.id == row["id"]).values(values))
            row = deployments.get(connection, namespace, name)
        else:
            # A new row: the server of the old one is stopped, since its row is gone.
            connection.execute(sa.delete(rows).where(rows.c.id == row["id"]))
            row = deployments.insert(
                connection, context.settings, namespace=namespace, name=name, model=model, document=document
            )
    context.wake.set()
    return deployments.deployment_document(row, str(request.base_url))


@router.get("/v1/deployment/model-deployments", openapi_extra=FILTERED)
def list_deployments(asked: PagingIs, request: Request, caller: CallerIs, context: ContextIs) -> Response:
    """Deployments that the caller may read, newest first."""
    with context.database.reading() as connection:
        deployment_rows = list(connection.execute(sa.select(rows)).mappings())
    base = str(request.base_url)
    mine = [
        deployments.deployment_document(row, base)
        for row in deployment_rows
        if caller.may(row["namespace"], write=False)
    ]
    return page_of(mine, asked, "namespace", "name", "config", "project", status="status_details.status")


@router.get("/v1/deployment/model-deployments/{namespace}/{name}")
def read_deployment(namespace: Readable, name: ValidName, request: Request, context: ContextIs) -> Document:
    """One deployment."""
    with context.database.reading() as connection:
        row = deployments.get(connection, namespace, name)
    return deployments.deployment_document(row, str(request.base_url))


@router.get("/v1/deployment/model-deployments/{namespace}/{name}/logs")
def read_deployment_log(namespace: Readable, name: ValidName, context: ContextIs) -> Document:
    """The last lines that the model server wrote."""
    with context.database.reading() as connection:
        row = deployments.get(connection, namespace, name)
    text = "\n".join(process.log_end(context.settings.deployment_folder(row["id"]), 200))
    return {"lines": context.settings.hide_paths(text).split("\n") if text else []}


@router.delete("/v1/deployment/model-deployments/{namespace}/{name}")
def delete_deployment(namespace: Writable, name: ValidName, context: ContextIs) -> Document:
    """Stop serving a model."""
    with context.database.writing() as connection:
        row = deployments.get(connection, namespace, name)
        connection.execute(sa.delete(rows).where(rows.c.id == row["id"]))
    context.wake.set()
    return deletion_document(row["id"])


def _check_config(connection: sa.Connection, body: Served, caller: Caller, context: Context) -> None:
    is_update = isinstance(body, DeploymentConfigUpdate)
    if body.external_endpoint is not None:
        check_endpoint(body.external_endpoint.host_url, context.settings)
        if not is_update and body.model is None and not body.external_endpoint.enabled_models:
            raise Refusal(422, "no_model", "external_endpoint.enabled_models: expected the name of a model")
    elif body.model is not None:
        find_known(connection, check_model_name(body.model, "model"), caller)
    elif not is_update:
        raise Refusal(422, "no_model", "model: expected the name of a model, or an external_endpoint")


def _served(
    connection: sa.Connection, config: str | InlineConfig, caller: Caller, context: Context
) -> tuple[str, Document]:
    if isinstance(config, str):
        namespace, name = split_reference(config, "config")
        caller.check(namespace, write=False)
        document = entities.get(connection, entities.DEPLOYMENT_CONFIG, namespace, name)
    else:
        _check_config(connection, config, caller, context)
        document = {"model": None, **config.model_dump(exclude_none=True)}
    public_config = config if isinstance(config, str) else _config_document(document)
    endpoint = document.get("external_endpoint")
    if endpoint is not None:
        check_endpoint(endpoint["host_url"], context.settings)
        models = endpoint.get("enabled_models") or [document["model"]]
        work = {"host_url": endpoint["host_url"], "api_key": endpoint.get("api_key")}
        return models[0], {"config": public_config, "models": models, "work": work}
    folder = model_folder(connection, document["model"], caller, context.settings)
    work = {"folder": str(folder), "arguments": ["--name", document["model"]]}
    return document["model"], {"config": public_config, "models": [document["model"]], "work": work}


def _config_document(document: Document) -> Document:
    """Return the document of a config for clients, with the endpoint's key masked."""
    endpoint = document.get("external_endpoint")
    if not endpoint:
        return document
    return {**document, "external_endpoint": {**endpoint, "api_key": "***" if endpoint.get("api_key") else None}}


CONFIG = EntityKind(
    entities.DEPLOYMENT_CONFIG,
    DeploymentConfigBody,
    DeploymentConfigUpdate,
    ("namespace", "name", "model", "project"),
    _check_config,
    _config_document,
)
add_entity_routes(router, "/v1/deployment/configs", CONFIG)

"""A service of the Customizer protocol that does what a test tells it to: small, in memory, on a real port.

`script` says what happens: a list of answers for a (method, path) that are given one after the other before the usual
one; an int is a status, "drop" closes the connection after the request was carried out, "refuse" before.
"""

import asyncio
import base64
import hashlib
import json
import socket
import threading
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Peer:
    """State of the service, and the requests that it received."""

    def __init__(self) -> None:
        self.namespaces, self.store_namespaces, self.datasets = set(), set(), {}
        self.repos, self.jobs, self.deployments, self.configs = {}, {}, {}, {}
        self.statuses: list[dict] = [{"status": "completed", "percentage_done": 100.0}]
        self.deployment_statuses = ["ready"]
        self.script: dict[tuple[str, str], list] = {}
        self.seen: list[tuple[str, str, dict, bytes]] = []
        self.url = ""

    def bodies(self, method: str, path: str) -> list:
        return [json.loads(body) for verb, place, _, body in self.seen if (verb, place) == (method, path) and body]

    def headers(self, path: str) -> list[dict]:
        return [headers for _, place, headers, _ in self.seen if place == path]


def peer_app(peer: Peer) -> Starlette:
    async def namespaces(request, body):
        known, name = peer.namespaces, json.loads(body)["id"]
        known_before = name in known
        known.add(name)
        return (409, {"detail": "exists"}) if known_before else (200, {"id": name})

    async def store_namespaces(request, body):
        known_before = body in peer.store_namespaces
        peer.store_namespaces.add(body)
        return (422, {"detail": "exists"}) if known_before else (201, {})

    async def datasets(request, body):
        row = json.loads(body)
        key = (row["namespace"], row["name"])
        if key in peer.datasets:
            return 409, {"detail": "exists"}
        peer.datasets[key] = row
        return 200, row

    async def create_job(request, body):
        row = json.loads(body)
        job_id = f"cust-{len(peer.jobs)}"
        peer.jobs[job_id] = {
            **row,
            "id": job_id,
            "output_model": f"{row['namespace']}/tuned@{job_id}",
            "status": "created",
        }
        return 200, peer.jobs[job_id]

    async def list_jobs(request, body):
        return 200, {"data": list(reversed(peer.jobs.values())), "pagination": {"page": 1, "total_pages": 1}}

    async def job(request, body):
        return 200, peer.jobs[request.path_params["id"]]

    async def status(request, body):
        found = peer.statuses.pop(0) if len(peer.statuses) > 1 else peer.statuses[0]
        return 200, found

    async def cancel(request, body):
        peer.statuses = [{"status": "cancelled", "percentage_done": 5.0}]
        return 200, {**peer.jobs[request.path_params["id"]], "status": "cancelling"}

    async def logs(request, body):
        return 200, {"entries": {"pod": {"logs": {"main": "one\ntwo"}}}}

    async def configs(request, body):
        return 200, {"data": []}

    async def deployment_configs(request, body):
        row = json.loads(body)
        if row["name"] in peer.configs:
            return 409, {"detail": "exists"}
        peer.configs[row["name"]] = row
        return 200, row

    async def deployments(request, body):
        row = json.loads(body)
        if row["name"] in peer.deployments:
            return 409, {"detail": "exists"}
        model = peer.configs[row["config"].split("/")[1]]["model"]
        peer.deployments[row["name"]] = {**row, "url": "http://model", "models": [model]}
        return 200, row

    async def list_deployments(request, body):
        found = peer.deployment_statuses.pop(0) if len(peer.deployment_statuses) > 1 else peer.deployment_statuses[0]
        rows = [
            {**row, "status_details": {"status": found, "description": "said so"}} for row in peer.deployments.values()
        ]
        return 200, {"object": "list", "data": rows}

    routes = [
        ("POST", "/v1/namespaces", namespaces), ("POST", "/v1/datastore/namespaces", store_namespaces),
        ("POST", "/v1/datasets", datasets), ("POST", "/v1/customization/jobs", create_job),
        ("GET", "/v1/customization/jobs", list_jobs), ("GET", "/v1/customization/jobs/{id}", job),
        ("GET", "/v1/customization/jobs/{id}/status", status), ("POST", "/v1/customization/jobs/{id}/cancel", cancel),
        ("GET", "/v1/customization/jobs/{id}/container-logs", logs),
        ("GET", "/v1/customization/configs", configs), ("POST", "/v1/deployment/configs", deployment_configs),
        ("POST", "/v1/deployment/model-deployments", deployments),
        ("GET", "/v1/deployment/model-deployments", list_deployments), *_hub_routes(peer),
    ]  # fmt: skip
    return Starlette(routes=[Route(path, _scripted(peer, handler), methods=[verb]) for verb, path, handler in routes])


def _hub_routes(peer: Peer):
    async def create(request, body):
        row = json.loads(body)
        name = f"{row['organization']}/{row['name']}"
        known_before = name in peer.repos
        peer.repos.setdefault(name, [{}])
        return (409 if known_before else 200), {"url": f"datasets/{name}"}

    async def preupload(request, body):
        files = [{"path": item["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                 for item in json.loads(body)["files"]]  # fmt: skip
        return 200, {"files": files}

    async def commit(request, body):
        name = _repo(request)
        files = dict(peer.repos[name][-1])
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                files.pop(line["value"]["path"], None)
        peer.repos[name].append(files)
        oid = _oid(files, len(peer.repos[name]))
        return 200, {"commitUrl": f"datasets/{name}/commit/{oid}", "commitOid": oid}

    async def resolve(request, body):
        files = peer.repos.get(_repo(request), [{}])[-1]
        path = request.path_params["path"]
        return (200, files[path]) if path in files else (404, {"error": "Entry not found"})

    place = "/v1/hf/api/datasets/{ns}/{name}"
    return [
        ("POST", "/v1/hf/api/repos/create", create), ("POST", f"{place}/preupload/main", preupload),
        ("POST", f"{place}/commit/main", commit), ("GET", "/v1/hf/datasets/{ns}/{name}/resolve/{rev}/{path:path}", resolve),
    ]  # fmt: skip


def _repo(request) -> str:
    return f"{request.path_params['ns']}/{request.path_params['name']}"


def _oid(files: dict, number: int) -> str:
    return hashlib.sha1(repr((sorted(files.items()), number)).encode()).hexdigest()


def _scripted(peer: Peer, handler):
    async def route(request):
        body = await request.body()
        path = request.url.path
        peer.seen.append((request.method, path, dict(request.headers), body))
        orders = peer.script.get((request.method, path), [])
        order = orders.pop(0) if orders else None
        if isinstance(order, int):
            return JSONResponse({"detail": f"told to answer {order}"}, status_code=order)
        if order == "refuse":
            raise _Dropped
        if isinstance(order, dict):
            return JSONResponse(order)
        status, value = await handler(request, body)
        if order == "drop":
            raise _Dropped
        headers = {"x-repo-commit": "0" * 40, "etag": '"x"'} if "/resolve/" in path else {}
        if status == 404 and headers:
            headers["x-error-code"] = "EntryNotFound"
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        return Response(content, status_code=status, headers=headers, media_type="application/json")

    return route


class _Dropped(Exception):
    pass


class _Dropping:
    """Closes the connection without an answer where a route says so."""

    def __init__(self, app, server):
        self.app, self.server = app, server

    async def __call__(self, scope, receive, send):
        try:
            await self.app(scope, receive, send)
        except _Dropped:
            scope["state"]["transport"] = None
            for connection in list(self.server.server_state.connections):
                connection.transport.abort()


@contextmanager
def running(peer: Peer):
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    server = uvicorn.Server(uvicorn.Config(lambda: None, log_level="critical"))
    server.config.app = _Dropping(peer_app(peer), server)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.01)
    peer.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield peer
    finally:
        server.should_exit = True
        thread.join()

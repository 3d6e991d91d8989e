"""A platform that answers as NeMo Platform's OpenAPI file and schemas say: small, in memory, on a real port.

Every request body and every uploaded row is checked (`check_body`, `check_row`) as the platform does, by its own classes
where they are at hand; what they refuse is a 422. `script` has answers for a (method, path) that come before the usual
one: an int is a status, "drop" closes the connection after the request was carried out.
"""

import json
import os
import socket
import threading
from contextlib import contextmanager
from datetime import UTC, datetime

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

NOW = datetime(2026, 1, 1, tzinfo=UTC).isoformat()


class Platform:
    """State of the platform, and the requests that it received."""

    def __init__(self, check_body, check_row) -> None:
        self.filesets, self.jobs = {}, {}
        self.check_body, self.check_row = check_body, check_row
        self.statuses = [{"status": "completed"}]
        self.script: dict[tuple[str, str], list] = {}
        self.requests: list[tuple[str, str, dict]] = []
        self.url = ""
        self.token: str | None = None


def platform_app(platform: Platform) -> Starlette:
    async def health(request):
        return {"plugin": "customization", "status": "ok", "contributors": ["automodel", "rl"]}

    async def create_fileset(request):
        body = await request.json()
        key = (request.path_params["workspace"], body["name"])
        if key in platform.filesets:
            return JSONResponse({"detail": "exists"}, 409)
        platform.filesets[key] = {}
        return {"name": body["name"], "workspace": key[0]}

    async def upload(request):
        key = (request.path_params["workspace"], request.path_params["name"])
        if key not in platform.filesets:
            return JSONResponse({"detail": "no such fileset"}, 404)
        data, path = await request.body(), request.path_params["path"]
        for line in data.splitlines():
            platform.check_row(json.loads(line))
        platform.filesets[key][path] = data
        reference = f"{key[0]}/{key[1]}#{path}"
        return {"file_ref": reference, "file_url": f"fileset://{reference}", "path": path, "size": len(data)}

    async def create_job(request):
        body = await request.json()
        try:
            platform.check_body(body)
        except ValueError as error:
            return JSONResponse({"detail": str(error)}, 422)
        space, _, fileset = body["spec"]["dataset"].rpartition("/")
        files = platform.filesets.get((space or request.path_params["workspace"], fileset), {})
        if set(files) != {"training.jsonl", "validation.jsonl"}:
            return JSONResponse({"detail": f"dataset has {sorted(files)}"}, 422)
        name = f"rl-{len(platform.jobs):08x}"
        row = {"id": f"job-{name}", "name": name, "workspace": request.path_params["workspace"], "status": "created"}
        platform.jobs[name] = row | body | {"created_at": NOW, "updated_at": NOW}
        return platform.jobs[name]

    async def list_jobs(request):
        page, size = (int(request.query_params[name]) for name in ("page", "page_size"))
        rows = list(reversed(platform.jobs.values()))
        part = rows[(page - 1) * size : page * size]
        numbers = {
            "page": page,
            "page_size": size,
            "current_page_size": len(part),
            "total_pages": -(-len(rows) // size),
        }
        return {"data": part, "pagination": numbers | {"total_results": len(rows)}}

    def known(request):
        return platform.jobs[request.path_params["name"]]

    async def status(request):
        answer = platform.statuses.pop(0) if len(platform.statuses) > 1 else platform.statuses[0]
        row = known(request)
        row["status"] = answer["status"]
        shape = {"status_details": {}, "error_details": None, "steps": [], "created_at": NOW, "updated_at": NOW}
        return {"id": row["id"], "name": row["name"]} | shape | answer

    async def cancel(request):
        known(request)["status"] = "cancelling"
        platform.statuses = [{"status": "cancelled"}]
        return known(request)

    async def logs(request):
        lines = [f"line {number}" for number in range(3)]
        start = int(request.query_params.get("page_cursor", 0))
        entries = [
            {"timestamp": NOW, "job": "j", "job_step": "dpo-training", "job_task": "t", "message": line}
            for line in lines[start : start + 2]
        ]
        more = str(start + 2) if start + 2 < len(lines) else None
        return {"data": entries, "total": len(lines), "next_page": more, "prev_page": None}

    def guard(handler):
        async def handle(request):
            path = request.url.path
            platform.requests.append((request.method, path, dict(request.headers)))
            if platform.token and request.headers.get("authorization") != f"Bearer {platform.token}":
                return JSONResponse({"detail": "Missing or invalid bearer token"}, 401)
            script = platform.script.get((request.method, path), [])
            told = script.pop(0) if script else None
            if isinstance(told, int):
                return JSONResponse({"detail": "scripted"}, told)
            answer = await handler(request)
            if told == "drop":
                request.scope["transport_closed"] = True
                return Response(status_code=502)
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        return handle

    files, jobs = "/apis/files/v2/workspaces/{workspace}/filesets", "/apis/jobs/v2/workspaces/{workspace}/jobs/{name}"
    rl = "/apis/customization/v2/workspaces/{workspace}/rl/jobs"
    routes = [
        ("GET", "/apis/customization/v2/healthz", health),
        ("POST", files, create_fileset),
        ("PUT", files + "/{name}/-/{path:path}", upload),
        ("POST", rl, create_job),
        ("GET", rl, list_jobs),
        ("GET", jobs + "/status", status),
        ("POST", jobs + "/cancel", cancel),
        ("GET", jobs + "/logs", logs),
    ]
    return Starlette(routes=[Route(path, guard(handler), methods=[method]) for method, path, handler in routes])


@contextmanager
def serve_platform(platform: Platform):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    platform.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(platform_app(platform), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        os.sched_yield()
    try:
        yield platform
    finally:
        server.should_exit = True
        thread.join(10)

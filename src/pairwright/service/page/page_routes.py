"""Routes of the web page at `/`, the API description, the health check and the metrics."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from pairwright import __version__
from pairwright.jobs.job import JobState
from pairwright.service.access import CallerIs
from pairwright.service.api_errors import not_found
from pairwright.service.context import Context, ContextIs
from pairwright.service.rows.schema import deployments, jobs
from pairwright.service.run.deployments import DeploymentState

router = APIRouter(tags=["operation"])
FOLDER = Path(__file__).parent
# The only files that are served, with paths and media types; those in built/ are built from web/src/jobs.tsx.
_FILES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/page/jobs.js": ("built/jobs.js", "text/javascript"),
    "/page/jobs.css": ("built/jobs.css", "text/css"),
    "/page/docs.js": ("docs.js", "text/javascript"),
}
_STATES = [state for state in JobState if state is not JobState.PREPARED]  # the service has no PREPARED jobs
# The page loads nothing from other hosts, and no other page may embed it.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


@router.get("/", response_class=FileResponse, include_in_schema=False)
@router.get("/docs", response_class=FileResponse, include_in_schema=False)
@router.get("/page/{name}", response_class=FileResponse, include_in_schema=False)
def page(request: Request) -> Response:
    """The pages with jobs and with the API's description, for people, and their scripts and styles."""
    if request.url.path not in _FILES:
        raise not_found("file", request.url.path[:100])
    path, media_type = _FILES[request.url.path]
    return FileResponse(FOLDER / path, headers=_HEADERS, media_type=media_type)


@router.get("/health")
@router.get("/health/ready")
@router.get("/v1/health/ready")
def health(request: Request) -> JSONResponse:
    """200 while requests are answered and jobs are supervised."""
    supervisor: Any = request.app.state.supervisor
    # 120 seconds is many ticks, so that a slow pass does not look like a dead thread.
    is_well = supervisor is None or (supervisor.is_running and time.monotonic() - supervisor.last_pass_at < 120)
    body = {"status": "ok" if is_well else "failing", "version": __version__}
    return JSONResponse(body, 200 if is_well else 503)


@router.get("/v1/health/live")
def is_live() -> dict[str, str]:
    """200 while requests are answered."""
    return {"status": "ok", "version": __version__}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request, caller: CallerIs, context: ContextIs) -> Response:
    """Counts for Prometheus."""
    supervisor: Any = request.app.state.supervisor
    failed = 0 if supervisor is None else supervisor.failed_passes
    text = metrics_text(context, request.app.state.requests, failed_passes=failed)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def metrics_text(context: Context, requests: Mapping[tuple[str, int], int], *, failed_passes: int) -> str:
    """Format metrics for Prometheus. Labels come from fixed sets of plain words, so no escaping is needed."""
    by_job = _counts(context, jobs.c.state)
    by_deployment = _counts(context, deployments.c.state)
    disk = shutil.disk_usage(context.settings.data)
    lines = [*_head("pairwright_jobs", "gauge", "Jobs by state.")]
    lines += [f'pairwright_jobs{{state="{state}"}} {by_job.get(state, 0)}' for state in _STATES]
    lines += _head("pairwright_deployments", "gauge", "Deployments by state.")
    lines += [f'pairwright_deployments{{state="{state}"}} {by_deployment.get(state, 0)}' for state in DeploymentState]
    lines += _head("pairwright_workers_limit", "gauge", "Jobs that may run at a time.")
    lines.append(f"pairwright_workers_limit {context.settings.max_running}")
    lines += _head("pairwright_disk_free_bytes", "gauge", "Free space where the service keeps its files.")
    lines.append(f"pairwright_disk_free_bytes {disk.free}")
    lines += _head("pairwright_supervisor_failures_total", "counter", "Passes over jobs and deployments that failed.")
    lines.append(f"pairwright_supervisor_failures_total {failed_passes}")
    lines += _head("pairwright_http_requests_total", "counter", "Requests by method and status.")
    for (method, status), count in sorted(requests.items()):
        lines.append(f'pairwright_http_requests_total{{method="{method}",status="{status}"}} {count}')
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, description: str) -> list[str]:
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]


def _counts(context: Context, column: sa.Column[str]) -> dict[str, int]:
    with context.database.reading() as connection:
        rows = connection.execute(sa.select(column, sa.func.count()).group_by(column)).all()
    return {row[0]: row[1] for row in rows}

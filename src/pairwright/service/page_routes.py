"""The job page at `/`, the API's description, health and metrics."""

import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from pairwright import __version__
from pairwright.service.access import CallerIs
from pairwright.service.context import Context, context_of
from pairwright.service.metrics import metrics_text
from pairwright.service.refusals import not_found

router = APIRouter(tags=["operation"])
ContextIs = Annotated[Context, Depends(context_of)]
FOLDER = Path(__file__).parent / "page"
_TYPES = {"page.js": "text/javascript", "page.css": "text/css", "docs.js": "text/javascript"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


@router.get("/", response_class=FileResponse, include_in_schema=False)
def page() -> Response:
    """Jobs, curves, logs, datasets and deployments, for people."""
    return FileResponse(FOLDER / "index.html", headers=_HEADERS, media_type="text/html")


@router.get("/docs", response_class=FileResponse, include_in_schema=False)
def docs() -> Response:
    """The API's description, for people."""
    return FileResponse(FOLDER / "docs.html", headers=_HEADERS, media_type="text/html")


@router.get("/page/{name}", response_class=FileResponse, include_in_schema=False)
def page_file(name: str) -> Response:
    """Script and style of the pages."""
    if name not in _TYPES:
        raise not_found("file", name[:100])
    return FileResponse(FOLDER / name, headers=_HEADERS, media_type=_TYPES[name])


@router.get("/health")
def health(request: Request) -> JSONResponse:
    """200 while requests are answered and jobs are looked after."""
    supervisor: Any = request.app.state.supervisor
    is_well = supervisor is None or (supervisor.is_running and time.time() - supervisor.last_pass_at < 120)
    body = {"status": "ok" if is_well else "failing", "version": __version__}
    return JSONResponse(body, 200 if is_well else 503)


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request, caller: CallerIs, context: ContextIs) -> Response:
    """Counts for Prometheus."""
    supervisor: Any = request.app.state.supervisor
    failed = 0 if supervisor is None else supervisor.failed_passes
    text = metrics_text(context, request.app.state.requests, failed_passes=failed)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

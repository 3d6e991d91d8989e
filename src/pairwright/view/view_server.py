"""The server of the page: Starlette on loopback, protected by a token in the printed link.

    GET  /                       the page; with ?token=... it sets a cookie and redirects to the page without the token
    GET  /built/NAME             its script and style
    GET  /api/QUESTION?...       answers as JSON (view/answers.py)
    POST /api/QUESTION           decisions, as JSON

Every request needs the token, as a cookie or as `Authorization: Bearer`. Requests for another host name or from another
page are refused. A question is cancelled when its client disconnects; a decision is not. The page loads nothing from
other hosts, and its policy allows no inline script.
"""

import asyncio
import hmac
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from pairwright.engines.listening import LOOPBACK, is_foreign, listen, read_body, serve_app, url_of, wait_for_disconnect
from pairwright.errors import PairwrightError
from pairwright.view.answers import Answers
from pairwright.view.row_queries import Abandoned, abandoned

BUILT = Path(__file__).parent / "built"
_TYPES = {"view.js": "text/javascript", "view.css": "text/css"}
MAX_BODY_BYTES = 65_536
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_NO_TOKEN = (
    "This page needs its token: open the link that `pairwright view` printed, with ?token=... at its end. "
    "The link of an earlier start is not valid any more.\n"
)
logger = logging.getLogger("pairwright.view")


class ViewServer:
    """The application and its access rules. Requests need the token; if `host` is loopback, other host names are
    refused.

    Browsers send cookies to all ports of a host, so name and value of the cookie depend on the port: another server
    that receives the cookie cannot use it.
    """

    def __init__(self, answers: Answers, *, token: str, host: str = "127.0.0.1", port: int = 0) -> None:
        self._answers = answers
        self._token = token
        self._is_local = host in LOOPBACK
        self._cookie = f"pairwright-view-{port}"
        self._cookie_value = hmac.new(token.encode(), self._cookie.encode(), "sha256").hexdigest()
        self.app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/built/{name}", self._built),
                Route("/api/{question}", self._ask, methods=["GET", "POST"]),
            ]
        )

    async def _page(self, request: Request) -> Response:
        if refusal := self._refuse(request, needs_token=False):
            return refusal
        shown = request.query_params.get("token")
        if shown is not None and self._is_token(shown):
            response: Response = RedirectResponse("/", 303, headers=HEADERS)
            # Strict: other sites cannot make the browser send it. Scripts cannot read it.
            response.set_cookie(self._cookie, self._cookie_value, httponly=True, samesite="strict", path="/")
            return response
        if not self._is_allowed(request):
            return PlainTextResponse(_NO_TOKEN, 403, headers=HEADERS)
        return FileResponse(BUILT / "index.html", headers=HEADERS, media_type="text/html")

    async def _built(self, request: Request) -> Response:
        name = request.path_params["name"]
        if refusal := self._refuse(request, needs_token=True):
            return refusal
        if name not in _TYPES:
            return _error(404, "no such file")
        return FileResponse(BUILT / name, headers=HEADERS, media_type=_TYPES[name])

    async def _ask(self, request: Request) -> Response:
        if refusal := self._refuse(request, needs_token=True):
            return refusal
        question = request.path_params["question"]
        is_post = request.method == "POST"
        known = self._answers.decisions if is_post else self._answers.questions
        if question not in known:
            return _error(404, f"no question {question!r:.100}")
        try:
            # On a thread: a search of a large table must not block the server.
            if is_post:
                return _json(await run_in_threadpool(known[question], await _read_body(request)))
            asked = {name: request.query_params.getlist(name) for name in request.query_params}
            return _json(await _while_connected(request, lambda: known[question](asked)))
        except Abandoned:
            return Response(status_code=499)  # nginx's status for a disconnected client; nobody receives it
        except PairwrightError as error:
            return _error(400, str(error))
        except Exception:
            logger.exception("the question %s failed", question)
            return _error(500, "internal error of pairwright: the log of the server has the details")

    def _refuse(self, request: Request, *, needs_token: bool) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        # Beyond loopback any host name is allowed. The only allowed origin is the page itself.
        if (self._is_local and is_foreign(host, None)) or origin not in (None, f"http://{host}"):
            return _error(403, "requests from other pages and under other host names are refused")
        if needs_token and not self._is_allowed(request):
            return _error(403, _NO_TOKEN.strip())
        return None

    def _is_allowed(self, request: Request) -> bool:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(bearer):
            return True
        return hmac.compare_digest(request.cookies.get(self._cookie, "").encode(), self._cookie_value.encode())

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())


async def _while_connected(request: Request, function: Callable[[], Any]) -> Any:
    """Run a function on a thread; if the client disconnects, its scans end before the next batch."""
    is_abandoned = threading.Event()
    abandoned.set(is_abandoned)  # the thread gets a copy of this request's context
    work = asyncio.ensure_future(run_in_threadpool(function))
    gone = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_abandoned.set()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    return await work


async def _read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; raises PairwrightError if it is too large or invalid."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise PairwrightError("expected a JSON object with content-type application/json")
    body = await read_body(request, MAX_BODY_BYTES)
    if body is None:
        raise PairwrightError(f"a decision has at most {MAX_BODY_BYTES:,} bytes")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise PairwrightError(f"expected a JSON object: {error}") from None


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=HEADERS)


def _error(status: int, message: str) -> Response:
    return Response(msgspec.json.encode({"error": message}), status, media_type="application/json", headers=HEADERS)


def serve_view(answers: Answers, *, host: str, port: int, token: str, announce: Callable[[str], None]) -> None:
    """Serve the page until a signal stops it; `announce` is called with its link."""
    listener = listen(host, port)
    url = url_of(listener)
    number = int(listener.getsockname()[1])
    server = ViewServer(answers, token=token, host=host, port=number)
    announce(f"{url}/?token={token}")
    serve_app(server.app, listener)

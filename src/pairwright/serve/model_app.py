"""Routes of a model server. Errors use OpenAI's JSON format, and the size of request bodies is limited.

When a client disconnects, its requests are removed from the batch, streaming or not.
"""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pydantic
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pairwright.engines.listening import is_foreign, read_body, wait_for_disconnect
from pairwright.generate import Batcher, Engine
from pairwright.records.messages import Json
from pairwright.serve.engine_requests import chat_request, completion_requests, limit_templates
from pairwright.serve.event_stream import chat_events, completion_events
from pairwright.serve.openai_answers import TokenTexts, chat_answer, completion_answer, envelope
from pairwright.serve.openai_errors import Refused, broken, invalid
from pairwright.serve.openai_schema import ChatAsked, CompletionAsked

Asked = TypeVar("Asked", ChatAsked, CompletionAsked)
_SMALL_BODY = 65_536
Handler = Callable[["ModelServer", Request], Awaitable[Response]]


@dataclass(eq=False)
class ModelServer:
    """An engine with its batcher, and the settings and counters of its server."""

    engine: Engine
    # Clients may use any of them; /health shows the first.
    names: tuple[str, ...]
    token: str | None = None
    max_body_bytes: int = 16 * 2**20
    max_requests: int = 1024
    started: int = field(default_factory=lambda: int(time.time()))
    num_open: int = 0

    def __post_init__(self) -> None:
        self.batcher = Batcher(self.engine)
        # Rendering and tokenising run in this thread, one request at a time, never in the event loop.
        self.prompts = ThreadPoolExecutor(1, thread_name_prefix="prompts")
        limit_templates(self.engine)
        self.texts = TokenTexts(self.engine)
        self.form = self.engine.call_format


def model_app(server: ModelServer) -> Starlette:

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        server.prompts.shutdown(wait=False, cancel_futures=True)
        await server.batcher.close()

    routes = [
        Route("/health", _bound(server, health), methods=["GET"]),
        Route("/v1/models", _bound(server, models), methods=["GET"]),
        Route("/v1/models/{name:path}", _bound(server, model), methods=["GET"]),
        Route("/v1/chat/completions", _bound(server, chat_completions), methods=["POST"]),
        Route("/v1/completions", _bound(server, completions), methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: _no_route, 405: _no_method})


async def health(server: ModelServer, _: Request) -> Response:
    return JSONResponse({"status": "ok", "model": server.names[0], "requests": server.num_open})


async def models(server: ModelServer, _: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_card(server, name) for name in server.names]})


async def model(server: ModelServer, request: Request) -> Response:
    name = request.path_params["name"]
    _check_name(server, name)
    return JSONResponse(_card(server, name))


async def chat_completions(server: ModelServer, request: Request) -> Response:
    asked = await _read(server, request, ChatAsked)
    wanted = await asyncio.get_running_loop().run_in_executor(server.prompts, chat_request, server.engine, asked)
    # Text is parsed for tool calls only if the client offered tools.
    form = server.form if asked.tools and asked.tool_choice != "none" else None
    if asked.stream:
        head = envelope("chat.completion.chunk", "chatcmpl", asked.model)
        events = chat_events(server.batcher, wanted, asked, head, server.texts, form)
        return _stream(server, events)
    result = await _while_connected(request, server.batcher.submit(wanted, group=object()))
    head = envelope("chat.completion", "chatcmpl", asked.model)
    return JSONResponse(chat_answer(head, asked, result, wanted.prompt, server.texts, form))


async def completions(server: ModelServer, request: Request) -> Response:
    asked = await _read(server, request, CompletionAsked)
    wanted = await asyncio.get_running_loop().run_in_executor(server.prompts, completion_requests, server.engine, asked)
    head = envelope("text_completion", "cmpl", asked.model)
    if asked.stream:
        return _stream(server, completion_events(server.batcher, wanted, asked, head, server.texts))
    group = object()  # one per request, for fair scheduling among requests
    work = asyncio.gather(*(server.batcher.submit(item, group=group) for item in wanted))
    results = await _while_connected(request, work)
    return JSONResponse(completion_answer(head, asked, results, [item.prompt for item in wanted], server.texts))


def _bound(server: ModelServer, handler: Handler) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Wrap a handler as a route: checks the token, limits open requests, translates errors to JSON."""

    async def route(request: Request) -> Response:
        try:
            if request.url.path != "/health":
                _check_token(server, request)
            # Without a token the server is on loopback: refuse requests of web pages in a local browser.
            if server.token is None and is_foreign(request.headers.get("host", ""), request.headers.get("origin")):
                raise Refused(
                    "without a token only 127.0.0.1, localhost and [::1] are answered", status=403, code="foreign_host"
                )
            if server.num_open >= server.max_requests:
                raise Refused(
                    "too many requests are open; try again",
                    status=429,
                    kind="rate_limit_error",
                    code="too_many_requests",
                    retry_after_seconds=1,
                )
            server.num_open += 1
            try:
                return await handler(server, request)
            finally:
                server.num_open -= 1
        except Refused as refused:
            return refused.response()
        except ClientDisconnect:
            # 499 is nginx's status for a disconnected client; nobody receives it.
            return Response(status_code=499)
        except Exception as error:  # boundary of the server: the client gets JSON, details are logged
            return broken(error).response()

    return route


async def _read(server: ModelServer, request: Request, shape: type[Asked]) -> Asked:
    body = await _body(server, request)
    try:
        # a large body is parsed outside of the event loop
        if len(body) < _SMALL_BODY:
            asked = _parse(body, shape)
        else:
            asked = await asyncio.get_running_loop().run_in_executor(server.prompts, _parse, body, shape)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except pydantic.ValidationError as error:
        raise invalid(error) from None
    _check_name(server, asked.model)
    asked.refuse_what_we_cannot()
    return asked


def _parse(body: bytes, shape: type[Asked]) -> Asked:
    return shape.model_validate(msgspec.json.decode(body))


async def _body(server: ModelServer, request: Request) -> bytes:
    limit = server.max_body_bytes
    too_large = Refused(f"the body has more than {limit:,} bytes", status=413, code="body_too_large")
    claimed = request.headers.get("content-length", "0")
    # Checked before reading; a body without a length, or with a wrong one, is counted below.
    if not claimed.isdigit() or int(claimed) > limit:
        raise too_large
    if "content-encoding" in request.headers:
        raise Refused("compressed bodies are not supported", status=415, code="unsupported_encoding")
    body = await read_body(request, limit)
    if body is None:
        raise too_large
    return body


async def _while_connected(request: Request, work: Awaitable[Any]) -> Any:
    """Await `work`, and cancel it if the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        # Cancelled work is awaited, so that it has left the batch when the request ends.
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _stream(server: ModelServer, events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(
        _count_stream(server, events), media_type="text/event-stream", headers={"cache-control": "no-cache"}
    )


async def _count_stream(server: ModelServer, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Count a stream as an open request until it ends."""
    server.num_open += 1
    try:
        async for event in events:
            yield event
    finally:
        server.num_open -= 1
        await events.aclose()  # type: ignore[attr-defined]


def _check_token(server: ModelServer, request: Request) -> None:
    if server.token is None:
        return
    header = request.headers.get("authorization", "")
    # Constant time, so that timing reveals nothing about the token.
    if not hmac.compare_digest(header.encode(), f"Bearer {server.token}".encode()):
        message = "a valid token is needed: Authorization: Bearer TOKEN"
        raise Refused(message, status=401, kind="authentication_error", code="invalid_api_key")


def _check_name(server: ModelServer, name: str) -> None:
    if name not in server.names:
        message = f"no model {name!r} here; this server has {', '.join(server.names)}"
        raise Refused(message, status=404, param="model", code="model_not_found")


def _card(server: ModelServer, name: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": server.started,
        "owned_by": "pairwright",
        "max_model_len": server.engine.context,
    }


async def _no_route(request: Request, _: Exception) -> Response:
    return Refused(f"no such path: {request.url.path}", status=404, code="not_found").response()


async def _no_method(request: Request, _: Exception) -> Response:
    return Refused(
        f"{request.url.path} does not support {request.method}", status=405, code="method_not_allowed"
    ).response()

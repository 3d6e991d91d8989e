"""The loopback endpoint for agents of a collection: OpenAI's API in front of the collection's policy.

    POST /run/KEY/v1/chat/completions, /run/KEY/v1/responses     whole or streamed      GET /run/KEY/v1/models

Each run has its own KEY, which is also its API key and expires with the run. The server runs in a separate thread, so
that agents with blocking clients do not stop it; the policy answers in the event loop of the collection.
"""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pairwright.collection.agent_calls import AgentCalls, BadRequest
from pairwright.collection.proxy.openai_replies import chat_events, chat_reply, response_events, response_reply
from pairwright.collection.run_failures import PolicyError
from pairwright.engines.listening import bounded_server, listen, read_body, url_of
from pairwright.errors import ConfigError, PairwrightError
from pairwright.records.messages import Json

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from starlette.requests import Request
    from starlette.responses import Response

_MAX_REQUEST_BYTES = 64 * 2**20
_BUSY_SECONDS = 30.0  # maximum wait for the collection's event loop
_BLOCKED = (
    "the workflow blocks the event loop that has to answer it: make it a plain `def` function, which gets a thread of "
    "its own, or call the model with an async client (task.client)"
)


class AgentEndpoint:
    """The server of one collection; it starts when the first run requests its address."""

    def __init__(self, name: str | int) -> None:
        self._name = str(name)
        self._loop = asyncio.get_running_loop()  # of the collection
        self._runs: dict[str, AgentCalls] = {}
        self._lock = threading.Lock()
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._url = ""

    def register(self, calls: AgentCalls) -> str:
        """Open the endpoint for a run; returns its key."""
        key = f"pw-{secrets.token_urlsafe(24)}"
        self._runs[key] = calls
        return key

    def release(self, key: str) -> None:
        """Close the endpoint of a run: later requests are refused."""
        self._runs.pop(key, None)

    def url(self, key: str) -> str:
        """Return the base URL of a run. The first call starts the server; thread-safe."""
        with self._lock:
            if self._thread is None:
                self._start()
        return f"{self._url}/run/{key}/v1"

    def close(self) -> None:
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join(timeout=10)

    def _start(self) -> None:
        try:
            import uvicorn  # noqa: F401
            from starlette.applications import Starlette
            from starlette.routing import Route
        except ImportError as error:
            raise ConfigError(
                f"task.base_url and task.client need starlette and uvicorn ({error}): pip install 'pairwright[collect]'"
            ) from None
        routes = [
            Route("/run/{key}/v1/chat/completions", partial(self._answer, kind="chat"), methods=["POST"]),
            Route("/run/{key}/v1/responses", partial(self._answer, kind="responses"), methods=["POST"]),
            Route("/run/{key}/v1/models", self._models, methods=["GET"]),
        ]
        listener = listen("127.0.0.1", 0)
        self._url = url_of(listener)
        self._server = bounded_server(Starlette(routes=routes), lifespan="off", timeout_graceful_shutdown=2)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(sockets=[listener])), name="pairwright-agents", daemon=True
        )
        self._thread.start()

    async def _models(self, request: "Request") -> "Response":
        from starlette.responses import JSONResponse

        model = {"id": self._name, "object": "model", "created": 0, "owned_by": "pairwright"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _answer(self, request: "Request", kind: str) -> "Response":
        from starlette.responses import JSONResponse, StreamingResponse

        calls = self._runs.get(request.path_params["key"])
        if calls is None:
            return _refuse(404, "no such run: it has ended, or never existed")
        body = await read_body(request, _MAX_REQUEST_BYTES)
        if body is None:
            return _refuse(413, "the request is too large")
        try:
            asked = _decode(body)
            identity, completions = await self._in_collection(calls.complete(asked, kind=kind))
        except BadRequest as error:
            return _refuse(400, str(error))
        except PolicyError as error:
            # the policy has already retried, so the client must not
            return _refuse(400 if error.kind == "refused" else 503, str(error))
        except PairwrightError as error:
            return _refuse(500, str(error))
        events: Iterator[bytes]
        if kind == "chat":
            wants_logprobs = bool(asked.get("logprobs"))
            reply = chat_reply(
                completions, name=self._name, response_id=f"chatcmpl-{identity}", logprobs=wants_logprobs
            )
            options = asked.get("stream_options")
            events = chat_events(reply, with_usage=bool(isinstance(options, dict) and options.get("include_usage")))
        else:
            reply = response_reply(completions[0], asked, name=self._name, response_id=f"resp_{identity}")
            events = response_events(reply)
        return StreamingResponse(events, media_type="text/event-stream") if asked.get("stream") else JSONResponse(reply)

    async def _in_collection(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the collection's event loop; raises PairwrightError if a workflow blocks the loop."""
        alive = asyncio.Event()
        here = asyncio.get_running_loop()
        self._loop.call_soon_threadsafe(lambda: here.call_soon_threadsafe(alive.set))
        try:
            await asyncio.wait_for(alive.wait(), _BUSY_SECONDS)
        except TimeoutError:
            work.close()
            raise PairwrightError(_BLOCKED) from None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


class RunAddress:
    """The endpoint of a run, as its task exposes it: `base_url`, `api_key` and an SDK client."""

    def __init__(self, endpoint: AgentEndpoint, calls: AgentCalls) -> None:
        self._endpoint = endpoint
        self._client: AsyncOpenAI | None = None
        self.calls = calls
        self.api_key = endpoint.register(calls)

    @property
    def base_url(self) -> str:
        return self._endpoint.url(self.api_key)

    @property
    def client(self) -> "AsyncOpenAI":
        if self._client is None:
            try:
                from openai import AsyncOpenAI, DefaultAsyncHttpxClient
            except ImportError:
                raise ConfigError("task.client needs the openai package: pip install 'pairwright[collect]'") from None
            # plain HTTP on loopback: no certificates, no proxy; collect.task_timeout_seconds is the only timeout
            http = DefaultAsyncHttpxClient(verify=False, trust_env=False, timeout=None)
            self._client = AsyncOpenAI(
                base_url=self.base_url, api_key=self.api_key, max_retries=0, timeout=None, http_client=http
            )
        return self._client

    async def close(self) -> None:
        self._endpoint.release(self.api_key)
        if self._client is not None:
            with contextlib.suppress(RuntimeError):  # the client was used in another event loop
                await self._client.close()


def _decode(body: bytes) -> Json:
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("expected a JSON object")
    return value


def _refuse(status: int, message: str) -> "Response":
    from starlette.responses import JSONResponse

    error = {"message": message, "type": "pairwright_endpoint", "code": None, "param": None}
    return JSONResponse({"error": error}, status_code=status, headers={"x-should-retry": "false"})

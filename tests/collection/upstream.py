"""An OpenAI-compatible upstream for the proxy: a real Starlette app under uvicorn, and the proxy before it."""

import asyncio
import json
import socket
import threading
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@contextmanager
def serving(app):
    """`app` on a free port of 127.0.0.1; gives its address."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Upstream:
    """A stand-in of the API. `requests` has the received requests with headers; `gate` pauses streams half-way."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.sent: list[bytes] = []
        self.gate: asyncio.Event | None = None
        self._count = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/responses", self.responses, methods=["POST"]),
                Route("/v1/models", self.models),
            ]
        )

    async def models(self, request):
        self.requests.append((request.url.path, dict(request.headers), b""))
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model"}]}, headers={"x-upstream": "yes"})

    async def chat(self, request):
        body = await request.body()
        self.requests.append((request.url.path, dict(request.headers), body))
        asked = json.loads(body)
        if asked["messages"][-1]["content"] == "fail":
            return JSONResponse({"error": {"message": "overloaded", "type": "server_error"}}, 503, {"retry-after": "7"})
        self._count += 1
        chunks = self._chunks(asked, f"chatcmpl-{self._count}")
        if asked.get("stream"):
            return StreamingResponse(self._streamed(chunks, asked), media_type="text/event-stream")
        logprobs = {
            "content": [{"token": t, "logprob": -0.5, "bytes": None, "top_logprobs": []} for t in ("Hel", "lo")]
        }
        choices = [
            {"index": n, "finish_reason": "stop", "message": {"role": "assistant", "content": f"Hello {n}"}, "logprobs": logprobs, "token_ids": [7, 8]}
            for n in range(asked.get("n") or 1)
        ]  # fmt: skip
        answer = {"id": f"chatcmpl-{self._count}", "object": "chat.completion", "created": 1, "model": "m-1", "choices": choices, "prompt_token_ids": [1, 2, 3]}  # fmt: skip
        data = json.dumps(answer, indent=1).encode()
        self.sent.append(data)
        return Response(data, media_type="application/json")

    def _chunks(self, asked, name):
        def chunk(delta, finish=None, **more):
            return {"id": name, "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}  # fmt: skip

        if asked.get("tools"):
            call = {"index": 0, "id": "call_9", "type": "function", "function": {"name": "clock", "arguments": ""}}
            yield chunk({"role": "assistant", "content": None, "tool_calls": [call]})
            for piece in ('{"ci', 'ty": "Rome"}'):
                yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
            yield chunk({}, "tool_calls")
            return
        yield chunk({"role": "assistant", "content": ""})
        for number, piece in enumerate(("Hel", "lo ", "wörld")):
            yield chunk({"content": piece}, logprobs={"content": [{"token": piece, "logprob": -number / 4, "bytes": None, "top_logprobs": []}]})  # fmt: skip
        yield chunk({}, "stop")

    async def _streamed(self, chunks, asked):
        for number, chunk in enumerate(chunks):
            if number == 2 and self.gate is not None:
                await self.gate.wait()
            data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
            self.sent.append(data)
            yield data
            if asked["messages"][-1]["content"] == "break" and number == 2:
                raise ConnectionError("the upstream dies here")
        self.sent.append(b"data: [DONE]\n\n")
        yield b"data: [DONE]\n\n"

    async def responses(self, request):
        body = await request.body()
        self.requests.append((request.url.path, dict(request.headers), body))
        asked = json.loads(body)
        self._count += 1
        output = [{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "Hi there", "annotations": []}]}]  # fmt: skip
        answer = {"id": f"resp_{self._count}", "object": "response", "created_at": 1, "status": "completed", "model": "m-1", "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None, "instructions": None, "metadata": {}}  # fmt: skip
        if not asked.get("stream"):
            return JSONResponse(answer)
        part = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        listed = [
            {
                "type": "response.created",
                "sequence_number": 0,
                "response": {**answer, "status": "in_progress", "output": []},
            },
            {"type": "response.output_text.delta", "sequence_number": 1, "delta": "Hi there", "logprobs": [], **part},
            {"type": "response.completed", "sequence_number": 2, "response": answer},
        ]
        data = b"".join(
            b"event: %s\ndata: %s\n\n" % (item["type"].encode(), json.dumps(item).encode()) for item in listed
        )
        return Response(data, media_type="text/event-stream")

"""A slow, failing OpenAI-compatible endpoint on 127.0.0.1: a real HTTP server whose faults are drawn from a seed.

Implements a minimal HTTP/1.1 server, since no framework can break off in the middle of a response.
"""

import asyncio
import json
import random
import threading
from collections import Counter


class FailingEndpoint:
    """Context: `url` while inside; `hold` requests are answered only once they are all there; `answered` counts the answers that were sent whole, by question."""

    def __init__(
        self, *, fault_rate: float = 0.1, delay: float = 0.02, seed: int = 0, forever: bool = False, hold: int = 0
    ) -> None:
        self._fault_rate, self._delay, self._forever = fault_rate, delay, forever
        self._random = random.Random(seed)
        self.answered: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict] = []
        self.in_flight = self.most_in_flight = 0
        self._hold, self._held = hold, asyncio.Event()

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        started = threading.Event()

        def run():
            asyncio.set_event_loop(self._loop)
            server = self._loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=4096))
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            started.set()
            self._loop.run_forever()
            server.close()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self._loop.close()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _connection(self, reader, writer):
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, reader, writer) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        headers = {name.lower(): value for name, value in headers.items()}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))))
        self.headers.append(headers)
        self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if len(self.bodies) == self._hold:
            self._held.set()
        if len(self.bodies) <= self._hold:  # the first ones wait until all of them are there
            await self._held.wait()
        await asyncio.sleep(self._delay * self._random.random())
        self.in_flight -= 1
        fault = (
            self._random.choice(["500", "503", "429", "drop", "half", "garbage"])
            if self._random.random() < self._fault_rate
            else ""
        )
        if self._forever and "hopeless" in body["messages"][-1]["content"]:
            fault = "500"
        if fault:
            self.faults[fault] += 1
        return await getattr(self, f"_{fault or 'answer'}" if not fault.isdigit() else "_status")(writer, body, fault)

    async def _status(self, writer, body, fault) -> bool:
        extra = "retry-after-ms: 30\r\n" if fault == "429" else ""
        await self._send(writer, int(fault), json.dumps({"error": {"message": f"fault {fault}", "code": None}}), extra)
        return True

    async def _drop(self, writer, body, fault) -> bool:
        return False

    async def _half(self, writer, body, fault) -> bool:
        text = json.dumps(self._completion(body))
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n".encode()
        )
        writer.write(text[: len(text) // 2].encode())
        await writer.drain()
        return False

    async def _garbage(self, writer, body, fault) -> bool:
        await self._send(writer, 200, '{"choices": []}')
        return True

    async def _answer(self, writer, body, fault) -> bool:
        await self._send(writer, 200, json.dumps(self._completion(body)))
        self.answered[body["messages"][-1]["content"]] += 1
        return True

    def _completion(self, body) -> dict:
        question = body["messages"][-1]["content"]
        choices = [
            {"index": n, "finish_reason": "stop", "message": {"role": "assistant", "content": f"{question} -> {body.get('seed')}.{n}"}}
            for n in range(body.get("n", 1))
        ]  # fmt: skip
        usage = {"prompt_tokens": 5, "completion_tokens": 3 * len(choices), "total_tokens": 5 + 3 * len(choices)}
        return {"id": f"r{self._random.getrandbits(60):x}", "object": "chat.completion", "created": 0, "model": body["model"], "choices": choices, "usage": usage}  # fmt: skip

    async def _send(self, writer, status: int, text: str, extra: str = "") -> None:
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{extra}content-length: {len(text.encode())}\r\n\r\n{text}".encode()
        )
        await writer.drain()

"""A judge on 127.0.0.1: a real HTTP server whose answers and faults a test decides, for the real OpenAI client."""

import asyncio
import json
import threading


class JudgeServer:
    """Context: `url` while inside. `answer(prompt, number)` gives the text, or (status, text) for a fault.

    `hold` requests are answered only once they are all there.
    """

    def __init__(self, answer, *, hold=0):
        self._answer, self._hold = answer, hold
        self.prompts, self.bodies = [], []
        self.in_flight = self.most_in_flight = 0

    def __enter__(self):
        self._loop, started = asyncio.new_event_loop(), threading.Event()

        def run():
            asyncio.set_event_loop(self._loop)
            self._held = asyncio.Event()
            server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096))
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            started.set()
            self._loop.run_forever()
            server.close()
            for task in (left := asyncio.all_tasks(self._loop)):
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader, writer):
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _request(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        body = json.loads(await reader.readexactly(length))
        prompt = body["messages"][-1]["content"]
        self.bodies.append(body)
        self.prompts.append(prompt)
        number = len(self.prompts)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        if self._hold:
            if self.in_flight >= self._hold:
                self._held.set()
            await self._held.wait()
        answer = self._answer(prompt, number)
        status, text = answer if isinstance(answer, tuple) else (200, answer)
        content = json.dumps(chat(text) if status == 200 else {"error": {"message": text}}).encode()
        writer.write(
            b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(content))
        )
        writer.write(content)
        await writer.drain()
        self.in_flight -= 1
        return True


def chat(text):
    """A chat completion with this text."""
    return {
        "id": "c", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }  # fmt: skip

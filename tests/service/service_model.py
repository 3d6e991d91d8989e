"""A stand-in for `pairwright serve model` that repeats its prompt. Needs no torch."""

import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self._is_allowed():
            self._answer({"status": "ok", "pid": os.getpid()})

    def _is_allowed(self) -> bool:
        """As `serve model --api-key-env` does."""
        if self.headers["authorization"] == f"Bearer {os.environ[asked.api_key_env]}":
            return True
        self.send_error(401)
        return False

    def do_POST(self) -> None:
        if not self._is_allowed():
            return
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("stream"):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for word in ("one", "two"):
                chunk = {
                    "id": "1",
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}],
                }
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                wait_for_file(body["messages"][-1]["content"])
            self.wfile.write(b"data: [DONE]\n\n")
            return
        asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        message = {"role": "assistant", "content": asked}
        self._answer(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }
        )

    def _answer(self, value: dict) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_) -> None:
        pass


def wait_for_file(question: str) -> None:
    """A question `wait for PATH` stops the stream after each word until the file is there."""
    path = question.removeprefix("wait for ")
    deadline = time.monotonic() + 60
    while path != question and not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--name", action="append")
    parser.add_argument("--api-key-env")
    asked = parser.parse_args()
    ThreadingHTTPServer((asked.host, asked.port), Handler).serve_forever()

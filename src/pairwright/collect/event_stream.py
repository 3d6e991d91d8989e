"""Server-sent events of a streamed answer, put together into the answer that they spell out.

A chat stream becomes the response that the same request would have got without streaming; the stream of the responses
API ends with an event that carries the whole response. A stream that did not come to its end gives None.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from pairwright.messages import Json

_DONE = b"[DONE]"
_FINAL = ("response.completed", "response.incomplete")


def events(data: bytes) -> Iterator[bytes]:
    """The data of each event that is there whole.

    >>> list(events(b'data: {"a":\\ndata: 1}\\n\\n: a comment\\n\\ndata: [DONE]\\n\\ndata: cut'))
    [b'{"a":\\n1}', b'[DONE]']
    """
    lines: list[bytes] = []
    for line in data.replace(b"\r\n", b"\n").split(b"\n")[:-1]:
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []


def chat_response(data: bytes) -> Json | None:
    """The chat completion that a stream of chunks spells out."""
    response: Json = {}
    choices: dict[int, Json] = {}
    done = False
    for event in events(data):
        if event.strip() == _DONE:
            done = True
            continue
        chunk = _object(event)
        for key, value in chunk.items():
            if key != "choices" and value is not None:
                response[key] = value
        for piece in chunk.get("choices") or ():
            if isinstance(piece, dict) and type(piece.get("index", 0)) is int:
                _add(choices.setdefault(piece.get("index", 0), {"message": {"role": "assistant"}}), piece)
    whole = choices and all(choice.get("finish_reason") for choice in choices.values())
    if not choices or not (done or whole):
        return None
    for choice in choices.values():
        calls = choice["message"].get("tool_calls")
        if calls:
            choice["message"]["tool_calls"] = [calls[number] for number in sorted(calls)]
    return {**response, "choices": [choices[number] for number in sorted(choices)]}


def final_response(data: bytes) -> Json | None:
    """The response that ends a stream of the responses API."""
    for event in events(data):
        value = _object(event)
        if value.get("type") in _FINAL and isinstance(value.get("response"), dict):
            found: Json = value["response"]
            return found
    return None


def _add(choice: Json, piece: Json) -> None:
    """One chunk of one choice: texts and lists go on, other values are taken over."""
    delta = piece.get("delta")
    message = choice["message"]
    for key, value in (delta if isinstance(delta, dict) else {}).items():
        if key == "tool_calls":
            for call in value or ():
                _add_call(message.setdefault("tool_calls", {}), call)
        elif isinstance(value, str) and key != "role":
            message[key] = message.get(key, "") + value
        elif value is not None:
            message[key] = value
    logprobs = piece.get("logprobs")
    if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
        choice.setdefault("logprobs", {"content": []})["content"] += logprobs["content"]
    if isinstance(piece.get("token_ids"), list):
        choice["token_ids"] = choice.get("token_ids", []) + piece["token_ids"]
    for key, value in piece.items():
        if key not in ("delta", "logprobs", "token_ids") and value is not None:
            choice[key] = value


def _add_call(calls: dict[int, Json], piece: Any) -> None:
    if not isinstance(piece, dict) or type(piece.get("index")) is not int:
        return
    call = calls.setdefault(piece["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
    function = piece.get("function")
    for key, value in (function if isinstance(function, dict) else {}).items():
        if isinstance(value, str):
            call["function"][key] = call["function"].get(key, "") + value
    for key in ("id", "type"):
        if isinstance(piece.get(key), str):
            call[key] = piece[key]


def _object(event: bytes) -> Json:
    try:
        value = msgspec.json.decode(event)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

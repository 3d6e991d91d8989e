"""Assemble the complete response from server-sent events."""

from collections.abc import Iterator
from typing import Any

import msgspec

from pairwright.records.messages import Json
from pairwright.sources.fields import has, object_or_empty, texts_of

_DONE = b"[DONE]"
_FINAL = ("response.completed", "response.incomplete")


def events(data: bytes) -> Iterator[bytes]:
    """Yield the data of each complete event.

    >>> list(events(b'data: {"a":\\ndata: 1}\\n\\n: a comment\\n\\ndata: [DONE]\\n\\ndata: cut'))
    [b'{"a":\\n1}', b'[DONE]']
    """
    lines: list[bytes] = []
    # the last piece is an incomplete line; an event may have several data lines and ends with an empty one
    for line in data.replace(b"\r\n", b"\n").split(b"\n")[:-1]:
        if line.startswith(b"data:"):
            # "data:" has five bytes; one following space is part of the format, further ones of the value
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []


def chat_response(data: bytes) -> Json | None:
    """Assemble the chat completion of a stream of chunks; None if the stream broke off."""
    response: Json = {}
    choices: dict[int, Json] = {}  # by index; chunks of several choices are interleaved
    done = False
    for event in events(data):
        if event.strip() == _DONE:
            done = True
            continue
        chunk = _event_object(event)
        for key, value in chunk.items():
            # metadata (id, model, usage) may come in any chunk; the last value counts
            if key != "choices" and value is not None:
                response[key] = value
        for piece in chunk.get("choices") or ():
            if isinstance(piece, dict) and type(piece.get("index", 0)) is int:
                _add(choices.setdefault(piece.get("index", 0), {"message": {"role": "assistant"}}), piece)
    # some servers end without [DONE]: then every choice needs a finish reason
    whole = choices and all(choice.get("finish_reason") for choice in choices.values())
    if not choices or not (done or whole):
        return None
    for choice in choices.values():
        # while a stream is assembled, tool calls are a dict by index; the response has a list
        calls = choice["message"].get("tool_calls")
        if calls:
            choice["message"]["tool_calls"] = [calls[number] for number in sorted(calls)]
    return {**response, "choices": [choices[number] for number in sorted(choices)]}


def final_response(data: bytes) -> Json | None:
    """Return the final response object of a stream of the Responses API; None if there is none."""
    for event in events(data):
        value = _event_object(event)
        if value.get("type") in _FINAL and has(value, response=dict):
            response: Json = value["response"]
            return response
    return None


def _add(choice: Json, piece: Json) -> None:
    """Merge one chunk into a choice: texts and lists are appended, other values replaced."""
    message = choice["message"]
    for key, value in object_or_empty(piece.get("delta")).items():
        if key == "tool_calls":
            for call in value or ():
                # pieces of several calls are interleaved: each names the index of its call
                _add_call(message.setdefault("tool_calls", {}), call)
        elif isinstance(value, str) and key != "role":
            message[key] = message.get(key, "") + value
        elif value is not None:
            message[key] = value
    # token log-probabilities and ids come in pieces that belong to the text of the same chunk
    if has(piece.get("logprobs"), content=list):
        choice.setdefault("logprobs", {"content": []})["content"] += piece["logprobs"]["content"]
    if isinstance(piece.get("token_ids"), list):
        choice["token_ids"] = choice.get("token_ids", []) + piece["token_ids"]
    for key, value in piece.items():
        if key not in ("delta", "logprobs", "token_ids") and value is not None:
            choice[key] = value


def _add_call(calls: dict[int, Json], piece: Any) -> None:
    if not isinstance(piece, dict) or type(piece.get("index")) is not int:
        return
    call = calls.setdefault(piece["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
    for key, value in object_or_empty(piece.get("function")).items():
        if isinstance(value, str):
            call["function"][key] = call["function"].get(key, "") + value
    call |= texts_of(piece, "id", "type")


def _event_object(event: bytes) -> Json:
    try:
        return object_or_empty(msgspec.json.decode(event))
    except (ValueError, RecursionError):
        return {}

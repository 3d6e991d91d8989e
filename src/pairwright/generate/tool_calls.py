"""Parses tool calls in generated text, for known families of chat templates.

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one block per call (Hermes, Qwen2.5, Qwen3)
    llama     {"name": ..., "parameters": {...}} as the whole answer, several separated by ";" (Llama 3.1 and later)
    mistral   [{"name": ..., "arguments": {...}}] as the whole answer (Mistral's [TOOL_CALLS])

Used only if the request has tools. Text that does not parse completely stays text: no output of the model is dropped.
Arguments stay the JSON text that the model wrote.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from pairwright.generate.text_stream import overlap
from pairwright.records.messages import ToolCall


@dataclass(frozen=True)
class CallFormat:
    """The call format of a family. `is_whole`: calls are the whole answer, which begins with `opening`."""

    name: str
    opening: str
    is_whole: bool
    parse: Callable[[str], "tuple[list[ToolCall], str] | None"]


class _Call(msgspec.Struct):  # Raw keeps the JSON text of the arguments as written
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)
_one = msgspec.json.Decoder(_Call)
_many = msgspec.json.Decoder(list[_Call])


def _hermes(text: str) -> tuple[list[ToolCall], str] | None:
    calls: list[ToolCall] = []
    for body in _BLOCK.findall(text):
        parsed = _decode_calls(body.strip())
        if not parsed:
            return None
        calls += parsed
    rest = _BLOCK.sub("", text)
    return (calls, rest) if calls and "<tool_call>" not in rest else None


def _llama(text: str) -> tuple[list[ToolCall], str] | None:
    body = text.strip().removeprefix("<|python_tag|>").strip()
    calls = _decode_calls(body)
    if calls is None:  # several objects; only a ";" between two objects separates them
        calls = _decode_calls("[" + re.sub(r"\}\s*;\s*\{", "},{", body) + "]")
    return (calls, "") if calls else None


def _mistral(text: str) -> tuple[list[ToolCall], str] | None:
    calls = _decode_calls(text.strip().removeprefix("[TOOL_CALLS]").strip())
    return (calls, "") if calls else None


def _decode_calls(body: str) -> list[ToolCall] | None:
    """Decode the calls of a JSON object or a list of them; None if it is malformed."""
    try:
        items = _many.decode(body) if body.startswith("[") else [_one.decode(body)]
        return [ToolCall(call.name, _arguments(call)) for call in items]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _arguments(call: _Call) -> str:
    text = (bytes(call.arguments) or bytes(call.parameters)).decode()
    if text.startswith('"'):  # arguments as a JSON string that contains JSON
        return msgspec.json.decode(text, type=str)
    if not text.startswith("{"):
        raise ValueError("arguments are an object")
    return text


HERMES = CallFormat("hermes", "<tool_call>", False, _hermes)
LLAMA = CallFormat("llama", "{", True, _llama)
MISTRAL = CallFormat("mistral", "[", True, _mistral)


def format_of(template: object) -> CallFormat | None:
    """Detect the call format of a chat template by its markers; None if it is unknown."""
    text = " ".join(map(str, template.values())) if isinstance(template, dict) else str(template or "")
    if "<tool_call>" in text:
        return None if "<function=" in text else HERMES
    if "[TOOL_CALLS]" in text:
        return None if "[ARGS]" in text else MISTRAL
    return LLAMA if "<|python_tag|>" in text or '{"name": function name, "parameters":' in text else None


class CallStream:
    """Splits streamed text: text that cannot belong to a call is returned at once, the rest is parsed at the end."""

    def __init__(self, form: CallFormat | None) -> None:
        self._form = form
        self._held = ""
        self._is_text = form is None
        self._is_call = False

    def add(self, piece: str) -> str:
        if self._is_text:
            return piece
        self._held += piece
        if self._is_call:
            return ""
        return self._whole() if self._form is not None and self._form.is_whole else self._block()

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The remaining text, and the calls."""
        held, self._held = self._held, ""
        parsed = self._form.parse(held) if self._form is not None and self._is_call else None
        return (held, []) if parsed is None else (parsed[1].strip(), parsed[0])

    def _whole(self) -> str:
        assert self._form is not None
        start = self._held.lstrip()
        if start.startswith(self._form.opening):
            self._is_call = True
            return ""
        if not start:
            return ""
        self._is_text = True
        text, self._held = self._held, ""
        return text

    def _block(self) -> str:
        assert self._form is not None
        opening = self._form.opening
        at = self._held.find(opening)
        if at >= 0:
            self._is_call = True
        else:
            at = len(self._held) - overlap(self._held, opening)
        text, self._held = self._held[:at], self._held[at:]
        return text


def split_calls(form: CallFormat | None, text: str) -> tuple[str, list[ToolCall]]:
    """Split a complete answer into its text and its calls.

    >>> split_calls(HERMES, 'Let me look.<tool_call>{"name": "clock", "arguments": {}}</tool_call>')
    ('Let me look.', [ToolCall(name='clock', arguments='{}', id=None, type='function')])
    """
    stream = CallStream(form)
    before = stream.add(text)
    rest, calls = stream.finish()
    return (before + rest, calls) if not calls else ((before + rest).strip(), calls)

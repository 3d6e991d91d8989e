"""The calls in what a model wrote, for families of chat templates whose form is known.

    hermes    <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one block a call (Hermes, Qwen2.5, Qwen3)
    llama     {"name": ..., "parameters": {...}} as the whole answer, several separated by ";" (Llama 3.1 and later)
    mistral   [{"name": ..., "arguments": {...}}] as the whole answer (Mistral's [TOOL_CALLS])

Only when tools were given. What does not parse, whole, is text and stays text: nothing the model wrote is dropped.
Arguments are kept as the JSON text that the model wrote.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from pairwright.records.messages import ToolCall


@dataclass(frozen=True)
class CallFormat:
    """How a family writes calls. `is_whole`: a call is the whole answer, which begins with `opening`."""

    name: str
    opening: str
    is_whole: bool
    parse: Callable[[str], "tuple[list[ToolCall], str] | None"]


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)
_one = msgspec.json.Decoder(_Call)
_many = msgspec.json.Decoder(list[_Call])


def _hermes(text: str) -> tuple[list[ToolCall], str] | None:
    calls: list[ToolCall] = []
    for body in _BLOCK.findall(text):
        found = _decoded(body.strip())
        if not found:
            return None
        calls += found
    rest = _BLOCK.sub("", text)
    return (calls, rest) if calls and "<tool_call>" not in rest else None


def _llama(text: str) -> tuple[list[ToolCall], str] | None:
    body = text.strip().removeprefix("<|python_tag|>").strip()
    calls = _decoded(body)
    if calls is None:  # several objects; a ";" inside of one is no end of it
        calls = _decoded("[" + re.sub(r"\}\s*;\s*\{", "},{", body) + "]")
    return (calls, "") if calls else None


def _mistral(text: str) -> tuple[list[ToolCall], str] | None:
    calls = _decoded(text.strip().removeprefix("[TOOL_CALLS]").strip())
    return (calls, "") if calls else None


def _decoded(body: str) -> list[ToolCall] | None:
    """The calls of a JSON object or a list of them."""
    try:
        found = _many.decode(body) if body.startswith("[") else [_one.decode(body)]
        return [ToolCall(call.name, _arguments(call)) for call in found]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _arguments(call: _Call) -> str:
    text = (bytes(call.arguments) or bytes(call.parameters)).decode()
    if text.startswith('"'):  # JSON text inside of a JSON text
        return msgspec.json.decode(text, type=str)
    if not text.startswith("{"):
        raise ValueError("arguments are an object")
    return text


HERMES = CallFormat("hermes", "<tool_call>", False, _hermes)
LLAMA = CallFormat("llama", "{", True, _llama)
MISTRAL = CallFormat("mistral", "[", True, _mistral)


def format_of(template: object) -> CallFormat | None:
    """The form of a template's family, told by what the template itself writes; None where it is not known."""
    text = " ".join(map(str, template.values())) if isinstance(template, dict) else str(template or "")
    if "<tool_call>" in text:
        return None if "<function=" in text else HERMES
    if "[TOOL_CALLS]" in text:
        return None if "[ARGS]" in text else MISTRAL
    return LLAMA if "<|python_tag|>" in text or '{"name": function name, "parameters":' in text else None


class CallStream:
    """Text in pieces: what is certainly no call is given out at once, the rest is looked at when all of it is there."""

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
        """What is left of the text, and the calls."""
        held, self._held = self._held, ""
        found = self._form.parse(held) if self._form is not None and self._is_call else None
        return (held, []) if found is None else (found[1].strip(), found[0])

    def _whole(self) -> str:
        assert self._form is not None
        begun = self._held.lstrip()
        if begun.startswith(self._form.opening):
            self._is_call = True
            return ""
        if not begun:
            return ""
        self._is_text = True
        given, self._held = self._held, ""
        return given

    def _block(self) -> str:
        assert self._form is not None
        opening = self._form.opening
        at = self._held.find(opening)
        if at >= 0:
            self._is_call = True
        else:
            sizes = range(min(len(opening) - 1, len(self._held)), 0, -1)
            at = len(self._held) - next((size for size in sizes if self._held.endswith(opening[:size])), 0)
        given, self._held = self._held[:at], self._held[at:]
        return given


def split_calls(form: CallFormat | None, text: str) -> tuple[str, list[ToolCall]]:
    """The text of a whole answer without its calls, and the calls.

    >>> split_calls(HERMES, 'Let me look.<tool_call>{"name": "clock", "arguments": {}}</tool_call>')
    ('Let me look.', [ToolCall(name='clock', arguments='{}')])
    """
    stream = CallStream(form)
    given = stream.add(text)
    rest, calls = stream.finish()
    return (given + rest, calls) if not calls else ((given + rest).strip(), calls)

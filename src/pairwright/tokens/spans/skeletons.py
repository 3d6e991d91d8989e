"""Skeletons: the neighbourhood of a turn with placeholders for text, a small substitute for a long conversation.

The template text around a turn depends on roles, fields, neighbours, and being first or last, but hardly ever on
message text. So each turn is judged on a skeleton of constant size, and skeletons repeat. Strings that the template
searches for (`</think>`) stay in the placeholder. If this assumption is wrong, the literals around the turn do not
match the conversation, and `regions` judges the whole conversation.
"""

import re
from bisect import bisect_right
from typing import Any

import msgspec

from pairwright.records.messages import Json
from pairwright.tokens.template.tracked_str import Chat

_HOLE = "\ue000"  # where a placeholder goes
SMALL = 10  # conversations up to this length are their own window
_ROLE_ONLY = frozenset({"role", "content"})
SYSTEM_ROLES = ("system", "developer")


class Shapes:
    """The shapes of a conversation's messages, from which skeletons are built."""

    def __init__(self, chat: Chat, constants: re.Pattern[str] | None, *, whole_arguments: bool) -> None:
        self._constants = constants
        self._whole_arguments = whole_arguments
        self.roles = [message.get("role") for message in chat]
        self.keys: list[Any] = []
        calls: list[Any] = []
        for message in chat:
            if message.get("tool_calls"):
                calls = [call.get("id") for call in message["tool_calls"] if isinstance(call, dict)]
            self.keys.append(self._shape(message, calls))
        self.exchanges = [number for number, role in enumerate(self.roles) if role == "user"]
        self.steps = [number for number, role in enumerate(self.roles) if role in ("assistant", "user")]

    def window(self, turn: int) -> list[int]:
        """Return the positions of the messages that represent the whole conversation around `turn`."""
        size = len(self.keys)
        if size <= SMALL:
            return list(range(size))
        chosen: set[int] = {turn}
        for number in range(min(2, size)):
            if self.roles[number] in SYSTEM_ROLES:
                chosen.add(number)
        # Exchanges start at user messages: include the first, the last, the turn's exchange and its neighbours.
        here = bisect_right(self.exchanges, turn) - 1
        for exchange in {0, here - 1, here + 1, len(self.exchanges) - 1} - {here}:
            if 0 <= exchange < len(self.exchanges):
                chosen.update(self._ends(*self._span(exchange)))
        low, high = self._span(here) if here >= 0 else (0, self.exchanges[0] if self.exchanges else size)
        chosen.update(self._ends(low, high))
        # In the turn's exchange, also include the steps next to the turn, with their tool results.
        for step in (self._step(turn, -1), turn, self._step(turn, 1)):
            if low <= step < high:
                chosen.update(self._step_span(step, high))
        return sorted(chosen)

    def _span(self, exchange: int) -> tuple[int, int]:
        more = exchange + 1 < len(self.exchanges)
        return self.exchanges[exchange], self.exchanges[exchange + 1] if more else len(self.keys)

    def _step(self, turn: int, by: int) -> int:
        index = bisect_right(self.steps, turn) - 1 + by
        return self.steps[index] if 0 <= index < len(self.steps) else -1

    def _step_span(self, step: int, high: int) -> range:
        index = bisect_right(self.steps, step)
        return range(step, min(high, self.steps[index] if index < len(self.steps) else len(self.keys)))

    def _ends(self, low: int, high: int) -> set[int]:
        """Return the user message, the first step and the last step of an exchange."""
        first = bisect_right(self.steps, low)
        last = bisect_right(self.steps, high - 1) - 1
        chosen = {low, *self._step_span(low, high)}
        for index in (first, last):
            if index < len(self.steps) and low < self.steps[index] < high:
                chosen.update(self._step_span(self.steps[index], high))
        return chosen

    def _shape(self, message: Json, calls: list[Any]) -> Any:
        content = message.get("content")
        if message.keys() == _ROLE_ONLY and isinstance(content, str):
            return (message["role"], self._text(content))
        shape: Json = {}
        for key, value in message.items():
            if key == "tool_call_id":
                shape[key] = calls.index(value) if value in calls else -1
            elif key == "tool_calls" and isinstance(value, list):
                shape[key] = [self._call(call) for call in value]
            else:
                shape[key] = self._value(value) if key != "role" else value
        return msgspec.json.encode(shape).decode()

    def _text(self, text: str) -> str:
        """Replace text with placeholders, except empty or blank text and strings that the template searches for."""
        if not text or text.isspace():
            return text[:2]
        if self._constants is None or not (matches := list(self._constants.finditer(text))):
            return _HOLE
        # Text between constants becomes a placeholder; eight constants are enough to distinguish shapes.
        parts, position = [], 0
        for match in matches[:8]:
            between = text[position : match.start()]
            parts += [_hollow(between), match.group()]
            position = match.end()
        return "".join([*parts, _hollow(text[position:])])

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {key: item if key == "type" else self._value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, bool) or value is None:
            return value
        return 7 if isinstance(value, int) else 7.5

    def _call(self, call: Any) -> Any:
        if not isinstance(call, dict):
            return self._value(call)
        shape: Json = {}
        for key, value in call.items():
            if key == "function":
                shape[key] = self._call(value)
            elif key == "id":
                shape[key] = len(value) if isinstance(value, str) else value  # only the length of an id matters
            elif key == "arguments":
                shape[key] = self._arguments(value)
            else:
                shape[key] = value if key == "type" else self._value(value)
        return shape

    def _arguments(self, value: Any) -> Any:
        if isinstance(value, dict) and self._whole_arguments:
            return {f"k{_HOLE}": _HOLE} if value else {}  # one key represents all
        if isinstance(value, dict):
            return {f"k{number}{_HOLE}": self._value(item) for number, item in enumerate(value.values())}
        return self._value(value)


def build_skeleton(keys: list[Any]) -> Chat:
    chat: Chat = []
    calls: list[str] = []
    for number, key in enumerate(keys):
        if isinstance(key, tuple):
            chat.append({"role": key[0], "content": _fill_holes(key[1], number)})
            continue
        message = msgspec.json.decode(_fill_holes(key, number))
        if isinstance(message.get("tool_calls"), list):
            calls = [_give_id(call, number, place) for place, call in enumerate(message["tool_calls"])]
        if "tool_call_id" in message:
            place = message["tool_call_id"]
            message["tool_call_id"] = calls[place] if 0 <= place < len(calls) else "zqid00000"
        chat.append(message)
    return chat


def _fill_holes(text: str, number: int) -> str:
    first, *rest = text.split(_HOLE)
    return first + "".join(f"zq{number}z{place}z{part}" for place, part in enumerate(rest))


def _hollow(text: str) -> str:
    """Replace text with a hole, keeping white space at its ends."""
    inner = text.strip()
    if not inner:
        return text[:4]
    start = len(text) - len(text.lstrip())
    return text[:start][:4] + _HOLE + text[start + len(inner) :][:4]


def _give_id(call: Any, number: int, place: int) -> str:
    """Give a call an id of its original length: some templates require nine characters."""
    if not isinstance(call, dict) or not isinstance(call.get("id"), int):
        return "zqid00000"
    length = call["id"]
    call["id"] = f"{number:02d}{place:02d}".ljust(length, "z")[:length] if length else ""
    return str(call["id"])


# A Jinja string literal in single or double quotes; the text is in one of two groups.
_LITERAL = r"(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")"
# Literals that text is compared with: startswith(x), endswith(x), x in y, y == x.
_SOUGHT = re.compile(rf"\b(?:starts|ends)with\(\s*{_LITERAL}|{_LITERAL}\s+(?:not\s+)?in\b|==\s*{_LITERAL}")


def find_constants(source: str) -> re.Pattern[str] | None:
    """Return a pattern for strings that a template may search text for: literals with a bracket or bar, and those that
    it tests for ('/no_think' in content), except names of roles and keys."""
    literals = re.findall(_LITERAL, source)
    constants = set()
    for pair in literals:
        for text in re.split(r"\s+|\\.", pair[0] or pair[1]):
            if 3 <= len(text) <= 40 and re.search(r"[<>\[\]|`]", text):
                constants.add(text)
    for groups in _SOUGHT.findall(source):
        constants.update(text for text in groups if 3 <= len(text) <= 40 and re.search(r"[^\w\s\\]", text))
    constants.update(re.findall(r"</?\w+>", source))
    ordered = sorted(constants, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None

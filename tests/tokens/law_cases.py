"""Random conversations by kind for the law of masks. Every word occurs once, so that a render tells who wrote what.

>>> chat, tools = draw_case("call with text", 7, end="<|im_end|>")
>>> [message["role"] for message in chat if message["role"] != "system"]
['user', 'assistant', 'tool', 'assistant']
"""

import random
from collections.abc import Callable
from typing import Any

Chat = list[dict[str, Any]]
_CONSONANTS, _VOWELS = "bdfgklmnprtvz", "aeiou"
_TOOLS = ("get_weather", "find_file", "run_test")


class Writer:
    """Writes messages of words that it never repeats."""

    def __init__(self, seed: int, end: str) -> None:
        self.random = random.Random(seed)
        self.end = end
        self.num_words = 0
        self.num_calls = 0

    def word(self) -> str:
        # A counter in a number system of syllables; "q" and "x" at the ends keep one word from being in another.
        self.num_words += 1
        number, syllables = self.num_words * 97 + self.random.randrange(97), ""
        for _ in range(3):
            syllables += _CONSONANTS[number % 13] + _VOWELS[number // 13 % 5]
            number //= 65
        return f"q{syllables}x"

    def text(self, most: int = 5) -> str:
        words = [self.word() for _ in range(self.random.randint(1, most))]
        marks = self.random.choice([" ", " ", ", ", "\n", " 7 ", " é ", ' "', "\n\n", " {", " \\ "])
        return words[0] + "".join(marks + word for word in words[1:]) + self.random.choice(["", ".", "!", "?", ")"])

    def user(self) -> dict[str, Any]:
        return {"role": "user", "content": self.text()}

    def system(self) -> dict[str, Any]:
        return {"role": "system", "content": self.text()}

    def start(self) -> Chat:
        return [self.system()] if self.random.random() < 0.5 else []

    def answer(self, content: str | None = None, *, thinks: bool = False, calls: int = 0) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text() if content is None else content}
        if thinks:
            message["reasoning_content"] = self.text(8)
        if calls:
            message["tool_calls"] = [self.call() for _ in range(calls)]
        return message

    def call(self) -> dict[str, Any]:
        self.num_calls += 1
        arguments: dict[str, Any] = {"place": self.text(3)}
        if self.random.random() < 0.5:
            arguments["count"] = self.random.randrange(10_000, 99_999)
        if self.random.random() < 0.3:
            arguments["options"] = self.random.choice([{"deep": self.word()}, [self.word(), 5], True])
        function = {"name": self.random.choice(_TOOLS), "arguments": arguments}
        return {"id": f"call{self.num_calls:05d}", "type": "function", "function": function}

    def results(self, message: dict[str, Any]) -> Chat:
        return [
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": self.text(),
            }
            for call in message["tool_calls"]
        ]

    def calls(self, *, text: bool = False, thinks: bool = False, number: int = 1) -> Chat:
        message = self.answer(None if text else "", thinks=thinks, calls=number)
        return [message, *self.results(message)]


def _exchanges(write: Writer, thinks: tuple[bool, ...]) -> Chat:
    return [message for flag in thinks for message in (write.user(), write.answer(thinks=flag))]


def _some(write: Writer, number: int) -> tuple[bool, ...]:
    """Some with and some without reasoning, at least one of each."""
    flags = [True, False, *(write.random.random() < 0.5 for _ in range(number - 2))]
    write.random.shuffle(flags)
    return tuple(flags)


def _run(write: Writer, *, thinks: tuple[bool, bool, bool], text: bool = False, number: int = 1) -> Chat:
    """A question, calls, more calls, an answer."""
    return [
        write.user(),
        *write.calls(text=text, thinks=thinks[0], number=number),
        *write.calls(text=text, thinks=thinks[1]),
        write.answer(thinks=thinks[2]),
    ]


def _end_inside(write: Writer) -> Chat:
    answers = [f"{write.text()} {write.end} {write.text()}", f"{write.text()}{write.end}"]
    return [m for answer in answers for m in (write.user(), write.answer(answer))]


ALL, NONE = (True, True, True), (False, False, False)
KINDS: dict[str, Callable[[Writer], Chat]] = {
    "plain": lambda w: _exchanges(w, (False,)),
    "several": lambda w: _exchanges(w, NONE),
    "reasoning": lambda w: _exchanges(w, (True,)),
    "several, reasoning": lambda w: _exchanges(w, ALL),
    "several, mixed": lambda w: _exchanges(w, _some(w, 3)),
    "call": lambda w: [w.user(), *w.calls(), w.answer()],
    "call with text": lambda w: [w.user(), *w.calls(text=True), w.answer()],
    "call, reasoning": lambda w: _run(w, thinks=ALL),
    "call with text, reasoning": lambda w: _run(w, thinks=ALL, text=True),
    "calls, mixed": lambda w: _run(w, thinks=(True, False, True)),
    "parallel calls": lambda w: [w.user(), *w.calls(number=w.random.randint(2, 3)), w.answer()],
    "parallel calls, reasoning": lambda w: [w.user(), *w.calls(number=2, thinks=True), w.answer(thinks=True)],
    "calls in a row": lambda w: _run(w, thinks=NONE),
    "calls after a second question": lambda w: [*_exchanges(w, (False,)), *_run(w, thinks=NONE)],
    "second question, reasoning": lambda w: [*_run(w, thinks=ALL), *_exchanges(w, (True,))],
    "call as last": lambda w: [w.user(), w.answer("", calls=1)],
    "end token in an answer": _end_inside,
    "empty answer": lambda w: [w.user(), w.answer(""), w.user(), w.answer()],
    "white space": lambda w: [w.user(), w.answer(f" {w.text()}\n"), w.user(), w.answer(f"\n\n{w.text()} ")],
    "system in the middle": lambda w: [*_exchanges(w, (False,)), w.system(), *_exchanges(w, (False,))],
    "question as last": lambda w: [*_exchanges(w, (False,)), w.user()],
}


def draw_case(kind: str, seed: int, *, end: str) -> tuple[Chat, list[dict[str, Any]] | None]:
    """Draw a conversation and its tools; `end` is the token that some kinds have inside an answer."""
    write = Writer(seed, end)
    body = KINDS[kind](write)
    chat = [*write.start(), *body]
    return chat, schemas() if any("tool_calls" in message for message in chat) else None


def schemas() -> list[dict[str, Any]]:
    properties = {
        "place": {"type": "string", "description": "Where."},
        "count": {"type": "integer", "description": "How many."},
        "options": {"type": "object", "description": "More."},
    }
    parameters = {"type": "object", "properties": properties, "required": ["place"]}
    return [
        {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}
        for name in _TOOLS
    ]

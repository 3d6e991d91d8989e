"""Four tools, requests that need exactly one of them, and the verifier that scores an answer.

The training split and the held-out split have no phrase, city, person or topic in common, and use even and odd numbers
respectively, so that held-out requests cannot be answered from memory.
"""

import json
import random
from typing import Any

Task = dict[str, Any]

SYSTEM = "You answer with one JSON tool call."
# Solved requests at the start of every prompt; no task has their words and phrases.
SHOWN = (
    ("Weather in Rome?", "weather", {"city": "Rome"}),
    ("Timer for 5 minutes.", "timer", {"minutes": 5}),
    ("Add 1 and 2.", "add", {"a": 1, "b": 2}),
    ("Write to Bob about lunch.", "message", {"to": "Bob", "about": "lunch"}),
    ("I am in Milan, is it cold?", "weather", {"city": "Milan"}),
    ("The cake needs 15 minutes.", "timer", {"minutes": 15}),
    ("What is 20 plus 31?", "add", {"a": 20, "b": 31}),
    ("Tell Lucy about the game.", "message", {"to": "Lucy", "about": "game"}),
)
TOOLS = {"weather": ("city",), "timer": ("minutes",), "add": ("a", "b"), "message": ("to", "about")}

PHRASES = {
    "train": {
        "weather": ("What is the weather like in {city}?", "Will it rain in {city} today?",
                    "How warm is it in {city}?"),
        "timer": ("Set a timer for {minutes} minutes.", "Start a {minutes} minute countdown.",
                  "Time {minutes} minutes."),
        "add": ("What is {a} + {b}?", "Add the numbers {a} and {b}.", "What do {a} and {b} make together?"),
        "message": ("Send {to} a message about the {about}.", "Write {to} a note on the {about}.",
                    "Let {to} know about the {about}."),
    },
    "heldout": {
        "weather": ("Tell me the weather in {city}.", "Is it sunny in {city} right now?",
                    "I am flying to {city}. Do I need a coat?"),
        "timer": ("Wake me up in {minutes} minutes.", "Ring a bell after {minutes} minutes.",
                  "Call me when {minutes} minutes are over."),
        "add": ("How much is {a} plus {b}?", "Give me the sum of {a} and {b}.", "Please total {a} and {b}."),
        "message": ("Drop {to} a line about the {about}.", "Tell {to} by text about the {about}.",
                    "I want to message {to}. It is about the {about}."),
    },
}  # fmt: skip

WORDS = {
    "train": {
        "city": "Paris London Madrid Berlin Vienna Prague Cairo Tokyo Delhi Lima Boston Denver Dublin Athens Sydney",
        "to": "Anna Peter Maria John Laura Susan David Emma Paul Julia Mark Frank Clara Eric",
        "about": "meeting invoice party contract holiday budget project dinner report delivery",
    },
    "heldout": {
        "city": "Oslo Warsaw Lisbon Helsinki Nairobi Dallas Seattle Zurich Mumbai Havana Geneva Kyoto Naples Perth",
        "to": "Oscar Helen Victor Sofia Ralph Diana Simon Greta Walter Alice Bruno Irene",
        "about": "wedding schedule payment interview repair concert order lesson",
    },
}

# Parts of the score of an answer; the weights add up to 1.
WEIGHTS = {"json": 0.2, "shape": 0.1, "tool": 0.2, "names": 0.2, "values": 0.3}


def build_prompt(request: str) -> list[dict[str, str]]:
    """Return the messages for the model: solved requests, then this one."""
    messages = [{"role": "system", "content": SYSTEM}]
    for question, tool, arguments in SHOWN:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": json.dumps({"name": tool, "arguments": arguments})})
    return [*messages, {"role": "user", "content": request}]


def make_tasks(split: str, number: int, *, seed: int) -> list[Task]:
    """Make distinct requests that use the tools in rotation."""
    if number > 120:
        raise ValueError(f"{number} tasks: there are words for about 40 requests of a tool; ask for up to 120 tasks")
    draw = random.Random(f"{split} {seed}")
    tasks: dict[str, Task] = {}
    while len(tasks) < number:
        tool = list(TOOLS)[len(tasks) % len(TOOLS)]
        arguments = {name: _draw_value(name, split, draw) for name in TOOLS[tool]}
        request = draw.choice(PHRASES[split][tool]).format(**arguments)
        task = {"id": f"{split}-{seed}-{len(tasks)}", "request": request, "tool": tool, "arguments": arguments}
        tasks.setdefault(request, task)
    return list(tasks.values())


def _draw_value(name: str, split: str, draw: random.Random) -> str | int:
    if name in WORDS[split]:
        return draw.choice(WORDS[split][name].split())
    half = draw.randrange(3, 45) if name == "minutes" else draw.randrange(5, 500)
    return 2 * half + (split == "heldout")


def check(task: Any, text: str) -> dict[str, float]:
    """Return the parts of an answer's score, each from 0 to 1, and `success`: the text is exactly the expected call.

    >>> task = {"tool": "timer", "arguments": {"minutes": 8}}
    >>> check(task, '{"name": "timer", "arguments": {"minutes": 8}}')["success"]
    1.0
    >>> check(task, '{"name": "timer", "arguments": {"minutes": "8"}}')["success"]
    0.0
    """
    parts = dict.fromkeys((*WEIGHTS, "success"), 0.0)
    call, parts["json"] = _parse(text)
    arguments = call.get("arguments")
    if not isinstance(arguments, dict):
        return parts
    expected = task["arguments"]
    parts["shape"] = float(set(call) == {"name", "arguments"})
    if call.get("name") == task["tool"]:
        parts["tool"] = 1.0
        parts["names"] = float(set(arguments) == set(expected))
        # 8, "8" and 8.0 are different values for the tool
        same = [
            type(arguments.get(name)) is type(value) and arguments[name] == value for name, value in expected.items()
        ]
        parts["values"] = sum(same) / len(same)
    parts["success"] = float(all(parts[name] == 1.0 for name in WEIGHTS))
    return parts


def _parse(text: str) -> tuple[dict[str, Any], float]:
    """Return the JSON object of an answer, and 1 if it is the whole answer, 0.5 if it has other text around it.

    >>> _parse('Sure: {"name": "timer"}'), _parse("no")
    (({'name': 'timer'}, 0.5), ({}, 0.0))
    """
    start, end = text.find("{"), text.rfind("}") + 1
    for piece, credit in ((text, 1.0), (text[max(start, 0) : end], 0.5)):
        try:
            value = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value, credit
    return {}, 0.0


def score(parts: dict[str, float]) -> float:
    """Return the reward with partial credit, so that failed answers still differ."""
    return round(sum(weight * parts[name] for name, weight in WEIGHTS.items()), 3)

"""Errands: two requests in one conversation, and tools that report errors.

Requests, tools and words are those of `examples/tool_agent`. A tool rejects a call it cannot run: invalid JSON, an
unknown tool, wrong arguments, an unknown city or person. It runs every other call and answers `ok`, even if the
request asked for something else: a visible error is always a mistake, but `ok` may be wrong.

practice   one sampled run; its reward is the share of requests that were answered exactly
exam       the same on held-out requests
credit     verdict on a turn for `tokens.credit.function`: what the tool reported
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "tool_agent"))
from assistant import TOOLS, WORDS, build_prompt, check, make_tasks

NUM_REQUESTS = 2
OK = "ok"
KNOWN = {
    name: {word for split in WORDS.values() for word in split[name].split()} for name in ("city", "to", "about")
}  # all words of both splits


def make_errands(split: str, number: int, *, seed: int) -> list[dict[str, Any]]:
    """Make errands of two requests each, in random order."""
    requests = make_tasks(split, NUM_REQUESTS * number, seed=seed)
    random.Random(f"errands {split} {seed}").shuffle(requests)
    return [
        {"id": f"{split}-{seed}-{place}", "requests": requests[NUM_REQUESTS * place :][:NUM_REQUESTS]}
        for place in range(number)
    ]


def run_tool(text: str) -> str:
    """Return the answer of the tool to the model's text.

    >>> run_tool('{"name": "timer", "arguments": {"minutes": 8}}')
    'ok'
    >>> run_tool('{"name": "timer", "arguments": {"time": 8}}')
    'error: timer takes minutes'
    """
    try:
        call = json.loads(text)
        name, arguments = call["name"], dict(call["arguments"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "error: expected one JSON tool call"
    if name not in TOOLS:
        return f"error: no tool is named {str(name)[:20]}"
    if set(arguments) != set(TOOLS[name]):
        return f"error: {name} takes {' and '.join(TOOLS[name])}"
    for key, value in arguments.items():
        if not (value in KNOWN[key] if key in KNOWN and isinstance(value, str) else type(value) is int):
            return f"error: unknown {key}" if key in KNOWN else f"error: {key} must be a number"
    return OK


async def practice(task: Any, policy: Any, recorder: Any) -> None:
    prompt = list(shown(task["requests"][0]["request"]))
    messages: list[Any] = []
    scores, results = [], []
    for place, request in enumerate(task["requests"]):
        if place:
            messages.append({"role": "user", "content": request["request"]})
        (answer,) = await policy.complete([*prompt, *messages], n=1)
        results.append(run_tool(answer.text))
        scores.append(check(request, answer.text)["success"])
        messages += [answer.message, {"role": "tool", "content": results[-1]}]
    share = sum(scores) / len(scores)
    parts = {"success": float(share == 1), "requests": share, "accepted": results.count(OK) / len(results)}
    recorder.trajectory(prompt, messages, reward=share, components=parts)


exam = practice


def shown(request: str) -> Iterator[dict[str, str]]:
    """Return the solved example requests, each with its result, and then this request."""
    for message in build_prompt(request):
        yield message
        if message["role"] == "assistant":
            yield {"role": "tool", "content": OK}


def credit(run: Any, turn: int) -> bool:
    return run.messages[turn + 1].text == OK

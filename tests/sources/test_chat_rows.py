"""Rows of OpenAI chat lines, through an import: `read_rows` writes what the general code (`read`) writes.

The lines are plain rows, rows that are nearly plain, and both broken in many ways.
"""

import json
import random

import pytest
from tests.sources.test_every_reader import broken
from tests.sources.test_gym_rows import ODD_WORDS, WORDS, as_line, compare_with_general_code

from pairwright.sources.datasets.openai_chat import FORMAT, read_rows
from pairwright.sources.format import Origin

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"z": 1}}} for name in ("look", "find")]


def num_ready(lines: list[bytes]) -> int:
    origins = [Origin("rows.jsonl", number + 1, number) for number in range(len(lines))]
    return sum(row is not None for row in read_rows(lines, origins))


def made_up(draw: random.Random) -> dict:
    """A chat row that is plain, or nearly: each odd thing is rare."""

    def either(usual: list, odd: list):
        return draw.choice(odd if draw.random() < 0.04 else usual)

    def text() -> str:
        return " ".join(draw.choice(ODD_WORDS if draw.random() < 0.02 else WORDS) for _ in range(draw.randrange(1, 4)))

    def call() -> list[dict]:
        call_id = draw.choice(["c1", "c2", f"call_{draw.random()}"])
        arguments = either(['{"b": 1, "a": [2.50]}', "{}", json.dumps({"t": text()})], ["", "{torn", {"a": 1}, None])
        function = {"name": either(["look", "find"], ["nope", ""]), "arguments": arguments}
        item = either([{"id": call_id, "type": "function", "function": function}], [{"function": function}, {"id": 1}])
        message = {"role": "assistant", "content": either([None, text(), ""], [[{"type": "text", "text": "a"}]])}
        message["tool_calls"] = either([[item], [item, item]], [[], None])
        result = {"role": "tool", "tool_call_id": either([call_id], ["c9", None]), "content": text()}
        return draw.choice([[message], [message, result], [message, result], [result]])

    messages = [{"role": role, "content": draw.choice(WORDS)} for role in draw.choice([["user"], ["system", "user"]])]
    for _ in range(either([1, 2, 3], [0])):
        messages += call()
    messages += [{"role": either(["assistant"], ["text", "user", "tool", "", None]), "content": text()}]
    more = [{"weight": 0}, {"name": "x"}, {"reasoning_content": "hm"}, {"refusal": None}, {"train": True}]
    messages[-1] |= either([{}], more)
    row = {"messages": either([messages], [json.dumps(messages), messages[:1], {}])}
    row |= draw.choice(
        [{"tools": TOOLS}, {"tools": TOOLS}, {"tools": []}, {}, {"tools": json.dumps(TOOLS)}, {"functions": []}]
    )
    scores = [{"score": 0.5}, {"reward": 1}, {"rating": -0.0}, {"label": True}, {"score": "0.25", "success": False}]
    row |= either(
        scores, [{}, {"reward": {"a": 1.0}}, {"score": "nan"}, {"score": 1e999}, {"reward_components": {"a": 1}}]
    )
    row |= draw.choice([{}, {"task_id": "t"}, {"task_id": 3}, {"prompt_id": "", "uid": 1}])
    row |= draw.choice([{}, {"run": 2}, {"trial": "7"}, {"attempt": -1}])
    row |= draw.choice(
        [{}, {"model": "m", "n": 2}, {"big": "x" * 3000, "note": None}, {"id": "\u00e9", "deep": {"a": [1]}}]
    )
    return row | either([{}], [{"system": "Be brief."}, {"response": {"choices": []}}, {"parallel_tool_calls": True}])


def test_made_up_rows(tmp_path):
    draw = random.Random(0)
    lines = [as_line(made_up(draw), draw) for _ in range(1500)]
    compare_with_general_code(tmp_path, lines, FORMAT)
    assert num_ready(lines) > 500


def test_broken_rows(tmp_path):
    draw = random.Random(1)
    lines = [as_line(broken(made_up(draw), draw), draw) for _ in range(1000)]
    compare_with_general_code(tmp_path, lines, FORMAT)
    assert num_ready(lines) > 60


def test_rows_with_broken_bytes(tmp_path):
    draw = random.Random(2)
    lines = []
    for _ in range(1000):
        line = bytearray(as_line(made_up(draw), draw))
        for _ in range(draw.randrange(1, 3)):
            line[draw.randrange(len(line))] = draw.choice(b'"\\{}[]:,u0e\xff\xc3 \x01')
        lines.append(bytes(line).replace(b"\n", b" ")[: draw.choice([None, None, None, -5])])
    compare_with_general_code(tmp_path, lines, FORMAT)
    assert num_ready(lines) > 60


@pytest.mark.parametrize("text", ["", "\ud800", "Error: no", "tool", "\u00e9\u2028", "null", "x" * 2001, "1e999", "[]"])
def test_texts_wherever_they_stand(text, tmp_path):
    """A text in the place of each value of a row, one after the other."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a", "name": "n"},
        {"role": "assistant", "content": "b", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "fine"},
        {"role": "assistant", "content": "d"},
    ]
    row = {"messages": messages, "tools": TOOLS, "score": 0.5, "task_id": "t", "run": 1, "note": "e"}
    lines = []
    for holder in (row, *messages, call, call["function"]):
        for key in list(holder):
            before, holder[key] = holder[key], text
            lines.append(json.dumps(row).encode())
            holder[key] = before
    compare_with_general_code(tmp_path, lines, FORMAT)

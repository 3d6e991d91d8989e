"""Rows of Langfuse lines, through an import: `read_rows` writes what the general code (`read`) writes.

The lines are plain traces, traces that are nearly plain, and both broken in many ways.
"""

import json
import random

from tests.sources.test_every_reader import broken
from tests.sources.test_gym_rows import ODD_WORDS, WORDS, as_line, compare_with_general_code

from pairwright.sources.format import Origin
from pairwright.sources.tracing.langfuse import FORMAT


def num_ready(lines: list[bytes]) -> int:
    assert FORMAT.read_rows is not None
    origins = [Origin("rows.jsonl", number + 1, number) for number in range(len(lines))]
    return sum(row is not None for row in FORMAT.read_rows(lines, origins))


def plain_trace(draw: random.Random) -> dict:
    """A trace of one to three calls, each with all that was before it; each odd thing is rare."""

    def either(usual: list, odd: list):
        return draw.choice(odd if draw.random() < 0.04 else usual)

    def text() -> str:
        return " ".join(draw.choice(ODD_WORDS if draw.random() < 0.02 else WORDS) for _ in range(draw.randrange(1, 4)))

    dumps = draw.choice([json.dumps, json.dumps, lambda value: json.dumps(value, separators=(",", ":"))])
    messages = [{"role": role, "content": text()} for role in either([["user"], ["system", "user"]], [["system"], []])]
    observations: list[dict] = []

    def observe(kind: str, **fields) -> None:
        number = len(observations)
        shared = {"id": f"o{number}", "type": kind, "startTime": f"2026-01-01T00:00:{number:02d}Z"}
        more = [
            {"metadata": {"attributes": {"ai.operationId": "x"}}},
            {"toolDefinitions": []},
            {"parentObservationId": "o0"},
        ]
        more += [{"level": "ERROR", "statusMessage": "boom"}, {"startTime": "2025-01-01T00:00:00Z"}, {"id": "o0"}]
        more += [{"modelParameters": {"instructions": "be kind"}}, {"usage": {"input": True}}, {"model": ""}]
        observations.append({**shared, **fields, **either([{}], more)})

    for turn in range(draw.randrange(1, 4)):
        is_last = turn == 2 or draw.random() < 0.4
        function = {"name": either(["look"], ["user", ""]), "arguments": either(['{"a": 1}'], ["{torn", ""])}
        call = {"id": f"c{turn}", "type": "function", "function": function}
        answer = {"role": "assistant", "content": either([text(), ""], [None, "[1]", [{"type": "text", "text": "a"}]])}
        if not is_last or draw.random() < 0.05:
            answer["tool_calls"] = [call]
        repeated = either([messages], [messages[:1], messages[::-1], [*messages, *messages]])
        usage = draw.choice([{"usageDetails": {"input": 3, "output": 2.5}}, {"usage": {"output": 1}}, {}])
        output = either([dumps(answer)], [dumps([answer]), answer, None, "plain text", dumps(answer)[:-1]])
        observe("GENERATION", input=either([dumps(repeated)], [repeated, text()]), output=output, model="m-3", **usage)
        if is_last:
            break
        result = {"role": "tool", "content": either([text()], ["Error: no such file"]), "tool_call_id": f"c{turn}"}
        observe("TOOL", name="look", input="{}", output=either([dumps(result)], [dumps({**result, "status": "error"})]))
        messages += [answer, result]
    scores = either(
        [[], [{"name": "reward", "value": 0.5}], [{"name": "a", "value": 1}, {"name": "b", "value": 2}]],
        [[{"name": "a", "value": 1, "stringValue": "good", "dataType": "CATEGORICAL"}], [{"value": True}], None,
         [{"name": "a", "value": 1}, {"name": "a", "value": 0}], [{"name": "a", "value": 1, "observationId": "o0"}]],
    )  # fmt: skip
    trace = {"id": f"t{draw.randrange(99)}", "name": "shop", "tags": ["x"], "scores": scores}
    trace["metadata"] = draw.choice([None, json.dumps({"task_id": "k1"}), {"task_id": 7}])
    return {"trace": trace, "observations": observations}


def test_plain_traces_give_the_rows_of_the_general_code(tmp_path):
    draw = random.Random(0)
    lines = [as_line(plain_trace(draw), draw) for _ in range(1500)]
    compare_with_general_code(tmp_path, lines, FORMAT)
    assert num_ready(lines) > 600


def test_broken_traces_give_the_rows_of_the_general_code(tmp_path):
    draw = random.Random(1)
    lines = [as_line(broken(plain_trace(draw), draw), draw) for _ in range(1500)]
    compare_with_general_code(tmp_path, lines, FORMAT)
    assert num_ready(lines) > 100


def test_a_trace_with_a_torn_answer_is_not_joined_to_the_next_call(tmp_path):
    opening = [{"role": "user", "content": "hi"}]
    first = {"id": "a", "type": "GENERATION", "startTime": "2026-01-01T00:00:01Z", "input": json.dumps(opening)}
    torn = '{"role": "assistant", "content": "x"'
    whole = json.dumps([*opening, {"role": "assistant", "content": "x", "name": "n"}])
    second = {**first, "id": "b", "startTime": "2026-01-01T00:00:02Z", "input": whole}
    answer = json.dumps({"role": "assistant", "content": "y"})
    line = json.dumps(
        {"trace": {"id": "t"}, "observations": [{**first, "output": torn}, {**second, "output": answer}]}
    ).encode()
    compare_with_general_code(tmp_path, [line], FORMAT)
    assert num_ready([line]) == 0

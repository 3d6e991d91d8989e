"""Rows of NeMo Gym lines, through an import: each line gives a row or a rejection, whatever stands before it.

Rollouts of a task share what was read of their prompt, so each test imports its lines twice, in both orders, and
compares all that was written. It also imports them with nothing but the general code (`read`), which must write the same
as with `read_rows`. The lines are real rollouts, made-up ones, and both broken in many ways.
"""

import json
import random
from ast import literal_eval
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.sources.test_every_reader import broken

from pairwright.sources import READERS
from pairwright.sources.format import Format, Options, Origin
from pairwright.sources.reading import Layout
from pairwright.sources.rollouts.nemo_gym import FORMAT, read_rows
from pairwright.store.import_task import ImportTask, run_tasks

FIXTURE = Path(__file__).parent / "fixtures" / "nemo_gym.jsonl"
LINES = Layout("nemo-gym", 0, "lines")
WORDS = [
    "",
    "hello",
    'a "quoted" word\n',
    "n\u00e9e\u2028",
    "\U0001f600 \u0000",
    "details",
    '{"detailed": 1}',
    "\\u0041",
]
ODD_WORDS = ["Error: no", '{"error": "x"}', '{"detail": "timed out"}']


def import_lines(folder: Path, lines: list[bytes]) -> int:
    """Import lines, then the same lines in reverse, and compare; returns the number of rows."""
    compare_with_general_code(folder, lines)
    forth = outcome(folder, lines)
    back = outcome(folder, lines[::-1])
    assert len(forth) == len(back) == sum(bool(line.strip()) for line in lines)
    for number, cells in forth.items():
        other = back[len(lines) + 1 - number]
        differing = {name: (value, other[name]) for name, value in cells.items() if value != other[name]}
        assert not differing, (lines[number - 1], differing)
    return sum("uid" in cells for cells in forth.values())


def compare_with_general_code(folder: Path, lines: list[bytes], reader: Format = FORMAT) -> None:
    """All that an import writes and counts, with `read_rows` and without it."""
    usual = written(folder, lines, reader.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(READERS, reader.name, (replace(reader, read_rows=None),))
        general = written(folder, lines, reader.name)
    assert usual.keys() == general.keys()
    for name, values in general.items():
        differing = [both for both in zip(usual[name], values, strict=True) if both[0] != both[1]]
        assert not differing, f"{name}: {differing[0]}"


def written(folder: Path, lines: list[bytes], name: str) -> dict[str, list[str]]:
    """Columns, counts and rejections of an import, by name; as repr, so that -0.0 is not 0.0 and True is not 1."""
    folder.mkdir(exist_ok=True)
    path = folder / "rollouts.jsonl"
    path.write_bytes(b"\n".join(lines))
    result = run_tasks(
        [ImportTask(path, Layout(name, 0, "lines"), folder, Options(), keep_uids=True, label="some/rollouts.jsonl")]
    )
    values = {"uids": result.uids, "digests": [result.digests], "reasons": sorted(result.reasons.items())}
    values["counts"] = sorted((+result.counts[name]).items())
    if result.part is not None:
        table = pq.read_table(result.part)
        table.validate(full=True)
        values |= table.to_pydict()
        result.part.unlink()
    if result.quarantine is not None:
        values["quarantine"] = result.quarantine.read_bytes().splitlines()
        result.quarantine.unlink()
    return {name: list(map(repr, items)) for name, items in values.items()}


def num_ready(lines: list[bytes]) -> int:
    """How many lines `read_rows` reads."""
    origins = [Origin("rollouts.jsonl", number + 1, number) for number in range(len(lines))]
    return sum(row is not None for row in read_rows(lines, origins))


def outcome(folder: Path, lines: list[bytes]) -> dict[int, dict[str, str]]:
    """What an import wrote of each line; as repr, so that -0.0 is not 0.0 and True is not 1."""
    folder.mkdir(exist_ok=True)
    path = folder / "rollouts.jsonl"
    path.write_bytes(b"\n".join(lines))
    result = run_tasks([ImportTask(path, LINES, folder, Options(), keep_uids=True, label="some/rollouts.jsonl")])
    rows: list[dict] = []
    if result.part is not None:
        table = pq.read_table(result.part)
        table.validate(full=True)
        rows = table.to_pylist()
        assert [row["uid"] for row in rows] == result.uids
        result.part.unlink()
    assert [row["source_line"] for row in rows] == sorted(row["source_line"] for row in rows)
    written = {row["source_line"]: row for row in rows}
    if result.quarantine is not None:
        for line in result.quarantine.read_bytes().splitlines():
            rejected = json.loads(line)
            assert rejected["line"] not in written
            written[rejected["line"]] = rejected
        result.quarantine.unlink()
    assert result.counts["nemo-gym"]["experiences"] == len(rows)
    # what the position of a line decides is left out: its number, and the run of a line that names none
    return {
        number: {name: repr(value) for name, value in row.items() if name not in ("source_line", "line", "run", "uid")}
        | ({"uid": repr(json.loads(row["uid"])[4])} if "uid" in row else {})
        for number, row in written.items()
    }


def made_up(draw: random.Random) -> dict:
    """A rollout that is plain, or nearly: each odd thing is rare, so that about half of them are plain."""

    def text() -> str:
        return " ".join(draw.choice(ODD_WORDS if draw.random() < 0.02 else WORDS) for _ in range(draw.randrange(1, 4)))

    def either(usual: list, odd: list):
        return draw.choice(odd if draw.random() < 0.05 else usual)

    def message() -> list[dict]:
        part = {
            "type": either(["output_text"], ["text", "refusal"]),
            "text": text(),
            "annotations": either([[]], [[1]]),
        }
        content = either([text(), [part], [part | {"logprobs": None}]], [None, [part, part], []])
        more = either(
            [{}, {"id": "m", "status": "completed"}], [{"status": "incomplete"}, {"name": "x"}, {"output": ""}]
        )
        kind = either([{"type": "message"}, {}], [{"type": None}, {"type": "other"}])
        return [{"role": either(["assistant"], ["user", "tool"]), "content": content} | kind | more]

    def call() -> list[dict]:
        arguments = either(['{"b": 1, "a": [2.50, "\\u00e9"]}', "{}", "[1]", json.dumps({"t": text()})], ["", "{torn"])
        call_id = draw.choice(["c1", "c2", f"call_{draw.random()}"])
        item = {"type": "function_call", "name": either(["look", "find"], ["nope"]), "arguments": arguments}
        result = {"type": "function_call_output", "call_id": either([call_id], ["c1"]), "output": text()}
        item |= {"call_id": call_id}
        return draw.choice([[item], [item, result], [item, result], [result]])

    def reasoning() -> list[dict]:
        parts = [{"type": "summary_text", "text": text()} for _ in range(either([1, 2], [0]))]
        return [{"type": "reasoning", "id": "r", "summary": parts, "encrypted_content": either([None], ["x"])}]

    output: list[dict] = []
    for _ in range(either([1, 2, 3, 4, 5], [0])):
        output += draw.choice([message, call, call, reasoning])()
    tools = [{"type": "function", "name": name, "parameters": {"z": 1, "a": {}}} for name in ("look", "find")]
    params = draw.choice([
        {"input": [{"role": "user", "content": draw.choice(WORDS[1:])}], "tools": tools},
        {"input": "Hi", "instructions": "Be brief.", "metadata": draw.choice([{"n": 1}, {}, None])},
        {"input": "Hi", "tools": []},
        {
            "input": [
                {"role": "user", "content": "Go on"},
                {"type": "function_call", "name": "find", "arguments": "{}", "call_id": "c1"},
                {"type": "function_call_output", "call_id": "c1", "output": draw.choice(["fine", *ODD_WORDS])},
            ],
            "tools": tools,
        },
    ])  # fmt: skip
    row = {
        "responses_create_params": params,
        "response": {"model": either(["m", "\u00e9"], [None, 3]), "output": output},
    }
    row["response"] |= either(
        [{}, {"id": "r", "usage": {"n": 1}}],
        [{"instructions": "Hm"}, {"tools": tools}, {"new": 1}, {"incomplete_details": {"reason": "length"}}],
    )
    row["reward"] = either([0.5, 1, -0.0, True, None, 1e300], ["0.25", "nan", {"a": 1.0}])
    row |= draw.choice([{}, {"_ng_task_index": draw.randrange(3)}, {"_ng_task_index": "t", "agent_ref": {"name": "a"}}])
    row |= draw.choice([{}, {"_ng_rollout_index": draw.randrange(3)}, {"_ng_rollout_index": "7", "agent_ref": "b"}])
    row |= draw.choice([{}, {"score": 2, "why": text()}, {"big": "x" * 3000, "note": None}])
    return row | either([{}], [{"reward_components": {}}, {"output": []}])


def as_line(row: object, draw: random.Random) -> bytes:
    line = json.dumps(row, ensure_ascii=draw.random() < 0.5, separators=draw.choice([None, (",", ":")]))
    return line.encode("utf-8", "surrogatepass")


def test_made_up_rollouts(tmp_path):
    draw = random.Random(0)
    lines = [as_line(made_up(draw), draw) for _ in range(1000)]
    assert import_lines(tmp_path, lines) > 900
    assert num_ready(lines) > 200


def test_broken_rollouts(tmp_path):
    draw = random.Random(1)
    lines = [as_line(broken(made_up(draw), draw), draw) for _ in range(1000)]
    assert import_lines(tmp_path, lines) > 300
    assert num_ready(lines) > 50


def record_ids(row: dict, draw: random.Random) -> dict:
    """Add token ids to the items of the model, each with the ids of its whole prompt; some are odd."""
    ids = [draw.randrange(150_000) for _ in range(draw.randrange(1, 6))]
    has_logprobs = draw.random() < 0.8
    for item in row["response"]["output"]:
        if item.get("type") == "function_call_output":
            ids = ids + [draw.randrange(150_000) for _ in range(draw.randrange(3))]
            continue
        if draw.random() < 0.1:
            continue  # a turn without ids, or one that shares those of the item after it
        new = [draw.randrange(150_000) for _ in range(draw.randrange(1, 4))]
        logprobs = [draw.choice([-0.25, -1, -1e-9]) for _ in new]
        item |= {"prompt_token_ids": ids, "generation_token_ids": new, "generation_log_probs": logprobs}
        if not has_logprobs:
            del item["generation_log_probs"]
        if draw.random() < 0.1:
            key = draw.choice(["prompt_token_ids", "generation_token_ids", "generation_log_probs"])
            odd = [None, [], {}, "1", [1.0], [True], [-1], [2**31], [2**70], [1.5, "a"], [[1]], 5, ids[:-1], [*new, 1]]
            item[key] = draw.choice(odd)
        ids = ids + new
        if draw.random() < 0.03:
            ids = [*ids[:-1], ids[-1] * 10 + 1]  # begins with the same digits, and is another id
    return row


def test_made_up_rollouts_with_token_ids(tmp_path):
    draw = random.Random(4)
    lines = [as_line(record_ids(made_up(draw), draw), draw) for _ in range(1500)]
    assert import_lines(tmp_path, lines) > 1300
    rows = read_rows(lines, [Origin("rollouts.jsonl", 1, 0)] * len(lines))
    assert sum(row is not None and row.tokens is not None for row in rows) > 150
    broken_lines = [as_line(broken(record_ids(made_up(draw), draw), draw), draw) for _ in range(500)]
    assert import_lines(tmp_path, broken_lines) > 150


def test_lines_with_broken_bytes(tmp_path):
    draw = random.Random(2)
    lines = []
    for _ in range(1000):
        line = bytearray(as_line(made_up(draw), draw))
        for _ in range(draw.randrange(1, 3)):
            line[draw.randrange(len(line))] = draw.choice(b'"\\{}[]:,u0e\xff\xc3 \x01')
        lines.append(bytes(line).replace(b"\n", b" ")[: draw.choice([None, None, None, -5])])
    assert import_lines(tmp_path, lines) > 200
    assert num_ready(lines) > 40


def test_real_rollouts_whole_and_broken(tmp_path, traces):
    draw = random.Random(3)
    for file in sorted((traces / "nemo_gym").glob("*.jsonl")):
        lines = file.read_bytes().splitlines()
        assert import_lines(tmp_path, lines) > 0
        rows = [json.loads(line) for line in lines[:3]]
        damaged = [as_line(broken(row, draw), draw) for row in rows for _ in range(10)]
        import_lines(tmp_path, [*damaged, *lines])


def test_the_fixture_and_files_of_one_kind_of_line(tmp_path):
    plain = b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]}}'
    assert import_lines(tmp_path, FIXTURE.read_bytes().splitlines()) > 0
    assert import_lines(tmp_path, [plain] * 3) == 3
    assert import_lines(tmp_path, [b"{", plain, b"  ", b"{", plain + b"\r"]) == 2
    assert import_lines(tmp_path, [b"{}"]) == 0


@pytest.mark.parametrize(
    "number",
    ["0", "-0", "7", "1e3", "-1.5E-07", "0.1", "123456789012345678", "1234567890123456789", "18446744073709551616",
     "1e400", "01", "1.", ".5", "+1", "1e", "-", "0x1", "1_0", "1" * 40],
)  # fmt: skip
def test_numbers_wherever_they_stand(number, tmp_path):
    places = [
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"reward":%s}',
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}],"usage":%s}}',
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"_ng_task_index":%s}',
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"_ng_rollout_index":%s}',
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"more":[%s]}',
    ]
    import_lines(tmp_path, [(place % number).encode() for place in places])


@pytest.mark.parametrize(
    "text",
    [r"\u00e9", r"\ud83d\ude00", r"\ud83d", r"\ude00", r"\ud83d\u0041", r"\ude00\ude00", r"\/", r"\u0000", r"\u001f", r"\n\t\b\f\r\"\\", r"\x", r"\u12",
     "\x7f", "\u00e9\u20ac\U0001f600", "\u00a0Error: no", "Traceback (most recent call last)", r'{\"ERROR\": \"x\"}',
     " " * 90 + "error: late", "x" * 79 + "error", "\u212aerror", "a" * 40, "b" * 300, "c" * 70_000,
     "Tracebac\u212a (most recent call last)",  # lower case makes an ordinary k of it
     *(raw.decode(errors="surrogateescape") for raw in (
         b"\xff", b"\x80", b"\xc3", b"\xc0\xaf", b"\xe2\x82", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf0\x80\x80\xaf",
         b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80"))],
)  # fmt: skip
def test_texts_wherever_they_stand(text, tmp_path):
    items = [
        '{"role":"assistant","content":"%s"}',
        '{"type":"function_call_output","call_id":"c","output":"%s"}',
        '{"type":"function_call","call_id":"c","name":"n","arguments":"%s"}',
        '{"type":"function_call","call_id":"%s","name":"n","arguments":"{}"}',
        '{"type":"function_call","call_id":"c","name":"%s","arguments":"{}"}',
        '{"type":"reasoning","summary":[{"type":"summary_text","text":"%s"}]},{"role":"assistant","content":"b"}',
        '{"role":"assistant","content":"b","id":"%s"}',
        '{"role":"assistant","content":"b","%s":null}',
    ]
    row = '{"responses_create_params":{"input":"a"},"response":{"model":"m","output":[%s]}}'
    more = '{"responses_create_params":{"input":"a"},"response":{"model":"%s","output":[{"role":"assistant","content":"b"}]},"%s":1}'
    lines = [row % (item % text) for item in items] + [more % (text, text), more % ("m", text), more % (text, "k")]
    import_lines(tmp_path, [line.encode(errors="surrogateescape") for line in lines])


def test_a_key_that_stands_twice(tmp_path):
    lines = [
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"x":1,"x":2}',
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"reward":1,"reward":2}',
        b'{"responses_create_params":{"input":"a"},"responses_create_params":{"input":"z"},"response":{"output":[{"role":"assistant","content":"b"}]}}',
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b","content":"c"}]}}',
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}],"output":[{"role":"assistant","content":"c"}]}}',
        b'{"responses_create_params":{"input":"a"},"response":{"id":1,"id":2,"output":[{"role":"assistant","content":"b"}]}}',
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"\\u0072eward":2}',
    ]
    assert import_lines(tmp_path, lines) == len(lines)


def test_what_failed_is_noted_where_it_failed(tmp_path):
    call = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "a"}
    result = {"type": "function_call_output", "call_id": "a", "output": "fine"}
    error = result | {"output": '{"detail": "Not Found"}'}
    unknown = call | {"name": "it's \u00e9", "call_id": "b"}
    params = {"input": "?", "tools": [{"type": "function", "name": "look", "parameters": {}}]}
    for output, sites in (
        ([call, error], [(2, "tool_error", "look")]),
        ([call, result, error], [(3, "tool_error", "look")]),
        (
            [unknown, call, error, result | {"call_id": "b", "output": "Error: no such tool"}],
            [(1, "unknown_tool", "it's \u00e9"), (2, "tool_error", "look"), (3, "tool_error", "it's \u00e9")],
        ),
        (
            [error | {"call_id": "nobody's"}, call, unknown],
            [(1, "tool_error", None), (2, "unknown_tool", "it's \u00e9")],
        ),
    ):
        row = {"responses_create_params": params, "response": {"output": output}}
        line = json.dumps(row, ensure_ascii=False).encode()
        assert import_lines(tmp_path, [line, line]) == 2
        errors = json.loads(literal_eval(outcome(tmp_path, [line])[1]["errors"]))
        assert [(site["index"], site["kind"], site.get("tool")) for site in errors] == sites


def test_many_items_and_much_nesting(tmp_path):
    item, call = {"role": "assistant", "content": "b"}, {"type": "function_call", "name": "n", "arguments": "{}"}
    results = {"type": "function_call_output", "output": "fine"}
    many = [row | {"call_id": f"c{number}"} for number in range(300) for row in (call, results)]
    deep: list = []
    for _ in range(70):
        deep = [deep]
    for output, usage in (([item] * 17, 0), (many, 0), ([item] * 3000, 0), ([item], deep), ([item], deep[0][0][0][0])):
        row = {"responses_create_params": {"input": "a"}, "response": {"output": output, "usage": usage}}
        assert import_lines(tmp_path, [json.dumps(row).encode()] * 2) == 2

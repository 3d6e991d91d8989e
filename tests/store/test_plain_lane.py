"""The plain lane of an import against the general reader: every column, id, count and rejection is the same.

Each test imports the same lines twice, once with the lane and once without, and compares all that was written. The
lines are real rollouts, made-up ones with everything that a plain line may have, and both broken in many ways. All is
done with the C module and without.
"""

import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.test_every_reader import broken
from tests.sources.test_native import can_compile

from pairwright.jsontext import encode
from pairwright.messages import Message, ToolCall
from pairwright.sources import nemo_gym_plain
from pairwright.sources.format import Options
from pairwright.sources.nemo_gym_plain import PlainRollouts, Rollout
from pairwright.sources.plain_answer import Call, Turn
from pairwright.sources.reading import Layout
from pairwright.store import import_task
from pairwright.store.import_task import ImportTask, run_task

FIXTURE = Path(__file__).parents[1] / "sources" / "fixtures" / "nemo_gym.jsonl"
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


@pytest.fixture(params=["native", "python"], autouse=True)
def reading(request, monkeypatch) -> str:
    """With the C module, or by Python alone."""
    if request.param == "native":
        can_be_built = can_compile() and os.environ.get("PAIRWRIGHT_PURE") != "1"
        assert nemo_gym_plain.IS_NATIVE or not can_be_built, "not built: run make again, or pip install --editable ."
        if not nemo_gym_plain.IS_NATIVE:
            pytest.skip("there is no C compiler, or Python's headers are not installed")
    else:
        monkeypatch.setattr(nemo_gym_plain, "IS_NATIVE", False)
    return request.param


def lanes(folder: Path, lines: list[bytes], monkeypatch) -> int:
    """Import lines in both ways and compare; returns how many took the plain lane."""
    folder.mkdir(exist_ok=True)
    path = folder / "rollouts.jsonl"
    path.write_bytes(b"\n".join(lines))
    task = ImportTask(path, LINES, folder, Options(), keep_uids=True, label="some/rollouts.jsonl")
    assert import_task._has_plain_lane(task)
    quick = outcome(task)
    with monkeypatch.context() as patch:
        patch.setattr(import_task, "_has_plain_lane", lambda task: False)
        slow = outcome(task)
    for name, values in slow.items():
        differing = [both for both in zip(quick[name], values, strict=True) if both[0] != both[1]]
        assert not differing, f"{name}: {differing[0]}"
    return sum(rollout is not None for rollout in rollouts(lines))


def rollouts(lines: list[bytes]) -> list[Rollout | None]:
    read = PlainRollouts().read
    return [read(line) for line in lines]


def outcome(task: ImportTask) -> dict[str, list[str]]:
    """All that an import wrote and counted, by name; as repr, so that -0.0 is not 0.0 and True is not 1."""
    result = run_task(task)
    found = {"uids": result.uids, "digests": [result.digests], "reasons": sorted(result.reasons.items())}
    found["counts"] = sorted((+result.counts).items())
    if result.part is not None:
        table = pq.read_table(result.part)
        table.validate(full=True)
        found |= table.to_pydict()
        result.part.unlink()
    if result.quarantine is not None:
        found["quarantine"] = result.quarantine.read_bytes().splitlines()
        result.quarantine.unlink()
    return {name: list(map(repr, values)) for name, values in found.items()}


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


def test_made_up_rollouts(tmp_path, monkeypatch):
    draw = random.Random(0)
    lines = [as_line(made_up(draw), draw) for _ in range(3000)]
    assert lanes(tmp_path, lines, monkeypatch) > 500


def test_broken_rollouts(tmp_path, monkeypatch):
    draw = random.Random(1)
    lines = [as_line(broken(made_up(draw), draw), draw) for _ in range(3000)]
    assert lanes(tmp_path, lines, monkeypatch) > 100


def test_lines_with_broken_bytes(tmp_path, monkeypatch):
    draw = random.Random(2)
    lines = []
    for _ in range(3000):
        line = bytearray(as_line(made_up(draw), draw))
        for _ in range(draw.randrange(1, 3)):
            line[draw.randrange(len(line))] = draw.choice(b'"\\{}[]:,u0e\xff\xc3 \x01')
        lines.append(bytes(line).replace(b"\n", b" ")[: draw.choice([None, None, None, -5])])
    assert lanes(tmp_path, lines, monkeypatch) > 100


def test_real_rollouts_whole_and_broken(tmp_path, traces, monkeypatch):
    draw, num_plain = random.Random(3), 0
    for file in sorted((traces / "nemo_gym").glob("*.jsonl")):
        lines = file.read_bytes().splitlines()
        num_plain += lanes(tmp_path, lines, monkeypatch)
        rows = [json.loads(line) for line in lines[:3]]
        damaged = [as_line(broken(row, draw), draw) for row in rows for _ in range(10)]
        num_plain += lanes(tmp_path, [*damaged, *lines], monkeypatch)
    assert num_plain > 60


def test_the_fixture_and_files_of_one_kind_of_line(tmp_path, monkeypatch):
    plain = b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]}}'
    assert lanes(tmp_path, FIXTURE.read_bytes().splitlines(), monkeypatch) == 0
    assert lanes(tmp_path, [plain] * 3, monkeypatch) == 3
    assert lanes(tmp_path, [b"", plain, b"  ", b"{", plain + b"\r"], monkeypatch) == 2
    assert lanes(tmp_path, [b"{}"], monkeypatch) == 0


def read_natively(lines: list[bytes]) -> list[Rollout | None]:
    """What the C module alone says of each line."""
    reader = PlainRollouts()

    def read(line: bytes) -> Rollout | None:
        try:
            return reader._read_natively(line)
        except nemo_gym_plain._NO_ROLLOUT:
            return None

    return [read(line) for line in lines]


def test_the_c_module_reads_nearly_all_plain_lines(reading, monkeypatch, traces):
    if reading == "python":
        pytest.skip("about the C module")
    draw = random.Random(4)
    made = [as_line(made_up(draw), draw) for _ in range(1000)]
    real = [line for file in sorted((traces / "nemo_gym").glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    for lines, share in ((made, 0.5), (real, 0.9)):  # made-up names are full of escapes
        found = read_natively(lines)
        monkeypatch.setattr(nemo_gym_plain, "IS_NATIVE", False)
        plain = rollouts(lines)
        num_plain = sum(rollout is not None for rollout in plain)
        assert sum(rollout is not None for rollout in found) >= share * num_plain > 10
        both = [pair for pair in zip(found, plain, strict=True) if None not in pair]
        assert [said(natively) for natively, _ in both] == [said(other) for _, other in both]


def said(rollout: Rollout) -> list[str]:
    """All that a rollout says, as text; what it was given by its hashes."""
    given = rollout.given
    return [given.hash, given.prompt_hash, *(repr(getattr(rollout, name)) for name in Rollout.__struct_fields__[1:])]


def test_the_c_module_never_looks_behind_the_end(reading):
    if reading == "python":
        pytest.skip("about the C module")
    draw, num_plain = random.Random(5), 0
    for _ in range(40):
        line = as_line(made_up(draw), draw)
        reader = PlainRollouts()
        if reader.read(line) is None:
            continue
        num_plain += 1
        for end in range(len(line)):  # the rest of the line is there in memory, so that whoever reads on finds it
            with suppress(*nemo_gym_plain._NO_ROLLOUT):
                assert reader._read_natively(memoryview(line)[:end]) is None
    assert num_plain > 10


@pytest.mark.parametrize(
    "number",
    ["0", "-0", "7", "1e3", "-1.5E-07", "0.1", "123456789012345678", "1234567890123456789", "18446744073709551616",
     "1e400", "01", "1.", ".5", "+1", "1e", "-", "0x1", "1_0", "1" * 40],
)  # fmt: skip
def test_numbers_wherever_they_stand(number, tmp_path, monkeypatch):
    places = [
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"reward":%s}',
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}],"usage":%s}}',
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"_ng_task_index":%s}',
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"_ng_rollout_index":%s}',
        '{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"more":[%s]}',
    ]
    lanes(tmp_path, [(place % number).encode() for place in places], monkeypatch)


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
def test_texts_wherever_they_stand(text, tmp_path, monkeypatch):
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
    lanes(tmp_path, [line.encode(errors="surrogateescape") for line in lines], monkeypatch)


def test_what_failed_is_noted_where_it_failed(tmp_path, monkeypatch, reading):
    call = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "a"}
    result = {"type": "function_call_output", "call_id": "a", "output": "fine"}
    error = result | {"output": '{"detail": "Not Found"}'}
    unknown = call | {"name": "it's \u00e9", "call_id": "b"}
    given = {"input": "?", "tools": [{"type": "function", "name": "look", "parameters": {}}]}
    for output in (
        [call, error],
        [call, result, error],
        [unknown, call, error, result | {"call_id": "b", "output": "Error: no such tool"}],
        [error | {"call_id": "nobody's"}, call | {"name": "look"}, unknown],
        [call, unknown | {"call_id": "a"}, error],
    ):
        row = {"responses_create_params": given, "response": {"output": output}}
        line = json.dumps(row, ensure_ascii=False).encode()
        assert lanes(tmp_path, [line, line], monkeypatch) == (2 if reading == "native" else 0)


def test_a_key_that_stands_twice(tmp_path, monkeypatch):
    lines = [
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"x":1,"x":2}',
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"reward":1,"reward":2}',
        b'{"responses_create_params":{"input":"a"},"responses_create_params":{"input":"z"},"response":{"output":[{"role":"assistant","content":"b"}]}}',
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b","content":"c"}]}}',
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}],"output":[{"role":"assistant","content":"c"}]}}',
        b'{"responses_create_params":{"input":"a"},"response":{"id":1,"id":2,"output":[{"role":"assistant","content":"b"}]}}',
        b'{"responses_create_params":{"input":"a"},"response":{"output":[{"role":"assistant","content":"b"}]},"\\u0072eward":2}',
    ]
    lanes(tmp_path, lines, monkeypatch)


def test_more_items_and_more_nesting_than_the_c_module_takes(tmp_path, monkeypatch):
    item, call = {"role": "assistant", "content": "b"}, {"type": "function_call", "name": "n", "arguments": "{}"}
    results = {"type": "function_call_output", "output": "fine"}
    many = [row | {"call_id": f"c{number}"} for number in range(300) for row in (call, results)]
    deep: list = []
    for _ in range(70):
        deep = [deep]
    for output, usage in (([item] * 17, 0), (many, 0), ([item] * 3000, 0), ([item], deep), ([item], deep[0][0][0][0])):
        row = {"responses_create_params": {"input": "a"}, "response": {"output": output, "usage": usage}}
        assert lanes(tmp_path, [json.dumps(row).encode()] * 2, monkeypatch) == 2


texts = st.none() | st.text(max_size=5)


@given(st.tuples(st.text(min_size=1), texts, texts, st.lists(st.tuples(st.text(), st.text(), st.text())), texts))
@settings(max_examples=200, deadline=None)
def test_a_turn_encodes_as_its_message(fields):
    role, content, reasoning, calls, call_id = fields
    turn = Turn(role, content, reasoning, tuple(Call(*call) for call in calls), call_id)
    message = Message(role, content, reasoning, tuple(ToolCall(*call) for call in calls), call_id)
    assert encode(turn) == encode(message)


@pytest.mark.parametrize(
    "change",
    [{"options": Options(reward="score")}, {"reward": "reward*2"}, {"redact": True}, {"path": Path("a\udcff")}],
)
def test_there_is_no_plain_lane_where_records_are_changed_on_their_way(change):
    fields = {"path": Path("a"), "layout": LINES, "folder": Path(), "options": Options()}
    assert import_task._has_plain_lane(ImportTask(**fields))
    assert not import_task._has_plain_lane(ImportTask(**{**fields, **change}))

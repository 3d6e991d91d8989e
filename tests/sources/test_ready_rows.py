"""Records as table cells: an import that asks readers for cells writes what it writes of their experiences.

The files are all fixtures, and lines of Claude Code and messages of traces that are plain, nearly plain, or broken.
"""

import json
import random
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.sources.test_every_reader import broken

from pairwright.errors import PairwrightError
from pairwright.sources.format import Options, Origin, ReadyRow, Rejected
from pairwright.sources.reading import detect
from pairwright.sources.sessions.claude_code import FORMAT, read
from pairwright.sources.sessions.claude_session import MessageLine, decode_line
from pairwright.sources.shapes import any_messages
from pairwright.sources.shapes.any_messages import conversation, plain_messages
from pairwright.store import import_task
from pairwright.store.import_task import ImportTask, run_tasks

FIXTURES = sorted(path for path in (Path(__file__).parent / "fixtures").rglob("*") if path.is_file())
CLAUDE_LINES = (Path(__file__).parent / "fixtures" / "claude_code.jsonl").read_bytes().splitlines()


def written(path: Path, folder: Path) -> dict[str, list[str]] | None:
    """All that an import of a file writes and counts, as repr; None for a file of no known format."""
    layout = detect(path)
    if isinstance(layout, Rejected):
        return None
    result = run_tasks([ImportTask(path, layout, folder, Options(), keep_uids=True, label=path.name)])
    counters = (result.reasons, result.unchosen, result.not_read, result.repairs, *result.counts.values())
    values = {"uids": result.uids, "counts": [sorted((+counter).items()) for counter in counters]}
    if result.part is not None:
        values |= pq.read_table(result.part).to_pydict()
    if result.quarantine is not None:
        values["quarantine"] = result.quarantine.read_bytes().splitlines()
    return {name: list(map(repr, items)) for name, items in values.items()}


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_cells_of_every_fixture_are_those_of_its_experiences(path, tmp_path, monkeypatch):
    ready = written(path, tmp_path)
    monkeypatch.setattr(import_task, "_as_rows", lambda units: units)
    assert ready == written(path, tmp_path)


def test_readers_give_cells_when_asked():
    lines = [msgspec.json.decode(line) for line in CLAUDE_LINES]
    records = [one for one in read(lines, Origin("a", as_row=True), Options()) if not isinstance(one, Rejected)]
    assert records
    assert all(isinstance(record, ReadyRow) for record in records)


def test_a_failed_result_without_a_flag_is_found_in_cells_as_in_experiences(tmp_path, monkeypatch):
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    path = tmp_path / "session.jsonl"
    lines = []
    for number, text in enumerate(["all good", "Exit code 2: make failed", "Error: ENOENT"]):
        names = [None, *(f"{kind}{number}" for kind in "uarz")]
        contents = ["Run it.", [use], [{"type": "tool_result", "tool_use_id": "t1", "content": text}], "Done."]
        for kind, above, own, content in zip(("user", "assistant") * 2, names, names[1:], contents, strict=False):
            message = {"role": kind, "content": content}
            lines.append(
                {"type": kind, "uuid": own, "parentUuid": above, "sessionId": f"s{number}", "message": message}
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ready = written(path, tmp_path)
    assert ready["num_errors"] == ["0", "1", "1"]
    monkeypatch.setattr(import_task, "_as_rows", lambda units: units)
    assert ready == written(path, tmp_path)


def outcome(lines: list) -> list[str]:
    try:
        return [repr(record) for record in FORMAT.read(lines, Origin("session.jsonl", 1), Options())]
    except PairwrightError as error:
        return [str(error)]


def by_type(text: bytes):
    try:
        return decode_line(text)
    except msgspec.ValidationError:
        return msgspec.json.decode(text)


def test_lines_of_claude_code_decoded_by_type_give_the_same_records():
    draw = random.Random(0)
    lines = [msgspec.json.decode(line) for line in CLAUDE_LINES]
    num_plain = 0
    for _ in range(300):
        session = list(lines)
        for _ in range(draw.randrange(3)):
            number = draw.randrange(len(session))
            session[number] = broken(session[number], draw)
        texts = [json.dumps(line).encode() for line in session]
        values = [msgspec.json.decode(text) for text in texts if _is_json(text)]
        typed = [by_type(text) for text in texts if _is_json(text)]
        num_plain += sum(type(line) is MessageLine for line in typed)
        assert outcome(typed) == outcome(values)
    assert num_plain > 1000


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True


def test_a_line_with_bytes_that_are_no_text_is_not_decoded_by_type():
    with pytest.raises(UnicodeDecodeError):
        decode_line(b'{"type":"user","message":{"content":"a"},"other":"\xff"}')


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": '[{"a": 1}]'},
    {"role": "assistant", "content": "Done.", "tool_calls": []},
    {
        "role": "assistant",
        "content": '[{"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]',
    },
    {"role": "user", "content": ""},
    {"role": "user"},
    {"role": "human", "content": "Hi."},
    {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "user", "arguments": "{}"}}]},
]


def test_plain_messages_are_read_as_all_shapes_are(monkeypatch):
    draw = random.Random(0)
    num_plain = 0
    for number in range(1500):
        messages = draw.sample(MESSAGES, draw.randrange(1, 5))
        value = draw.choice([messages, messages, messages[0]])
        text = json.dumps(broken(value, draw) if number % 3 == 0 else value)
        plain = plain_messages(text)
        num_plain += plain is not None
        with monkeypatch.context() as patch:
            patch.setattr(any_messages, "plain_messages", lambda value: None)
            if plain is not None:
                assert plain == conversation(text, "input", role="user"), text
    assert 300 < num_plain < 1400


def test_known_messages_are_bounded(monkeypatch):
    monkeypatch.setattr(any_messages, "_MOST_KNOWN_BYTES", 10_000)
    for number in range(1000):
        plain_messages(json.dumps([{"role": "user", "content": f"{number} " * 20}]))
        assert sum(map(len, any_messages._known_messages)) < 11_000

"""What holds for the records of every format, since one module assembles them (sources/assemble.py).

Each fixture is read as it is, with another text in each place of a system prompt, and with each option that names a
field: a system text in the file is in the prompt, another one is another prompt, every call has a result or the record
says how many have none, and `--reward`, `--task`, `--run` and `--step` are obeyed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairwright.records.experience import Experience, Kind
from pairwright.records.messages import prompt_hash
from pairwright.sources.datasets.row_names import SYSTEMS
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, file_units, read_file
from pairwright.sources.roles import ROLES

FIXTURES = sorted(path for path in (Path(__file__).parent / "fixtures").iterdir() if path.is_file())
MARK = "Answer as a lighthouse keeper would."
# Fields that hold a system prompt where a value is text; `instructions` of a tool or a report are something else.
_SYSTEM_KEYS = frozenset({*SYSTEMS, "base_instructions", "policy"}) - {"instructions", "system_message"}


def records_of(path: Path, options: Options = Options()) -> list[Experience]:  # noqa: B008
    layout = detect(path)
    assert isinstance(layout, Layout), layout.reason
    return [record for record in read_file(path, layout, options) if isinstance(record, Experience)]


def values_of(path: Path) -> list[Any] | None:
    """The lines or the document of a JSON file; None for any other file."""
    text = path.read_text(errors="replace")
    try:
        return [json.loads(text)] if path.suffix != ".jsonl" else [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return None


def write(path: Path, values: list[Any], like: Path) -> Path:
    file = path / like.name
    lines = values if like.suffix == ".jsonl" else values[:1]
    file.write_text("\n".join(json.dumps(value) for value in lines))
    return file


def system_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of texts that are system prompts: contents of system messages, and fields of that name."""
    if isinstance(value, dict):
        role = value.get("role", value.get("from"))
        body = next((key for key in ("content", "value", "text") if isinstance(value.get(key), str)), None)
        if role == "system" and body is not None:
            yield (*path, body)
        for key, item in value.items():
            if key in _SYSTEM_KEYS and isinstance(item, str) and item:
                yield (*path, key)
            else:
                yield from system_places(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from system_places(item, (*path, number))


def with_text(value: Any, path: tuple[Any, ...], text: str) -> Any:
    if not path:
        return text
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_text(copy[path[0]], path[1:], text)
    return copy


def prompts(records: list[Experience]) -> list[str]:
    """The text of system messages in each prompt; raw text is one message."""
    roles = ("system", "developer", "text")
    return ["\n".join(message.text for message in exp.prompt if message.role in roles) for exp in records]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_a_system_text_in_the_file_is_in_the_prompt_and_in_its_hash(path, tmp_path):
    values = values_of(path)
    if values is None:
        pytest.skip("not a JSON file")
    if path.name == "nat.json":
        pytest.skip("calls inside an item with candidates are not read")
    original = records_of(path)
    if not original:
        pytest.skip("a file of requests or of results alone")
    before = {prompt_hash(exp.prompt, exp.tools) for exp in original}
    for place in list(system_places(values))[:20]:
        records = records_of(write(tmp_path, with_text(values, place, MARK), path))
        marked = [exp for exp, text in zip(records, prompts(records), strict=True) if MARK in text]
        # A record may be refused: the two sides of a preference then begin with different system texts.
        assert marked or len(records) < len(original), f"{place}: the system text is in no prompt"
        assert not before & {prompt_hash(exp.prompt, exp.tools) for exp in marked}


def conversations(exp: Experience) -> list[tuple[Any, ...]]:
    sides = [side.messages for side in (exp.chosen, exp.rejected) if side is not None]
    return [exp.prompt + side for side in sides] or [exp.prompt + exp.completion]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_roles_are_of_the_closed_set_and_every_call_has_a_result_or_is_counted(path):
    for exp in records_of(path):
        for messages in conversations(exp):
            assert {message.role for message in messages} <= ROLES
            answered = {message.tool_call_id for message in messages if message.role == "tool"}
            calls = [call for message in messages for call in message.tool_calls]
            num_open = sum(call.id is None or call.id not in answered for call in calls)
            if exp.kind is not Kind.PREFERENCE:
                assert exp.metrics.get("unanswered_calls", 0) == num_open


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_a_named_reward_is_the_reward_of_every_record_or_it_has_none(path, tmp_path):
    for exp in records_of(path, Options(reward="a_score_that_no_file_has")):
        assert exp.reward is None or exp.kind is Kind.PREFERENCE
    values = values_of(path)
    layout = detect(path)
    if values is None or not isinstance(layout, Layout) or layout.reader.unit != "record":
        return
    units = [unit[1] for unit in file_units(path, layout) if not isinstance(unit, Rejected)]
    if not all(isinstance(unit, dict) for unit in units):
        return  # a list of messages has no name of a field
    is_list = path.suffix != ".jsonl" and isinstance(values[0], list)
    marked = [{**unit, "own_score": 0.25} for unit in units]
    marked = [marked] if is_list else marked
    for exp in records_of(write(tmp_path, marked, path), Options(reward="own_score")):
        assert exp.reward == 0.25 or exp.kind is Kind.PREFERENCE


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_task_run_and_step_are_those_that_the_user_names(path):
    options = Options(task="file", run="row%3", step="row//2")
    for exp in records_of(path, options):
        if exp.source is not None and exp.source.file == str(path):
            assert exp.eid.task == path.name.partition(".")[0]
            assert exp.eid.run < 3
    assert not isinstance(detect(path), Rejected)


def test_a_thought_in_the_text_and_in_the_reasoning_is_kept_once(tmp_path):
    text = "<think>\nLet me check.\n</think>\n\nThe bowline."
    asked = {"role": "user", "content": "Which knot holds?"}
    path = tmp_path / "chats.jsonl"
    cases = [("Let me check.", None), ("Let me check.\n\nKnots differ.", None), ("Something else.", "Something else.")]
    rows = [{"messages": [asked, {"role": "assistant", "content": text, "reasoning_content": one}]} for one, _ in cases]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = [record.completion[-1] for record in records_of(path)]
    assert [(answer.text, answer.reasoning) for answer in answers] == [(text, kept) for _, kept in cases]

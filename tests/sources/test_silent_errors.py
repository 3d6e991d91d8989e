"""Data losses that must be reported: dropped system prompts, ignored rewards, unknown roles, lost calls, lost lines."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pairwright.records.messages import prompt_hash
from pairwright.sources.files import expand_paths
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, read_file
from pairwright.store.import_task import ImportTask, run_tasks
from pairwright.store.importing import import_files
from pairwright.store.table import Table
from sources.test_every_reader import FIXTURES, damaged_text, units_of


def read_rows(folder: Path, rows: list[Any], options: Options = Options(), format_name: str = "auto") -> list[Any]:  # noqa: B008
    """All that a JSON Lines file of these rows gives."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    layout = detect(path, format_name, options)
    return [layout] if isinstance(layout, Rejected) else list(read_file(path, layout, options))


def read_one(folder: Path, row: Any, options: Options = Options(), format_name: str = "auto") -> Any:  # noqa: B008
    (record,) = read_rows(folder, [row], options, format_name)
    return record


CONTENTS = [{"role": "user", "parts": [{"text": "Say hello"}]}, {"role": "model", "parts": [{"text": "Hello"}]}]
ANSWERS = [{"response": "a", "overall_score": 2.0, "model": "m"}]
WITH_SYSTEM = {
    "contents, camel case": {"systemInstruction": {"role": "system", "parts": [{"text": "@"}]}, "contents": CONTENTS},
    "contents, snake case": {"system_instruction": {"parts": [{"text": "@"}]}, "contents": CONTENTS},
    "contents, text": {"systemInstruction": "@", "contents": CONTENTS},
    "contents as a prompt": {
        "systemInstruction": {"parts": [{"text": "@"}]},
        "contents": CONTENTS[:1],
        "completions": [{"score": 1.0, "completion": CONTENTS[1]}],
    },
    "UltraFeedback, of one answer": {
        "instruction": "Say hello",
        "completions": [{**ANSWERS[0], "custom_system_prompt": "@"}],
    },
    "UltraFeedback, of the row": {"system_prompt": "@", "instruction": "Q?", "generations": ["A"], "ratings": [5]},
}


@pytest.mark.parametrize("row", WITH_SYSTEM.values(), ids=WITH_SYSTEM)
def test_a_system_prompt_beside_the_conversation_is_in_the_prompt_and_in_its_hash(tmp_path, row):
    hashes = set()
    for system in ("Answer only in French.", "Answer only in English."):
        exp = read_one(tmp_path, json.loads(json.dumps(row).replace("@", system)))
        assert (exp.prompt[0].role, exp.prompt[0].text) == ("system", system)
        assert system not in json.dumps(exp.info)
        hashes.add((prompt_hash(exp.prompt, exp.tools), exp.eid.task))
    assert len(hashes) == 2


@pytest.mark.parametrize("more", [{}, {"error": "wrong answer"}, {"session_id": "s", "model": "gpt-4"}])
def test_no_reward_is_invented_for_rows_of_prompt_and_completion(tmp_path, more):
    row = {"prompt": "Q?", "completion": "A", "quality": "0.25", **more}
    assert read_one(tmp_path, {"prompt": "Q?", "completion": "A", **more}).reward is None
    assert read_one(tmp_path, row, Options(reward="quality")).reward == 0.25


def test_demonstrations_named_as_such_have_reward_one_unless_another_is_named(tmp_path):
    row = {"prompt": "Q?", "completion": "A", "quality": 0.25}
    assert read_one(tmp_path, row, format_name="customizer-sft").reward == 1.0
    assert read_one(tmp_path, row, Options(reward="quality"), "customizer-sft").reward == 0.25


def test_a_named_reward_goes_before_a_preference_and_a_rank(tmp_path):
    compared = {"prompt": "Q?", "response_a": "A", "response_b": "B", "response_c": "C", "winner": "a"}
    assert [exp.reward for exp in read_rows(tmp_path, [compared], Options(reward="quality"))] == [None] * 3
    assert [exp.reward for exp in read_rows(tmp_path, [compared])] == [1.0, 0.0, 0.0]
    ranked = {"prompt": "Q?", "completion": "A", "rank": 2}
    assert read_one(tmp_path, ranked, Options(reward="quality")).reward is None
    assert read_one(tmp_path, ranked).reward == -2.0


def test_an_object_that_holds_spans_is_no_row_of_prompt_and_answer(tmp_path):
    spans = {"llmSpans": [{"uuid": "s1", "input": [], "output": "x"}], "toolSpans": []}
    record = read_one(tmp_path, {"uuid": "t", "input": "Q?", "output": "A", **spans})
    assert isinstance(record, Rejected)
    assert read_one(tmp_path, {"uuid": "t", "input": "Q?", "output": "A", "llmSpans": []}).completion[0].text == "A"


TREE = [
    {"message_id": "a", "parent_id": None, "role": "prompter", "text": "Q?"},
    {"message_id": "b", "parent_id": "a", "role": "assistant", "text": "one"},
    {"message_id": "c", "parent_id": "a", "role": "assistant", "text": "two"},
    {"message_id": "d", "parent_id": None, "role": "prompter", "text": "R?"},
    {"message_id": "e", "parent_id": "d", "role": "assistant", "text": "three"},
]


@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize("body", ["text", "content"])
def test_messages_that_name_their_parents_are_a_tree_and_not_one_conversation(tmp_path, as_list, body):
    rows = [{**{key: value for key, value in row.items() if key != "text"}, body: row["text"]} for row in TREE]
    path = tmp_path / ("tree.json" if as_list else "tree.jsonl")
    path.write_text(json.dumps(rows) if as_list else "".join(json.dumps(row) + "\n" for row in rows))
    layout = detect(path)
    assert isinstance(layout, Layout)
    found = [[message.text for message in exp.prompt + exp.completion] for exp in read_file(path, layout, Options())]
    assert found == [["Q?", "one"], ["Q?", "two"], ["R?", "three"]]


def conversation(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_an_unknown_role_is_refused(tmp_path):
    record = read_one(tmp_path, conversation(("user", "Q?"), ("narrator", "Meanwhile"), ("assistant", "A")))
    assert isinstance(record, Rejected)
    assert "'narrator'" in record.reason


@pytest.mark.parametrize("text", ['{"name": "f", "arguments": {"a": 1}}', "{'name': 'f', 'arguments': '{\"a\": 1}'}"])
def test_a_call_that_is_a_message_of_its_own_joins_the_completion(tmp_path, text):
    turns = [("system", "S"), ("user", "Q?"), ("tool_call", text), ("tool_response", "Error: boom"), ("assistant", "A")]
    exp = read_one(tmp_path, conversation(*turns))
    assert [message.role for message in exp.prompt] == ["system", "user"]
    call, result, _ = exp.completion
    assert [(one.name, json.loads(one.arguments)) for one in call.tool_calls] == [("f", {"a": 1})]
    assert result.tool_call_id == call.tool_calls[0].id is not None
    assert [site.index for site in exp.errors] == [3]
    assert exp.metrics == {}
    refused = read_one(tmp_path, conversation(("user", "Q?"), ("tool_call", "look it up"), ("assistant", "A")))
    assert "not a call" in refused.reason


def test_results_of_functions_belong_to_their_calls(tmp_path):
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "Error: boom"}
    question, answer = {"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A"}
    exp = read_one(tmp_path, {"messages": [question, call, result, answer]})
    assert [message.role for message in exp.completion] == ["assistant", "tool", "assistant"]
    assert exp.completion[1].tool_call_id == exp.completion[0].tool_calls[0].id is not None
    assert [(site.index, site.tool) for site in exp.errors] == [(2, "f")]


def test_a_call_without_a_result_is_counted(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert read_one(tmp_path, {"messages": messages}).metrics == {"unanswered_calls": 1}
    messages.append({"role": "tool", "tool_call_id": "c1", "content": "ok"})
    assert read_one(tmp_path, {"messages": messages}).metrics == {}


@pytest.mark.parametrize("as_text", [True, False])
def test_calls_of_koog_may_have_objects_as_arguments(tmp_path, as_text):
    calls = [{"id": "c1", "index": 0, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    messages = [
        {"role": "user", "content": "Q?"},
        {"role": "tool", "content": json.dumps(calls) if as_text else calls},
        {"role": "tool", "content": "ok"},
    ]
    generation = {"id": "g", "type": "GENERATION", "startTime": "2025-01-01T00:00:00Z", "output": "A"}
    trace = {"trace": {"id": "t"}, "observations": [{**generation, "input": messages}]}
    exp = read_one(tmp_path, trace)
    assert [(call.name, call.arguments) for call in exp.prompt[1].tool_calls] == [("f", '{"a":1}')]
    assert exp.prompt[2].tool_call_id == "c1"


@pytest.mark.parametrize("kind", ["TextReasoningContent", "text_reasoning", "reasoning"])
@pytest.mark.parametrize("key", ["content", "text"])
def test_reasoning_of_microsofts_agents_is_reasoning(tmp_path, kind, key):
    output = [{"role": "assistant", "parts": [{"type": kind, key: "Hm."}, {"type": "text", "content": "A"}]}]
    generation = {"id": "g", "type": "GENERATION", "startTime": "2025-01-01T00:00:00Z", "input": "Q?"}
    trace = {"trace": {"id": "t"}, "observations": [{**generation, "output": output}]}
    answer = read_one(tmp_path, trace).completion[0]
    assert (answer.reasoning, answer.content) == ("Hm.", "A")


def test_attempts_in_a_list_are_not_unscored_candidates(tmp_path):
    row = {"prompt": "def f():", "solution": ["one", "two"], "is_solved": True}
    assert isinstance(read_one(tmp_path, row), Rejected)
    assert read_one(tmp_path, {**row, "solution": "two"}).completion[0].text == "two"
    scored = {"prompt": "def f():", "solution": ["one", "two"], "scores": [0.0, 1.0]}
    assert [exp.reward for exp in read_rows(tmp_path, [scored])] == [0.0, 1.0]


def record_fixtures() -> list[Path]:
    found = []
    for path in expand_paths([str(FIXTURES)]):
        layout = detect(path)
        # Rows that pairwright exported keep the place that they were read from first.
        if not isinstance(layout, Layout) or layout.shape == "binary" or layout.format == "pairwright":
            continue
        if layout.reader.unit == "record":
            found.append(Path(str(path)))
    return found


@pytest.mark.parametrize("path", record_fixtures(), ids=lambda path: path.name)
def test_every_line_of_a_damaged_file_is_a_record_or_in_quarantine(path, tmp_path):
    draw = random.Random(path.name)
    units = units_of(path, 3)
    good = [json.dumps(unit).encode() for unit in units]
    damaged = [damaged_text(draw.choice(units), draw) for _ in range(40)]
    lines = [*good, *damaged, b"", b"  ", *(b"{}", b"[]", b"null", b"1", b'"x"')]
    file = tmp_path / f"{path.name}.jsonl"
    file.write_bytes(b"\n".join(lines))
    layout = detect(file)
    if isinstance(layout, Rejected):
        return  # the file as a whole is refused
    # The rows of one task, before those that are in the table already are left out
    result = run_tasks([ImportTask(file, layout, tmp_path, Options())])
    rows = [] if result.part is None else pq.read_table(result.part, columns=["source_line"])["source_line"].to_pylist()
    assert result.quarantine is not None
    refused = [json.loads(line)["line"] for line in result.quarantine.read_text().splitlines()]
    assert {*rows, *refused} == {number for number, line in enumerate(lines, start=1) if line.strip()}


@pytest.mark.parametrize("content", [b"[]", b"[ ]\n", b"\n\n  \n\n\n\n\n\n\n\n"])
@pytest.mark.parametrize("format_name", ["auto", "rows", "customizer", "openai-chat", "inspect"])
def test_a_file_without_a_record_is_in_quarantine(tmp_path, content, format_name):
    path = tmp_path / "empty.json"
    path.write_bytes(content)
    summary = import_files([str(path)], Table(tmp_path / "table"), format_name=format_name, num_workers=1)
    assert summary.total("quarantined") == 1

"""`import --explain`: what becomes of each field, and a way in for files that no format reads."""

import json
from pathlib import Path

import pytest

from pairwright.sources import READERS
from pairwright.sources.explain import _KEYS, explain_file
from pairwright.sources.field_map import parse_map
from pairwright.sources.files import expand_paths
from pairwright.sources.format import Options

FIXTURES = Path(__file__).parent / "fixtures"
OWN = {"id": "x1", "request": {"body": {"text": "Port?"}}, "result": {"text": "Left", "ms": 3}, "eval": {"judge": {"score": 0.9}}}  # fmt: skip


def explain(value, path, **options):
    path.write_text("".join(json.dumps(row) + "\n" for row in value))
    return explain_file(path, "auto", Options(**options))


def uses(explanation) -> dict[str, str]:
    return {use.name: use.becomes for use in explanation.records[0].fields}


def test_each_field_of_a_row_has_its_use(tmp_path):
    row = {
        "system": "Be brief.",
        "prompt": "Port?",
        "response": "Left",
        "score": 1.0,
        "task_id": "t",
        "source": "log",
        "notes": "n" * 3000,
    }
    explanation = explain([row] * 5, tmp_path / "rows.jsonl")
    assert (explanation.format, len(explanation.records)) == ("rows", 3)
    assert uses(explanation) == {
        "system": "prompt (system)",
        "prompt": "prompt (user)",
        "response": "completion (assistant)",
        "score": "reward",
        "task_id": "task",
        "source": "info.source",
        "notes": "not kept: more than 2,000 bytes",
    }


def test_the_field_that_decides_a_preference_is_named(tmp_path):
    row = {"prompt": "Port?", "response_a": "Left", "response_b": "Right", "winner": "model_a"}
    found = uses(explain([row], tmp_path / "rows.jsonl"))
    assert found["response_a"] == "chosen (assistant)"
    assert found["winner"] == "which answer is chosen"


def test_a_map_is_explained_field_by_field(tmp_path):
    fields = parse_map("prompt=request.body.text,completion=result.text,reward=eval.judge.score")
    found = uses(explain([OWN], tmp_path / "own.jsonl", map=fields))
    assert found["request.body.text"] == "prompt (user)"
    assert found["result.ms"] == "info.result"
    assert found["eval.judge.score"] == "reward"


def test_an_unknown_file_gets_its_keys_the_nearest_format_and_a_map_that_reads_it(tmp_path):
    path = tmp_path / "own file.jsonl"
    explanation = explain([OWN], path)
    assert explanation.format is None
    assert list(explanation.keys) == ["id", "request.body.text", "result.text", "result.ms", "eval.judge.score"]
    assert explanation.nearest.startswith("openai-chat (has request")
    text = "prompt=request.body.text,completion=result.text,reward=eval.judge.score"
    assert explanation.command == f"pairwright import '{path}' --map {text} -o DIR"
    assert explain([OWN], path, map=parse_map(text)).format == "rows"
    lines = list(explanation.lines())
    assert any("this map reads it" in line for line in lines)
    assert "    = 1 experiences; 0 records refused" in lines


def test_records_inside_a_document_are_suggested_with_their_path(tmp_path):
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"version": 1, "items": [{"q": {"question": "Port is?"}, "a": {"reply": "Left"}}]}))
    assert "records=items,prompt=q.question,completion=a.reply" in explain_file(path, "auto", Options()).command


# A record of an unknown file, and what its map must not name: references, ids, one of several answers.
NEVER_PROPOSED = {
    "a reference": ({"x": {"question": "Which knot holds?"}, "gold": {"answer": "The bowline."}}, "gold"),
    "a document": ({"doc": {"question": "Which knot holds?", "answer": "B"}, "out": {"label": "A"}}, "doc"),
    "an expected output": ({"in": {"prompt": "Which knot holds?"}, "expected": {"output": "The bowline."}}, "expected"),
    "a target": ({"a": {"question": "Which knot holds?"}, "target": "The bowline holds."}, "target"),
    "an id": ({"user": "U1", "item": {"reply": "The bowline."}}, "user"),
    "a label": ({"q": {"question": "Which knot holds?"}, "label": {"text": "The bowline."}}, "label"),
    "a name": ({"instruction": "Which knot holds?", "name": "knots 1", "instances": [["x"]]}, "name"),
    "a setting": ({"status": "queued", "instructions": "Tie knots for sailors.", "response_format": "auto"}, "format"),
    "a cost": ({"meta": {"prompt": "Which knot holds?"}, "output": "The bowline.", "cost": 0.05}, "cost"),
    "an answer of a grader": ({"item": {"input": "Which knot holds?"}, "grader": {"output": "It is 6."}}, "grader"),
    "a switch": ({"q": {"question": "Knots?"}, "a": {"reply": "The bowline."}, "feedbackDisabled": False}, "Disabled"),
    "a latency": ({"q": {"question": "Which knot holds?"}, "a": {"reply": "The bowline."}, "latency": 5.6}, "latency"),
}


@pytest.mark.parametrize("name", NEVER_PROPOSED)
def test_references_and_ids_are_never_proposed(name, tmp_path):
    row, field = NEVER_PROPOSED[name]
    explanation = explain([row], tmp_path / "own.jsonl")
    assert explanation.format is None
    assert field not in (explanation.command or "")


def test_all_answers_of_an_object_are_proposed_with_their_scores(tmp_path):
    row = {"case": {"question": "Which knot holds?"}, "answers": {"x": "The bowline.", "y": "The granny knot."},
           "score": {"x": 1, "y": 0}}  # fmt: skip
    path = tmp_path / "own.jsonl"
    explanation = explain([row], path)
    assert "completion=answers.x|answers.y,reward=score.x|score.y" in explanation.command
    assert (explanation.trial.num_experiences, explanation.trial.answer) == (2, "The bowline.")


def test_a_history_that_ends_with_an_answer_is_the_whole_conversation_not_the_prompt(tmp_path):
    turns = [{"role": "user", "content": "Which knot holds?"}, {"role": "assistant", "content": "The bowline."}]
    row = {"state": {"history": turns, "latest_output": {"content": "No feedback."}, "success": True},
           "task": {"task_name": "knots", "task_id": 7}}  # fmt: skip
    explanation = explain([row, row], tmp_path / "own.jsonl")
    assert explanation.trial.map == "messages=state.history,reward=state.success,task=task.task_id"
    assert (explanation.trial.prompt, explanation.trial.answer) == ("Which knot holds?", "The bowline.")
    path = tmp_path / "chats.json"  # of two conversations, none is proposed alone
    path.write_text(json.dumps({"ann": turns, "bob": turns}))
    assert explain_file(path, "auto", Options()).command is None


def test_a_map_that_reads_nothing_is_not_shown(tmp_path):
    explanation = explain(
        [{"x": {"question": "Which knot holds?"}, "y": {"reply": {"deep": [1]}}}], tmp_path / "own.jsonl"
    )
    assert (explanation.command, explanation.trial) == (None, None)
    assert any("no map was found" in line for line in explanation.lines())


def test_nothing_is_suggested_where_nothing_looks_like_an_answer(tmp_path):
    assert explain([{"loss": 0.5, "lr": 1e-4}], tmp_path / "own.jsonl").command is None


@pytest.mark.parametrize("path", expand_paths([str(FIXTURES)]), ids=lambda path: path.name)
def test_every_fixture_is_explained(path):
    explanation = explain_file(path, "auto", Options())
    assert explanation.format is not None
    assert explanation.records
    json.dumps(explanation.as_json())
    assert list(explanation.lines())


def test_the_keys_that_tell_formats_are_of_formats():
    assert set(_KEYS) <= set(READERS)

"""What people and judges said of answers: Argilla, Label Studio, AlpacaEval, S1; rows with files."""

import json
from pathlib import Path

import pytest
from mutations import survives

from pairwright import ErrorSite, Kind, Message, ToolCall
from pairwright.sources import READERS
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.reading import detect, read_file

FIXTURES = Path(__file__).parent / "fixtures"


def read(path):
    layout = detect(path)
    items = list(read_file(path, layout, Options()))
    rejected = [item.reason for item in items if isinstance(item, Rejected)]
    return layout.format, [item for item in items if not isinstance(item, Rejected)], rejected


def read_value(name, value):
    return list(READERS[name][0].read(value, Origin("a.json", 1, 0), Options()))


def test_records_of_argilla_become_preferences_candidates_and_rewards():
    name, (pair, *ranked, rated, suggested), rejected = read(FIXTURES / "argilla.json")
    assert name == "argilla"
    assert (pair.prompt, pair.chosen.messages[0].text, pair.rejected.messages[0].text) == (
        (Message("user", "Two and two?"),),
        "4",
        "5",
    )
    assert (pair.reward, pair.chosen.reward, pair.info["level"]) == (None, None, 1)
    assert [(run.completion[0].text, run.reward) for run in ranked] == [("5", -2.0), ("6", -3.0), ("five", -1.0)]
    assert len({run.eid.sid for run in ranked}) == 1
    assert len({run.eid.run for run in ranked}) == 3
    assert (rated.reward, rated.reward_components) == (4.5, {"helpful": 4.5})
    assert (suggested.reward, suggested.info["judged_by"]) == (3.0, "suggestions")
    assert rejected == ["a tie: the annotators prefer neither answer"]


def test_flat_and_older_records_of_argilla_say_the_same():
    flat = {"id": "1", "prompt": "Two?", "response-1": "2", "response-2": "3", "status": "completed"}
    flat |= {"best.responses": ["response-2", "response-1"], "best.responses.status": ["submitted", "discarded"]}
    older = {"fields": {"prompt": "Two?", "response-1": "2", "response-2": "3"}, "suggestions": [], "responses": [
        {"user_id": "u", "status": "submitted", "values": {"best": {"value": "response-2"}}},
        {"user_id": "v", "status": "discarded", "values": {"best": {"value": "response-1"}}},
    ]}  # fmt: skip
    for record in (flat, older):
        assert READERS["argilla"][0].matches(record)
        (pair,) = read_value("argilla", record)
        assert (pair.chosen.messages[0].text, pair.rejected.messages[0].text) == ("3", "2")


def test_a_number_is_a_choice_only_where_the_question_asks_for_one():
    record = {"fields": {"prompt": "Two?", "response-1": "2", "response-2": "3"}, "responses": {}}
    for question, kind in (("quality", Kind.SINGLE_TURN), ("preferred", Kind.PREFERENCE)):
        record["responses"] = {question: [{"value": 2, "user_id": "u"}]}
        experience = read_value("argilla", record)[0]
        assert (experience.kind, experience.reward) == (kind, None)


def test_tasks_of_label_studio_become_preferences_and_rewards():
    name, (pair, rated, first, second), rejected = read(FIXTURES / "label_studio.json")
    assert (name, rejected) == ("label-studio", [])
    assert (pair.chosen.messages[0].text, pair.rejected.messages[0].text) == ("5", "4")
    assert (rated.completion[0].text, rated.reward) == ("5", 4.0)
    assert [(run.completion[0].text, run.reward) for run in (first, second)] == [("6", 5.0), ("7", 2.0)]
    assert first.eid.sid == second.eid.sid


def test_preferences_of_alpaca_eval_point_the_right_way():
    name, (first, second), rejected = read(FIXTURES / "alpaca_eval.json")
    assert name == "alpaca-eval"
    assert (first.chosen.messages[0].text, first.rejected.messages[0].text) == ("4", "5")
    assert (second.prompt, second.chosen.messages[0].text) == ((Message("user", "Add.\n2, 3"),), "5")
    assert rejected == ["preference: 0.0 is a tie", "preference: none, so the annotation failed"]
    _, (output,), _ = read(FIXTURES / "alpaca_eval_outputs.json")
    assert (output.completion[0].text, output.model_version, output.reward) == ("4", "a", None)


def test_files_of_a_row_are_part_of_the_prompt():
    name, (glass, pair, rain), rejected = read(FIXTURES / "llamafactory_media.json")
    assert name == "llamafactory-media"
    assert glass.prompt[0].content == [{"type": "audio", "audio": "a/1.mp3"}, {"type": "text", "text": "What is it?"}]
    assert glass.eid.tid != rain.eid.tid
    assert [part.get("image") for part in pair.prompt[0].content] == [None, "a/1.png", None, "a/2.png", None]
    assert pair.chosen.messages[0].text == "Two boats."
    assert rejected == ["video: more files than marks in the text"]


def test_a_trace_of_s1_is_an_experience_and_its_preferences():
    name, (run, pair), rejected = read(FIXTURES / "s1.jsonl")
    assert name == "s1"
    assert (run.eid.task, run.reward, len(run.prompt)) == ("boats-1", 0.5, 2)
    assert run.completion[0].tool_calls == (ToolCall("rent", '{"day":1}', "call_2"),)
    assert (run.completion[1].tool_call_id, run.completion[1].name) == ("call_2", "rent")
    meta = {"type": "ValidationError", "field": "day"}
    assert run.errors == (ErrorSite(3, "invalid_arguments", "no such day", tool="rent", call_id="call_2", meta=meta),)
    assert (pair.kind, pair.chosen.messages[0].text) == (Kind.PREFERENCE, "On which day?")
    assert rejected[0].startswith("dpo_pairs[1]: dpo_pairs[1].rejected: expected text or messages")


@pytest.mark.parametrize(
    "file", ["argilla.json", "label_studio.json", "alpaca_eval.json", "llamafactory_media.json", "s1.jsonl"]
)
def test_no_broken_record_raises_anything_else(file):
    path = FIXTURES / file
    records = json.loads(path.read_text()) if path.suffix == ".json" else [json.loads(path.read_text())]
    for record in records[:2]:
        assert survives(READERS[path.stem.replace("_", "-")][0], record) > 100


def test_the_real_files_read(traces):
    new = traces.parent / "traces_new" / "llamafactory"
    for file, kind in (("mllm_audio_demo.json", "audio"), ("mllm_video_demo.json", "video")):
        name, runs, rejected = read(new / file)
        assert (name, len(runs), rejected) == ("llamafactory-media", 3, [])
        assert len({run.eid.tid for run in runs}) == 3
        assert all(run.prompt[0].content[0]["type"] == kind for run in runs)
    name, pairs, rejected = read(new / "v1_dpo_demo.jsonl")
    assert (name, len(pairs), rejected) == ("sharegpt", 10, [])
    name, pairs, rejected = read(traces.parent / "repro" / "ux" / "alpaca_farm_pref.jsonl")
    assert (name, len(pairs), rejected) == ("alpaca-eval", 3, [])

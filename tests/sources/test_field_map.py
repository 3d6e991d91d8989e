"""`--map`: paths, lists, joined texts, expressions, and what a wrong path says."""

import json

import pytest

from pairwright.errors import ConfigError
from pairwright.sources.field_map import NO_MAP, parse_map, remove_paths
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect, read_file

ROW = {
    "request": {"body": {"text": "Port?", "temperature": 0.5}, "who": {"system": "Be brief."}},
    "result": {"text": "Left", "ms": 3},
    "eval": {"judge": {"score": 0.9}, "style": 0.5},
    "samples": [{"text": "Left", "votes": 3}, {"text": "Right", "votes": 1}],
    "a.b": "dotted",
    "case": {"id": 7},
}


def read(value, fields, path):
    path.write_text(json.dumps(value))
    options = Options(map=parse_map(fields))
    layout = detect(path, options=options)
    return [layout] if isinstance(layout, Rejected) else list(read_file(path, layout, options))


def test_nested_fields_are_named_by_their_paths(tmp_path):
    fields = "prompt=request.body.text, completion=result.text, reward=0.5*eval.judge.score + eval.style, task=case.id, system=request.who.system"
    (exp,) = read([ROW], fields, tmp_path / "own.json")
    assert [(message.role, message.text) for message in exp.prompt] == [("system", "Be brief."), ("user", "Port?")]
    assert exp.completion[0].text == "Left"
    assert exp.reward == pytest.approx(0.95)
    assert exp.eid.task == 7
    # Unmapped fields are kept, and mapped fields are not repeated.
    assert exp.info["result"] == {"ms": 3}
    assert exp.info["request"] == {"body": {"temperature": 0.5}}
    assert "case" not in exp.info


def test_a_list_gives_several_candidates(tmp_path):
    fields = "prompt=request.body.text,completion=samples[].text,reward=samples[].votes"
    first, second = read([ROW], fields, tmp_path / "own.json")
    assert [(exp.completion[0].text, exp.reward) for exp in (first, second)] == [("Left", 3.0), ("Right", 1.0)]
    assert first.eid.task == second.eid.task
    assert first.eid.run != second.eid.run


def test_an_item_of_a_list_and_a_key_with_dots_are_found(tmp_path):
    (exp,) = read([ROW], "prompt=a.b,completion=samples[-1].text", tmp_path / "own.json")
    assert (exp.prompt[0].text, exp.completion[0].text) == ("dotted", "Right")


def test_chosen_and_rejected_with_their_rewards(tmp_path):
    fields = "prompt=a.b,chosen=samples[0].text,rejected=samples[1].text,chosen_reward=samples[0].votes,rejected_reward=samples[1].votes"
    (exp,) = read([ROW], fields, tmp_path / "own.json")
    assert (exp.chosen.messages[0].text, exp.rejected.messages[0].text) == ("Left", "Right")
    assert (exp.chosen.reward, exp.rejected.reward) == (3.0, 1.0)


def test_records_inside_a_document_are_found(tmp_path):
    document = {"version": 2, "data": {"rows": [{"q": "Port?", "r": "Left"}, {"q": "Starboard?", "r": "Right"}]}}
    records = read(document, "records=data.rows,prompt=q,completion=r", tmp_path / "own.json")
    assert [exp.completion[0].text for exp in records] == ["Left", "Right"]


def test_joined_texts_have_a_blank_line_between_them():
    assert parse_map("prompt=a.b+result.text").value(ROW, "prompt") == "dotted\n\nLeft"


def test_a_path_that_leads_nowhere_names_the_keys_that_are_there(tmp_path):
    (rejected,) = read([ROW], "prompt=request.body.txt,completion=result.text", tmp_path / "own.json")
    assert "no 'txt' in request.body, which has text, temperature" in rejected.reason


def test_an_optional_field_that_no_record_has_is_refused(tmp_path):
    (rejected,) = read([ROW], "prompt=a.b,completion=result.text,reward=eval.judge.scroe", tmp_path / "own.json")
    assert "no 'scroe' in eval.judge, which has score" in rejected.reason


def test_a_record_without_an_optional_field_is_read(tmp_path):
    records = read(
        [ROW, {**ROW, "eval": {}}], "prompt=a.b,completion=result.text,reward=eval.judge.score", tmp_path / "own.json"
    )
    assert [exp.reward for exp in records] == [0.9, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("answer=x", "a target among prompt, system"),
        ("prompt=", "expected the path of a field"),
        ("prompt=a,prompt=b", "named twice"),
        ("chosen=a", "belong together"),
        ("chosen=a,rejected=b,completion=c", "not both"),
        ("reward=__import__('os')", "only numbers, names"),
        ("prompt=a|b", "lists candidates"),
        ("prompt=a[b]", "expected names with dots"),
    ],
)
def test_a_map_is_checked_when_it_is_parsed(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_map(text)


def test_a_map_as_a_mapping_is_the_map_as_text():
    assert parse_map({"prompt": "a.b", "reward": "x - y"}) == parse_map("prompt=a.b,reward=x - y")
    assert parse_map(None) is NO_MAP
    assert parse_map(parse_map("prompt=a.b").text) == parse_map("prompt=a.b")


def test_removing_paths_leaves_what_stands_beside_them():
    rest = remove_paths(ROW, parse_map("prompt=a.b,completion=samples[].text,reward=eval.style").paths())
    assert rest["samples"] == [{"votes": 3}, {"votes": 1}]
    assert rest["eval"] == {"judge": {"score": 0.9}}
    assert "a.b" not in rest
    assert ROW["samples"][0]["text"] == "Left"


def test_a_list_that_is_none_says_so():
    with pytest.raises(BadRecord, match="result is an object, not a list"):
        parse_map("completion=result[].text").value(ROW, "completion")
    assert parse_map("completion=samples[].text").missing_field([ROW]) is None

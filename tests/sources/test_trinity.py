"""Trinity's JSONL."""

import json
from pathlib import Path

import pytest

from pairwright.errors import PairwrightError
from pairwright.records.experience import EID, Kind
from pairwright.records.messages import Message, ToolCall
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin
from pairwright.sources.rollouts.trinity import FORMAT

FIXTURE = Path(__file__).parent / "fixtures" / "trinity.jsonl"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "trinity"


def read_file(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(map(FORMAT.matches, rows))
    return [
        experience
        for ordinal, row in enumerate(rows)
        for experience in FORMAT.read(row, Origin(str(path), ordinal + 1, ordinal), Options())
    ]


def test_a_conversation_held_as_json_text_is_read_whole():
    first = read_file(FIXTURE)[0]
    assert first.prompt == (Message("system", "You know tides."), Message("user", "High tide?"))
    assert first.completion == (
        Message("assistant", "Looking.", tool_calls=(ToolCall("tide", '{"port":"Emden"}', "t1"),)),
        Message("tool", '{"hour":7}', tool_call_id="t1"),
        Message("assistant", "At seven."),
    )
    assert first.tools == ({"type": "function", "function": {"name": "tide"}},)
    assert (first.kind, first.reward, first.eid.run) == (Kind.MULTI_TURN, None, 0)


def test_unjudged_answers_are_unscored_runs_of_one_task():
    one, other = read_file(FIXTURE)[1:3]
    assert one.prompt == other.prompt == (Message("user", "Name a port."),)
    assert (one.completion[0].content, other.completion[0].content) == ("Emden", "Bern")
    assert one.eid.tid == other.eid.tid
    assert (one.eid.run, other.eid.run, one.reward, other.reward) == (0, 1, None, None)


def test_an_experience_written_as_a_dict_keeps_its_identity():
    last = read_file(FIXTURE)[3]
    assert last.eid == EID(batch=3, task="a/b", run=1, step=2, suffix="f00")
    assert (last.kind, last.reward, last.info, last.metrics) == (Kind.PREFERENCE, 1.0, {"k": 1}, {"m": 0.5})
    assert last.prompt == (Message("user", "Hi"),)
    assert last.chosen.messages == (Message("assistant", "Hello"),)
    assert last.rejected.messages == (Message("assistant", "What"),)
    assert (last.source.line, last.source.format) == (3, "trinity")


def test_a_preference_of_which_only_tokens_existed_is_refused():
    with pytest.raises(BadRecord, match="only tokens"):
        list(FORMAT.read({"eid": {}, "type": "dpo"}, Origin("f"), Options()))


JUNK = [None, True, 3, "x", "[{", "\ud800", [], [None], {}, {"a": "\ud800"}, 10**400]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_no_value_anywhere_makes_another_exception_escape(junk):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    keys = ("eid", "type", "messages", "tools", "info", "metrics", "reward", "custom_fields", "truncate_status",
            "chosen_messages", "rejected_messages", "prompt", "answer1", "prompt_text")  # fmt: skip
    values = [junk]
    for key in keys:
        values.append({"eid": {"run": 1}, "type": "multi_turn", "messages": chat, key: junk})
        values.append({"eid": {}, "type": "dpo", "chosen_messages": chat, "rejected_messages": chat, key: junk})
        values.append({"messages": json.dumps(chat), key: junk})
        values.append({"prompt": "a", "answer1": "b", key: junk})
        values.append({"eid": {"run": junk, "suffix": junk, "task": junk}, "type": "single_turn"})
    for value in values:
        FORMAT.matches(value)
        try:
            list(FORMAT.read(value, Origin("f.jsonl", 1, 0), Options()))
        except PairwrightError:
            continue


@pytest.mark.parametrize("name, experiences, messages, calls", [("demo-data", 20, 40, 0), ("sft_with_tools", 4, 26, 7)])
def test_real_files_are_read_completely(name, experiences, messages, calls):
    if not SAMPLES.is_dir():
        pytest.skip("the sample traces are not on this machine")
    read = read_file(SAMPLES / f"{name}.jsonl")
    assert len(read) == experiences
    assert sum(len(experience.messages) for experience in read) == messages
    assert sum(len(message.tool_calls) for experience in read for message in experience.messages) == calls

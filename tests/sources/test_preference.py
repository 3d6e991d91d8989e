"""The other preference formats: NeMo RL, NeMo Customizer, OpenAI; and junk in all of them."""

import json
from pathlib import Path

import pytest

from pairwright.errors import PairwrightError
from pairwright.records.experience import Kind
from pairwright.records.messages import Message, ToolCall
from pairwright.sources import READERS
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin
from pairwright.sources.reading import detect, read_file

FIXTURES = Path(__file__).parent / "fixtures"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
NAMES = ("trl-preference", "nemo-rl-preference", "customizer", "openai-preference", "sharegpt", "ultrafeedback")
FORMATS = [READERS[name][0] for name in NAMES]


def rows_of(name):
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text().splitlines()]


def read_all(name, rows):
    (form,) = READERS[name]
    assert all(map(form.matches, rows))
    return [
        experience
        for ordinal, row in enumerate(rows)
        for experience in form.read(row, Origin("f.jsonl", ordinal + 1, ordinal), Options())
    ]


def test_the_lower_rank_of_two_is_chosen():
    first = read_all("nemo-rl-preference", rows_of("nemo_rl_preference"))[0]
    assert (first.kind, first.prompt) == (Kind.PREFERENCE, (Message("user", "Port?"),))
    assert first.chosen.messages == (Message("assistant", "Left"),)
    assert first.rejected.messages == (Message("assistant", "Red"),)
    assert (first.chosen.reward, first.rejected.reward) == (0.9, 0.2)
    assert first.info == {"task_name": "sea"}


def test_more_than_two_ranks_are_experiences_of_one_task_with_the_rank_as_reward():
    three = read_all("nemo-rl-preference", rows_of("nemo_rl_preference"))[1:4]
    assert [(e.completion[0].content, e.reward, e.eid.run) for e in three] == [
        ("A bowline", 0.0, 0),
        ("A hitch", -1.0, 1),
        ("A bow", -2.0, 2),
    ]
    assert len({experience.eid.tid for experience in three}) == 1


def test_two_of_one_rank_are_no_preference():
    tied = read_all("nemo-rl-preference", rows_of("nemo_rl_preference"))[4:]
    assert [(experience.kind, experience.reward) for experience in tied] == [(Kind.SINGLE_TURN, -1.0)] * 2


def test_a_completion_without_a_rank_is_refused():
    row = {"context": "a", "completions": [{"rank": None, "completion": "b"}]}
    with pytest.raises(BadRecord, match="rank: expected a number"):
        list(READERS["nemo-rl-preference"][0].read(row, Origin("f"), Options()))


def test_binary_preferences_of_nemo_rl_are_read_when_asked_for():
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    assert not READERS["nemo-rl-preference"][0].matches(row)  # detected as TRL's, which has the same keys
    (experience,) = READERS["nemo-rl-preference"][0].read(row, Origin("f"), Options())
    assert experience.chosen.messages == (Message("assistant", "b"),)


def test_customizer_rows_are_read_whole():
    text, messages = read_all("customizer", rows_of("customizer"))
    assert (text.prompt, text.chosen.messages) == ((Message("user", "Port?"),), (Message("assistant", "Left"),))
    assert (text.rejected.messages, text.rejected.reward) == ((Message("assistant", "Red"),), 1.0)
    assert (text.chosen.reward, text.kind) == (2.0, Kind.PREFERENCE)
    assert messages.prompt == (Message("system", "Sail."), Message("user", "Port?"))
    assert messages.rejected.messages == (Message("assistant", "Red"),)
    assert messages.info == {"topic": "sea"}


def test_demonstrations_of_customizer_are_named_so_and_have_reward_one():
    form = READERS["customizer-sft"][0]
    chat_row = {"messages": [{"role": "user", "content": "Bow?"}, {"role": "assistant", "content": "Front"}]}
    rows = [*rows_of("customizer_sft"), chat_row]
    assert not any(form.matches(row) for row in rows)  # nothing in a row says that it is a demonstration
    assert all(form.matches_named(row) for row in rows)
    text, messages, chat = (next(form.read(row, Origin("f.jsonl", 1, 0), Options())) for row in rows)
    assert (text.prompt, text.completion) == ((Message("user", "Port?"),), (Message("assistant", "Left"),))
    assert (text.reward, text.kind, text.info) == (1.0, Kind.SINGLE_TURN, {"topic": "sea"})
    assert ([message.role for message in messages.prompt], messages.eid.task) == (["system", "user"], "sides")
    assert (chat.prompt, chat.completion) == ((Message("user", "Bow?"),), (Message("assistant", "Front"),))


def test_a_named_customizer_format_says_what_each_row_lacks(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "Port?"}\n{"answer": "Left"}\n')
    for name, keys in (("customizer", "prompt, chosen_response and"), ("customizer-sft", "prompt and completion, or")):
        found = list(read_file(tmp_path / "rows.jsonl", detect(tmp_path / "rows.jsonl", name), Options()))
        assert [(rejected.line, f"expected the keys {keys}" in rejected.reason) for rejected in found] == [
            (1, True),
            (2, True),
        ]


def test_openai_preferences_keep_the_history_and_the_calls():
    (experience,) = read_all("openai-preference", rows_of("openai_preference"))
    assert [message.content for message in experience.prompt] == ["Hi", "Hello", "Tide?"]
    assert experience.chosen.messages == (
        Message("assistant", tool_calls=(ToolCall("tide", '{"day": 1}', "t"),)),
    )  # fmt: skip
    assert experience.rejected.messages == (Message("assistant", "No idea"),)
    assert experience.tools == ({"type": "function", "function": {"name": "tide"}},)
    assert experience.info == {"author": "x", "parallel_tool_calls": True}


@pytest.mark.parametrize(
    "name, path, count, prompt",
    [
        ("nemo-rl-preference", "nemo_preference/test_preference_dataset.jsonl", 1, 1),
        ("openai-preference", "openai_preference/DPO_Intel_Orca__validation.jsonl", 100, 200),
    ],
)
def test_real_files_are_read_completely(name, path, count, prompt):
    if not (SAMPLES / path).is_file():
        pytest.skip("the sample traces are not on this machine")
    read = read_all(name, [json.loads(line) for line in (SAMPLES / path).read_text().splitlines()])
    assert len(read) == count
    assert sum(len(experience.prompt) for experience in read) == prompt
    assert all(len(e.chosen.messages) == len(e.rejected.messages) == 1 for e in read)


JUNK = [None, True, 3, float("nan"), "x", "", "\ud800", [], [None], [[]], {}, {"a": "\ud800"}, {"role": 1}, [{"role": "user"}],
        [{"role": "assistant", "content": "\ud800"}], 10**400]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_no_value_anywhere_makes_another_exception_escape(format, junk):
    known = rows_of(format.name.replace("-", "_"))
    values = [junk, *({**row, key: junk} for row in known for key in (*row, "tools", "system", "id", "other"))]
    for row in known:
        for key in row:
            if isinstance(row[key], list):
                values.append({**row, key: [junk]})
                values += (
                    [{**row, key: [{**row[key][0], inner: junk}]} for inner in row[key][0] if inner]
                    if isinstance(row[key][0], dict)
                    else []
                )
            elif isinstance(row[key], dict):
                values += [{**row, key: {**row[key], inner: junk}} for inner in row[key]]
    for value in values:
        format.matches(value)
        try:
            list(format.read(value, Origin("f.jsonl", 1, 0), Options(reward="helpfulness")))
        except PairwrightError:
            continue


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_format_claims_its_own_files_and_no_other(format):
    for other in FORMATS:
        claimed = [format.matches(row) for row in rows_of(other.name.replace("-", "_"))]
        assert all(claimed) if other is format else not any(claimed)


def test_the_name_of_a_dataset_of_nemo_rl_is_no_task():
    rows = [row | {"task_name": "sea"} for row in rows_of("nemo_rl_preference")]
    assert "sea" not in {experience.eid.task for experience in read_all("nemo-rl-preference", rows)}

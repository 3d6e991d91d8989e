"""TRL preference data: explicit, implicit, unpaired, stepwise."""

import json
from pathlib import Path

import pytest

from pairwright.records.experience import Kind
from pairwright.records.messages import Message, ToolCall
from pairwright.sources.datasets.trl_preference import FORMAT
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin
from pairwright.sources.reading import detect, read_file

FIXTURE = Path(__file__).parent / "fixtures" / "trl_preference.jsonl"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "trl_preference"


def read_all(rows):
    return [
        experience
        for ordinal, row in enumerate(rows)
        for experience in FORMAT.read(row, Origin("f.jsonl", ordinal + 1, ordinal), Options())
    ]


@pytest.fixture(scope="module")
def experiences():
    rows = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
    assert all(map(FORMAT.matches, rows))
    return read_all(rows)


def raw(text):
    return (Message("text", text, generated=True),)


def test_explicit_texts_stay_text_with_their_scores(experiences):
    first = experiences[0]
    assert first.kind is Kind.PREFERENCE
    assert first.prompt == (Message("text", "The sea is"),)
    assert first.chosen.messages == raw(" salty.")
    assert first.rejected.messages == raw(" dry.")
    assert [message.is_generated for message in (*first.prompt, *first.chosen.messages)] == [False, True]
    assert (first.chosen.reward, first.rejected.reward, first.reward) == (0.9, 0.1, None)
    assert first.info == {"margin": 0.8}


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Why?", "chosen": "a", "rejected": "b"},
        {"instruction": "Why?", "chosen": "a", "rejected": "b"},
        {"prompt": "Why?", "system": "Short.", "chosen": "a", "rejected": "b"},
        {"prompt": "Why?", "tools": [{"type": "function", "function": {"name": "f"}}], "chosen": "a", "rejected": "b"},
        {"prompt": [{"role": "user", "content": "Why?"}], "chosen": "a", "rejected": "b"},
        {"prompt": "Why?", "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"},
    ],
)
def test_text_in_a_row_that_only_a_chat_can_be_is_a_turn(row):
    (experience,) = read_all([row])
    assert experience.prompt[-1] == Message("user", "Why?")
    assert (experience.chosen.messages, experience.rejected.messages) == tuple(
        (Message("assistant", answer),) for answer in "ab"
    )


@pytest.mark.parametrize("name", ["nemo-rl-preference", "trinity"])
def test_rows_of_text_are_chats_where_a_format_is_named_that_renders_them_as_one(tmp_path, name):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "The sea is", "chosen": " salty.", "rejected": " dry."}\n')
    assert detect(tmp_path / "rows.jsonl").format == "trl-preference"
    layout = detect(tmp_path / "rows.jsonl", name)
    (experience,) = read_file(tmp_path / "rows.jsonl", layout, Options())
    assert (layout.format, experience.prompt) == (name, (Message("user", "The sea is"),))
    assert experience.chosen.messages == (Message("assistant", " salty."),)


def test_an_unpaired_text_stays_text():
    for tools in ({}, {"tools": None}, {"tools": "[]"}):
        (experience,) = read_all([{"prompt": "The sea is", "completion": " wet.", "label": True, **tools}])
        assert (experience.prompt, experience.completion) == ((Message("text", "The sea is"),), raw(" wet."))
        assert (experience.kind, experience.reward, experience.info) == (Kind.SINGLE_TURN, 1.0, {})


def test_the_prompt_of_whole_conversations_is_what_both_begin_with(experiences):
    second = experiences[1]
    assert [message.content for message in second.prompt] == ["Be kind.", "Hi", "Hello", "Bye"]
    assert second.chosen.messages == (Message("assistant", "Take care"),)
    assert second.rejected.messages == (Message("assistant", "Go"),)
    assert second.eid.task == "p1"


def test_answers_of_several_turns_stay_whole_and_show_their_errors(experiences):
    third = experiences[2]
    assert third.prompt == (Message("user", "Depth?"),)
    assert third.chosen.messages == (
        Message("assistant", tool_calls=(ToolCall("sonar", "{}", "s1"),)),
        Message("tool", "9 m", tool_call_id="s1"),
        Message("assistant", "Nine metres."),
    )
    assert third.chosen.errors == ()
    assert [(site.index, site.kind, site.tool) for site in third.rejected.errors] == [(1, "unknown_tool", "guess")]
    assert third.tools == ({"type": "function", "function": {"name": "sonar"}},)


def test_an_unpaired_row_is_an_experience_with_the_label_as_reward(experiences):
    fourth = experiences[3]
    assert (fourth.kind, fourth.reward) == (Kind.SINGLE_TURN, 0.0)
    assert fourth.completion == (Message("assistant", "No."),)


def test_steps_are_parts_and_their_labels_are_kept_without_an_outcome(experiences):
    fifth = experiences[4]
    parts = [{"type": "text", "text": "First 3*2=6."}, {"type": "text", "text": " Then 2+6=9."}]
    assert fifth.completion == raw(parts)
    assert (fifth.reward, fifth.info) == (None, {"step_labels": [True, False]})


def test_transcripts_are_read_turn_by_turn(experiences):
    sixth = experiences[5]
    assert sixth.prompt == (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Who?"))
    assert sixth.chosen.messages == (Message("assistant", "A bot."),)
    assert sixth.rejected.messages == (Message("assistant", "Nobody."),)


def test_texts_without_a_prompt_share_their_beginning(experiences):
    seventh = experiences[6]
    assert seventh.prompt == (Message("text", "The sky is"),)
    assert seventh.chosen.messages == raw(" blue.")
    assert seventh.rejected.messages == raw(" bleak.")


def test_question_and_system_make_the_prompt(experiences):
    assert experiences[7].prompt == (Message("system", "Short."), Message("user", "Why?"))


def turn(role, content):
    return {"role": role, "content": content}


def test_a_prompt_that_the_conversations_repeat_is_not_doubled():
    chosen, rejected = [[turn("user", "Hi"), turn("assistant", answer)] for answer in ("a", "b")]
    (experience,) = read_all([{"prompt": "Hi", "chosen": chosen, "rejected": rejected}])
    assert experience.prompt == (Message("user", "Hi"),)
    (experience,) = read_all([{"prompt": [turn("system", "S")], "chosen": chosen, "rejected": rejected}])
    assert experience.prompt == (Message("system", "S"), Message("user", "Hi"))


def test_equal_conversations_part_before_their_last_answer():
    both = [turn("user", "Hi"), turn("assistant", "a"), turn("user", "More"), turn("assistant", "b")]
    (experience,) = read_all([{"chosen": both, "rejected": both}])
    assert len(experience.prompt) == 3
    assert experience.chosen.messages == experience.rejected.messages == (Message("assistant", "b"),)


def test_a_conversation_that_goes_on_after_the_other_ends_leaves_neither_answer_empty():
    short = [turn("user", "Hi"), turn("assistant", "a")]
    (experience,) = read_all([{"chosen": [*short, turn("user", "More"), turn("assistant", "b")], "rejected": short}])
    assert experience.prompt == (Message("user", "Hi"),)
    assert [len(side.messages) for side in (experience.chosen, experience.rejected)] == [3, 1]


def test_conversations_that_part_at_a_tool_result_part_at_the_turn_before_it():
    chosen, rejected = [
        [turn("user", "Hi"), turn("assistant", "call"), turn("tool", result), turn("assistant", "done")]
        for result in ("1", "2")
    ]
    (experience,) = read_all([{"chosen": chosen, "rejected": rejected}])
    assert experience.prompt == (Message("user", "Hi"),)
    assert len(experience.chosen.messages) == len(experience.rejected.messages) == 3


@pytest.mark.parametrize(
    "row, reason",
    [
        ({"chosen": [turn("user", "a"), turn("assistant", "b")], "rejected": [turn("user", "c"), turn("assistant", "d")]},
         "no prompt in common"),
        ({"prompt": "a", "chosen": [turn("assistant", "b")], "rejected": [turn("user", "a"), turn("assistant", "d")]},
         "one is an answer"),
        ({"prompt": "a", "chosen": [], "rejected": "b"}, "chosen: no messages"),
        ({"prompt": "a", "completions": ["b"], "labels": []}, "0 for 1 steps"),
        ({"chosen": "abc", "rejected": "xyz"}, "begin differently"),
        ({"chosen": [turn("user", "a")], "rejected": [turn("user", "a")]}, "no assistant message"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(row, reason):
    with pytest.raises(BadRecord, match=reason):
        read_all([row])


@pytest.mark.parametrize(
    "name, kind, messages, unscored",
    [
        ("conversational_implicit_prompt_preference", Kind.PREFERENCE, 57, 19),
        ("conversational_preference", Kind.PREFERENCE, 57, 19),
        ("conversational_unpaired_preference", Kind.SINGLE_TURN, 38, 0),
        ("standard_preference", Kind.PREFERENCE, 57, 19),
        ("standard_stepwise_supervision", Kind.SINGLE_TURN, 38, 19),
    ],
)
def test_real_files_are_read_completely(name, kind, messages, unscored):
    if not SAMPLES.is_dir():
        pytest.skip("the sample traces are not on this machine")
    rows = [json.loads(line) for line in (SAMPLES / f"{name}.jsonl").read_text().splitlines()]
    read = read_all(rows)
    assert len(rows) == len(read) == 19
    assert {experience.kind for experience in read} == {kind}
    sides = [side for experience in read for side in (experience.chosen, experience.rejected) if side is not None]
    assert sum(len(item.messages) for item in [*read, *sides]) == messages
    assert sum(not experience.is_scored for experience in read) == unscored


def test_an_answer_without_a_prompt_is_refused():
    for row in ({"completion": " wet.", "label": True}, {"completions": [" wet."], "labels": [True]}):
        with pytest.raises(BadRecord, match="prompt: expected text, got null"):
            list(FORMAT.read(row, Origin("f"), Options()))

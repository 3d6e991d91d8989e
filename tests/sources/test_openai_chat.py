"""OpenAI chat rows, logs and bare conversations."""

import json
from pathlib import Path

import pytest

from pairwright.errors import PairwrightError
from pairwright.records.experience import Kind
from pairwright.records.messages import Message, ToolCall, weight_of
from pairwright.sources.datasets.openai_chat import FORMAT
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin

DEFAULTS = Options()
FIXTURE = Path(__file__).parent / "fixtures" / "openai_chat.jsonl"
SAMPLE = (
    Path(__file__).parents[2].parent / "shared/data/traces/openai_chat/datagen-ToolUse-FineTuneSupervised-valid.jsonl"
)


def read_all(rows, options=DEFAULTS):
    origins = [Origin("chat.jsonl", ordinal + 1, ordinal) for ordinal in range(len(rows))]
    return [
        experience
        for row, origin in zip(rows, origins, strict=True)
        for experience in FORMAT.read(row, origin, options)
    ]


def fixture():
    rows = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
    assert all(map(FORMAT.matches, rows))
    return read_all(rows)


def row(**changes):
    return {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}], **changes}


def test_a_row_is_read_whole():
    first = fixture()[0]
    assert first.prompt == (
        Message("system", "You rent bikes."),
        Message("assistant", "Hello, I rent bikes.", generated=False, extra={"weight": 0}),
        Message(
            "user",
            [{"type": "text", "text": "Which "}, {"type": "image_url", "image_url": {"url": "https://example.org/bike.png"}}],
        ),
    )  # fmt: skip
    assert first.completion == (
        Message(
            "assistant", reasoning="Search.",
            tool_calls=(ToolCall("search", '{"q":  "bike"}', "c1"), ToolCall("fly", "{}", "c2")),
        ),
        Message("tool", "Error: no such file or directory", tool_call_id="c1"),
        Message("assistant", "None left."),
    )  # fmt: skip
    assert (first.eid.task, first.eid.run, first.reward, first.kind) == ("bike/1", 4, 0.75, Kind.MULTI_TURN)
    assert first.info == {"parallel_tool_calls": False, "trial": 4, "lang": "en"}
    assert [(site.index, site.kind, site.tool) for site in first.errors] == [
        (3, "unknown_tool", "fly"),
        (4, "file_not_found", "search"),
    ]
    assert [tool["function"]["name"] for tool in first.tools] == ["search"]


def test_each_choice_of_a_log_is_an_experience_of_one_task():
    call, text = fixture()[1:3]
    assert call.prompt == text.prompt == (Message("user", "Add 1 and 2"),)
    assert call.completion == (Message("assistant", tool_calls=(ToolCall("add", '{"a":1,"b":2}'),)),)
    assert text.completion == (Message("assistant", "It is th"),)
    assert (call.truncate_status, text.truncate_status) == (None, "response_truncated")
    assert call.eid.tid == text.eid.tid
    assert call.eid.rid != text.eid.rid
    assert call.tools == ({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},)
    assert (call.info["id"], call.reward, call.model_version) == ("log-9", 3.0, "m-1")


def test_a_bare_list_of_messages_is_one_experience():
    last = fixture()[3]
    assert (last.prompt, last.completion) == ((Message("user", "Hi"),), (Message("assistant", "Hello"),))
    assert (last.reward, last.eid.run, last.kind) == (None, 2, Kind.SINGLE_TURN)


def test_messages_beside_a_response_are_its_request():
    (experience,) = read_all([row(response={"choices": [{"message": {"content": "Bye"}}]})])
    assert [message.content for message in experience.prompt] == ["Hi", "Yo"]
    assert experience.completion == (Message("assistant", "Bye"),)


def test_the_id_of_an_api_response_names_no_task():
    one, other = read_all([row(id="chatcmpl-1"), row(id="chatcmpl-2")])
    assert one.eid.task == other.eid.task


@pytest.mark.parametrize(
    "changes, name, expected",
    [
        ({"reward": 1, "score": 2}, None, 1.0),
        ({"reward": None, "rating": True}, None, 1.0),
        ({"score": {"score": 4, "style": 2}}, None, 4.0),
        ({"score": {"score": 4, "style": 2}}, "style", 2.0),
        ({"reward": 1, "helpful": 0.5}, "helpful", 0.5),
        ({"score": "good"}, None, 1.0),
        ({"score": "so so"}, None, None),
        ({"label": 3}, None, None),
        ({}, None, None),
    ],
)
def test_rewards_of_every_shape(changes, name, expected):
    assert read_all([row(**changes)], Options(reward=name))[0].reward == expected


def test_a_score_that_is_no_number_stays_in_info():
    assert read_all([row(score="so so")])[0].info == {"score": "so so"}


def test_a_conversation_without_an_answer_is_refused():
    with pytest.raises(BadRecord, match="no completion"):
        read_all([{"messages": [{"role": "user", "content": "Hi"}]}])


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        row(chosen="x", rejected="y"),
        row(trajectory_format="mini"),
        {"messages": "[]"},
        {"messages": [{"role": "user", "content": [{"type": "text", "value": "LLaMA-Factory"}]}]},
        [{"type": "message", "role": "user"}],
        [],
        {},
    ],
)
def test_files_of_other_formats_are_not_claimed(other):
    assert not FORMAT.matches(other)


JUNK = [None, True, 3, 2.5, "x", "\ud800", [], [None], {}, {"a": "\ud800"}, [{"role": 1}], 10**400, [[{}]]]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_no_value_anywhere_makes_another_exception_escape(junk):
    keys = (
        "messages",
        "tools",
        "functions",
        "reward",
        "reward_components",
        "id",
        "trial",
        "request",
        "response",
        "other",
    )
    rows = [junk, *(row(**{key: junk}) for key in keys), {"request": row(), "response": junk}]
    rows += [{"request": row(), "response": {"choices": value}} for value in (junk, [junk], [{"message": junk}])]
    rows += [
        {"messages": [{"role": "assistant", "content": "x", key: junk}]}
        for key in ("role", "content", "tool_calls", "weight")
    ]
    for value in rows:
        FORMAT.matches(value)
        try:
            read_all([value])
        except PairwrightError:
            continue


def test_the_real_rows_are_read_completely():
    if not SAMPLE.is_file():
        pytest.skip("the sample traces are not on this machine")
    rows = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    experiences = read_all(rows)
    assert (len(rows), len(experiences)) == (55, 55)
    assert sum(len(experience.messages) for experience in experiences) == sum(len(r["messages"]) for r in rows) == 926
    assert sum(len(message.tool_calls) for experience in experiences for message in experience.messages) == 223
    assert all(len(experience.prompt) == 2 for experience in experiences)


def test_the_text_of_a_message_without_content_is_its_content():
    talk = [{"role": "user", "text": "Hi", "id": 1}, {"role": "assistant", "text": "Yo", "content": None}]
    (experience,) = read_all([{"messages": talk}])
    assert experience.messages == (Message("user", "Hi", extra={"id": 1}), Message("assistant", "Yo"))


@pytest.mark.parametrize("name", ["parts", "value", "body", "message", "output"])
def test_content_under_another_name_is_refused_and_not_lost(name):
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", name: ["Yo"]}]
    with pytest.raises(BadRecord, match=rf"messages\[1\]: no content, and '{name}' is not read"):
        read_all([{"messages": talk}])


def test_messages_of_parts_are_not_claimed():
    talk = [{"role": "user", "parts": [{"text": "Hi"}]}, {"role": "assistant", "parts": [{"text": "Yo"}]}]
    assert not FORMAT.matches({"messages": talk})
    assert not FORMAT.matches(talk)


def test_a_weight_between_context_and_trained_stays_with_its_message():
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo", "weight": 0.5}]
    (record,) = read_all([row(messages=messages)])
    assert record.completion[0].is_generated
    assert weight_of(record.completion[0]) == 0.5


def test_a_negative_weight_is_a_bad_record():
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo", "weight": -1}]
    with pytest.raises(BadRecord, match=r"weight: got .*, expected 0 \(context\), 1 \(trained\), or a positive weight"):
        read_all([row(messages=messages)])


def turns(*messages):
    (experience,) = read_all([row(messages=[{"role": "user", "content": "Hi"}, *messages])])
    return experience.completion


def part(arguments, call_id="c1"):
    return {"type": "tool_call", "tool_call_id": call_id, "name": "look", "arguments": arguments}


def listed(arguments):
    return [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}]


def test_a_call_that_is_a_part_and_listed_is_one_call_and_the_text_of_its_result_is_text():
    call = ToolCall("look", '{"at": "sea"}', "c1")
    answer = {"role": "assistant", "content": [part('{"at": "sea"}')], "tool_calls": listed('{"at": "sea"}')}
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "tool_output", "text": "grey"}]}
    assert turns(answer, result) == (
        Message("assistant", None, tool_calls=(call,)),
        Message("tool", [{"type": "text", "text": "grey"}], tool_call_id="c1"),
    )


def test_calls_that_are_only_parts_are_calls_and_equal_ones_stay_two():
    text = {"type": "text", "text": "Both."}
    (turn,) = turns({"role": "assistant", "content": [text, part({"at": 1}, None), part({"at": 1}, None)]})
    assert turn == Message("assistant", [text], tool_calls=(ToolCall("look", '{"at":1}'),) * 2)


def test_a_call_that_is_listed_with_other_arguments_is_a_bad_record():
    with pytest.raises(BadRecord, match="other arguments"):
        turns({"role": "assistant", "content": [part('{"at": "sky"}')], "tool_calls": listed('{"at": "sea"}')})


def named(*turns):
    return [{"role": role, "name": name, "content": text} for role, name, text in turns]


@pytest.mark.parametrize(
    "messages",
    [
        named(
            ("assistant", "math_proxy", "How much is 6 * 7?"), ("user", "solver", "42"), ("assistant", "math_proxy", "")
        ),
        named(("assistant", "judge", "How much is 6 * 7?"), ("user", "chat_manager", "42")),
        named(("assistant", "judge", "How much is 6 * 7?"), ("user", "assistant", "42")),
    ],
)
def test_a_history_of_autogen_from_the_side_that_asked_is_refused(messages):
    with pytest.raises(BadRecord, match="side of"):
        read_all([row(messages=messages)])


def test_a_named_assistant_may_greet_and_answer():
    greeting = named(("assistant", "Ada", "Hello!"), ("user", "Bo", "Hi"), ("assistant", "Ada", "What is it?"))
    assert len(read_all([row(messages=greeting)])[0].completion) == 3
    answer = named(("user", "user_proxy", "6 * 7?"), ("assistant", "assistant", "42"))
    assert len(read_all([row(messages=answer)])[0].completion) == 1

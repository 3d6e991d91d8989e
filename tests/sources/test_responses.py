"""Responses-API items become messages: nothing lost, nothing reordered."""

import pytest

from pairwright.records.messages import Message, ToolCall
from pairwright.sources.fields import BadRecord
from pairwright.sources.shapes.responses import messages_from_items

REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look it up."}]}
TEXT = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "One moment.", "annotations": [], "logprobs": None}],
}  # fmt: skip
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'}
SECOND_CALL = {"type": "function_call", "call_id": "c2", "name": "find", "arguments": '{"q": 2}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "found"}


def test_reasoning_text_and_calls_of_one_turn_are_one_message():
    messages = messages_from_items([REASONING, TEXT, CALL, SECOND_CALL, OUTPUT], "output")
    assert messages == [
        Message(
            "assistant", "One moment.", reasoning="Look it up.",
            tool_calls=(ToolCall("find", '{"q": 1}', "c1"), ToolCall("find", '{"q": 2}', "c2")),
        ),
        Message("tool", "found", tool_call_id="c1"),
    ]  # fmt: skip


def test_an_output_or_a_user_message_ends_the_turn():
    user = {"role": "user", "content": "and?"}
    messages = messages_from_items([CALL, OUTPUT, SECOND_CALL, user, TEXT], "output")
    assert [message.role for message in messages] == ["assistant", "tool", "assistant", "user", "assistant"]


def test_text_after_a_call_begins_the_next_message_since_a_message_cannot_hold_that_order():
    messages = messages_from_items([TEXT, CALL, TEXT, SECOND_CALL], "output")
    assert [(message.content, message.tool_calls[0].id) for message in messages] == [
        ("One moment.", "c1"),
        ("One moment.", "c2"),
    ]


def test_reasoning_at_the_end_is_kept():
    assert messages_from_items([OUTPUT, REASONING], "output")[1] == Message("assistant", reasoning="Look it up.")


def test_full_reasoning_is_preferred_to_its_summary_and_encrypted_reasoning_leaves_a_mark():
    item = {**REASONING, "content": [{"type": "reasoning_text", "text": "a"}, {"text": "b"}], "encrypted_content": "x"}
    assert messages_from_items([item, TEXT], "output") == [
        Message(
            "assistant", "One moment.", reasoning="a\nb",
            extra={"reasoning_summary": "Look it up.", "encrypted_reasoning": True},
        )
    ]  # fmt: skip


def test_reasoning_items_that_follow_one_another_are_joined():
    assert messages_from_items([REASONING, REASONING, TEXT], "output")[0].reasoning == "Look it up.\nLook it up."


def test_several_parts_stay_parts_and_one_text_part_is_text():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}
    given = [{"role": "user", "content": [{"type": "input_text", "text": "See"}, image]}]
    assert messages_from_items(given, "input") == [Message("user", [{"type": "input_text", "text": "See"}, image])]
    given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See"}]}]
    assert messages_from_items(given, "input") == [Message("user", "See")]


def test_annotations_are_kept_where_there_are_any():
    part = {"type": "output_text", "text": "See [1].", "annotations": [{"type": "url_citation", "url": "u"}]}
    messages = messages_from_items([{**TEXT, "content": [part]}], "output")
    assert messages == [Message("assistant", [part])]


def test_a_refusal_is_text_with_a_mark():
    messages = messages_from_items([{**TEXT, "content": [{"type": "refusal", "refusal": "No."}]}], "output")
    assert messages == [Message("assistant", "No.", extra={"refusal": True})]


@pytest.mark.parametrize(
    "output, content",
    [
        ("text", "text"),
        (None, None),
        ({"rows": [1]}, '{"rows":[1]}'),
        ([1, "a"], '[1,"a"]'),
        (5, "5"),
        ([{"type": "input_text", "text": "a"}], "a"),
        ([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}],
         [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]),
    ],
)  # fmt: skip
def test_the_output_of_a_call_is_text_parts_or_json_text(output, content):
    messages = messages_from_items([{"type": "function_call_output", "call_id": "c", "output": output}], "output")
    assert messages == [Message("tool", content, tool_call_id="c")]


def test_nested_lists_are_flattened_and_deeper_ones_refused():
    assert messages_from_items([[CALL], [OUTPUT]], "output") == messages_from_items([CALL, OUTPUT], "output")
    with pytest.raises(BadRecord, match=r"output\[0\]: expected an object, got a list"):
        messages_from_items([[[CALL]]], "output")


def test_chat_messages_among_the_items_keep_their_calls():
    chat_call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    given = [
        {"role": "assistant", "content": None, "tool_calls": [chat_call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"type": "message", "id": "m", "status": "completed", "role": "assistant", "tool_calls": [chat_call]},
    ]
    messages = messages_from_items(given, "input")
    assert messages[0] == Message("assistant", tool_calls=(ToolCall("find", "{}", "c1"),))
    assert messages[1] == Message("tool", "found", tool_call_id="c1")
    assert messages[2].tool_calls == (ToolCall("find", "{}", "c1"),)


def test_custom_and_shell_calls_are_calls():
    given = [
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"},
        {"type": "local_shell_call", "call_id": "b", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "b", "output": "x.py"},
    ]
    assert messages_from_items(given, "items") == [
        Message("assistant", tool_calls=(ToolCall("apply_patch", "*** Begin", "a", "custom"),)),
        Message("tool", "ok", tool_call_id="a"),
        Message(
            "assistant", tool_calls=(ToolCall("local_shell", '{"type":"exec","command":["ls"]}', "b", "local_shell"),)
        ),
        Message("tool", "x.py", tool_call_id="b"),
    ]  # fmt: skip


def test_an_unknown_item_is_kept_whole_and_not_generated():
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}}
    assert messages_from_items([REASONING, item, TEXT], "output")[1] == Message(
        "assistant", generated=False, extra={"item": item}
    )


def test_other_keys_of_a_message_go_to_extra_but_not_token_ids():
    item = {**TEXT, "phase": "commentary", "status": "incomplete", "prompt_token_ids": [1], "generation_token_ids": [2]}
    assert messages_from_items([item], "output")[0].extra == {"phase": "commentary", "status": "incomplete"}


def test_arguments_that_are_an_object_become_json_text_and_a_missing_call_id_falls_back_to_the_id():
    call = {"type": "function_call", "id": "fc_1", "name": "find", "arguments": {"q": 1}}
    assert messages_from_items([call], "output")[0].tool_calls == (ToolCall("find", '{"q":1}', "fc_1"),)


@pytest.mark.parametrize(
    "item",
    [None, 1, "text", {}, {"type": 3}, {"type": "function_call"}, {"type": "message"}, {"role": 1, "content": "x"},
     {"role": "user", "content": 1}, {"role": "user", "content": [1]}, {"type": "reasoning", "summary": 3},
     {"type": "reasoning", "content": [3]}, {"type": "reasoning", "content": [{"text": 3}]}],
)  # fmt: skip
def test_items_of_the_wrong_shape_are_refused(item):
    with pytest.raises(BadRecord):
        messages_from_items([item], "output")

"""Messages as chat messages: one shape, and the few things in which its users differ."""

import pytest

from pairwright.records.messages import Message, ToolCall, arguments_object, to_chat_message, to_template_chat
from pairwright.records.tool_texts import to_chat_tool

CALL = ToolCall("clock", '{"zone": "CET"}')


def test_a_message_has_only_the_keys_that_it_has_values_for():
    assert to_chat_message(Message("user", "hi", extra={"x": 1})) == {"role": "user", "content": "hi"}
    result = Message("tool", "12:00", tool_call_id="1", name="clock")
    assert to_chat_message(result) == {"role": "tool", "content": "12:00", "tool_call_id": "1", "name": "clock"}


def test_recorded_arguments_stay_text_unless_they_are_decoded():
    message = Message("assistant", None, "why", (CALL,))
    function = {"name": "clock", "arguments": '{"zone": "CET"}'}
    call = {"type": "function", "function": function}
    assert to_chat_message(message) == {
        "role": "assistant", "content": None, "reasoning_content": "why", "tool_calls": [call],
    }  # fmt: skip
    decoded = to_chat_message(message, arguments=arguments_object, reasoning_key="thinking", missing_id="")
    assert decoded["tool_calls"] == [
        {"id": "", "type": "function", "function": function | {"arguments": {"zone": "CET"}}}
    ]
    assert decoded["thinking"] == "why"
    assert "reasoning_content" not in to_chat_message(message, reasoning_key=None)


@pytest.mark.parametrize(
    ("text", "value"), [(" ", {}), ("[1]", "[1]"), ("{broken", "{broken"), ("[" * 10**5, "[" * 10**5)]
)
def test_arguments_other_than_objects_stay_text(text, value):
    assert arguments_object(ToolCall("clock", text)) == value


@pytest.mark.parametrize("empty", [None, ""])
def test_templates_get_empty_content_beside_calls_as_they_take_it(empty):
    messages = [Message("assistant", "" if empty is None else None, tool_calls=(CALL,)), Message("assistant", None)]
    chat = to_template_chat(messages, arguments="object", empty=empty)
    assert [message["content"] for message in chat] == [empty, ""]
    parts = [{"type": "text", "text": "a"}]
    assert to_template_chat([Message("user", parts)], arguments="text", empty=empty)[0]["content"] == parts


@pytest.mark.parametrize("key", ["input_schema", "inputSchema"])
def test_schemas_of_anthropic_and_mcp_reach_a_template_as_parameters(key):
    schema = {"type": "object", "properties": {"zone": {"type": "string"}}}
    tool = {"type": "custom", "name": "clock", "description": "Tells the time.", key: schema}
    function = {"name": "clock", "description": "Tells the time.", "parameters": schema}
    assert to_chat_tool(tool) == {"type": "function", "function": function}

"""One conversation in the shapes of nine programs is the same conversation."""

from typing import Any

import pytest
from msgspec.structs import replace

from pairwright.records.messages import Message, ToolCall
from pairwright.sources.fields import BadRecord
from pairwright.sources.shapes.any_messages import answers, conversation, is_torn

CALL = ToolCall("find", '{"q":1}', "c1")
EXPECTED = [
    Message("user", "Find it"),
    Message("assistant", "Ok", reasoning="Hm.", tool_calls=(CALL,)),
    Message("tool", "found", tool_call_id="c1"),
    Message("user", "Thanks"),
]
CHAT = [
    {"role": "user", "content": "Find it"},
    {"role": "assistant", "content": "Ok", "reasoning_content": "Hm.",
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":1}'}}]},
    {"role": "tool", "content": "found", "tool_call_id": "c1"},
    {"role": "user", "content": "Thanks"},
]  # fmt: skip
PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "Find it"}]},
    {"role": "assistant", "parts": [{"type": "thinking", "content": "Hm."}, {"type": "text", "content": "Ok"},
                                    {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": 1}}]},
    {"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "result": "found"},
                               {"type": "text", "content": "Thanks"}]},
]  # fmt: skip
LANGCHAIN = [
    {"type": "human", "content": "Find it", "id": "1", "example": False},
    {"type": "ai", "content": "Ok", "additional_kwargs": {"reasoning_content": "Hm."},
     "tool_calls": [{"name": "find", "args": {"q": 1}, "id": "c1", "type": "tool_call"}]},
    {"type": "tool", "content": "found", "tool_call_id": "c1", "status": "success"},
    {"lc": 1, "type": "constructor", "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Thanks"}},
]  # fmt: skip
BLOCKS = [
    {"role": "user", "content": "Find it"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Ok"},
                                      {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "found"},
                                 {"type": "text", "text": "Thanks"}]},
]  # fmt: skip
CONTENTS = [
    {"role": "user", "parts": [{"text": "Find it"}]},
    {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "Ok"},
                                {"functionCall": {"id": "c1", "name": "find", "args": {"q": 1}}}]},
    {"role": "user", "parts": [{"functionResponse": {"id": "c1", "response": "found"}}, {"text": "Thanks"}]},
]  # fmt: skip
VERCEL = [
    {"role": "user", "content": [{"type": "text", "text": "Find it"}]},
    {"role": "assistant", "content": [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Ok"},
                                      {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": {"q": 1}}]},
    {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1",
                                  "output": {"type": "text", "value": "found"}}]},
    {"role": "user", "content": "Thanks"},
]  # fmt: skip
UI = [
    {"role": "user", "content": "Find it"},
    {"role": "assistant", "parts": [{"type": "step-start"}, {"type": "reasoning", "text": "Hm."},
                                    {"type": "text", "text": "Ok"},
                                    {"type": "tool-find", "toolCallId": "c1", "state": "output-available",
                                     "input": {"q": 1}, "output": "found"}]},
    {"role": "user", "content": "Thanks"},
]  # fmt: skip
CONVERSE = [
    {"role": "user", "content": [{"text": "Find it"}]},
    {"role": "assistant", "content": [{"reasoningContent": {"reasoningText": {"text": "Hm."}}}, {"text": "Ok"},
                                      {"toolUse": {"toolUseId": "c1", "name": "find", "input": {"q": 1}}}]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "found"}]}},
                                 {"text": "Thanks"}]},
]  # fmt: skip
ITEMS = [
    {"role": "user", "content": "Find it"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Ok"}]},
    {"type": "function_call", "name": "find", "arguments": '{"q":1}', "call_id": "c1"},
    {"type": "function_call_output", "call_id": "c1", "output": "found"},
    {"role": "user", "content": "Thanks"},
]


@pytest.mark.parametrize(
    "shape",
    [CHAT, PARTS, LANGCHAIN, BLOCKS, ITEMS, CONTENTS, VERCEL, UI, CONVERSE],
    ids=["chat", "parts", "langchain", "blocks", "items", "contents", "vercel", "ui", "converse"],
)
def test_every_shape_gives_the_same_messages(shape: list[Any]) -> None:
    assert [_bare(message) for message in conversation(shape, "x", role="user")] == EXPECTED
    assert [_bare(message) for message in conversation({"messages": [shape]}, "x", role="user")] == EXPECTED


def _bare(message: Message) -> Message:
    """Without the name of a tool, which some shapes repeat in its result; a single text part is text."""
    parts = message.content if isinstance(message.content, list) else []
    content = parts[0]["text"] if len(parts) == 1 else message.content
    return replace(message, name=None, content=content)


def test_a_system_prompt_beside_the_messages_comes_first() -> None:
    request = {"system": "Be kind.", "messages": [{"role": "user", "content": "Hi"}]}
    assert conversation(request, "x", role="user") == [Message("system", "Be kind."), Message("user", "Hi")]


@pytest.mark.parametrize(
    ("value", "text"),
    [('{"role": "admin", "can": 1}', '{"role": "admin", "can": 1}'), ('[{"id": 1}]', '[{"id": 1}]'), ("[oh", "[oh"),
     ({"question": "why"}, "why"), ({"prompt": "why", "history": []}, "why"), (3, "3")],
)  # fmt: skip
def test_what_is_no_message_is_text_as_it_came(value: Any, text: str) -> None:
    assert conversation(value, "x", role="assistant") == [Message("assistant", text)]


@pytest.mark.parametrize("value", [{"a": None}, {"id": 1, "usage": {"n": 2}}, [{"id": 1}], {}])
def test_an_object_of_unknown_shape_is_never_turned_into_text(value: Any) -> None:
    with pytest.raises(BadRecord, match="no known shape of messages"):
        conversation(value, "x", role="assistant")


def test_an_object_of_unknown_shape_is_named_by_its_keys() -> None:
    with pytest.raises(BadRecord, match=r"output: an object with the keys k0, .*, k7 and 2 more"):
        conversation({f"k{n}": n for n in range(10)}, "output", role="assistant")


def test_a_failed_result_block_is_marked() -> None:
    block = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "no"}], "is_error": True}
    (message,) = conversation([{"role": "user", "content": [block]}], "x", role="user")
    assert message == Message("tool", "no", tool_call_id="c", extra={"is_error": True})


def test_choices_are_alternatives_and_not_one_conversation() -> None:
    value = {"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}
    assert answers(value, "x") == [[Message("assistant", "a")], [Message("assistant", "b")]]
    with pytest.raises(BadRecord, match="2 alternative answers"):
        conversation(value, "x", role="user")


def test_a_stranger_among_messages_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"x\[1\]: not a message"):
        conversation([{"role": "user", "content": "a"}, {"id": 1}], "x", role="user")


def test_text_that_was_cut_inside_a_list_of_messages_is_told_from_text() -> None:
    assert is_torn('[{"role": "user", "cont')
    assert not is_torn('[{"role": "user"}]')
    assert not is_torn("[1, 2")

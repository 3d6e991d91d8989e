"""Calls in what a model wrote: parsed where the whole of it parses, text otherwise; the same in pieces as at once."""

import json

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairwright.generate.tool_calls import HERMES, LLAMA, MISTRAL, CallStream, format_of, split_calls
from pairwright.records.messages import ToolCall
from serve.served_models import HERMES_TEMPLATE, served, taught_engine

CLOCK = ToolCall("clock", '{"zone": "UTC"}')
HERMES_CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, HERMES_CALL, "", [CLOCK]),
        (HERMES, f"Let me look.\n{HERMES_CALL}\n{HERMES_CALL}", "Let me look.", [CLOCK, CLOCK]),
        (HERMES, '<tool_call>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": "{}"}]</tool_call>', "",
         [ToolCall("a", "{}"), ToolCall("b", "{}")]),
        (HERMES, "no call", "no call", []),
        (HERMES, '<tool_call>{"name": "clock", "arguments": {"zone"', '<tool_call>{"name": "clock", "arguments": {"zone"', []),
        (HERMES, "<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
        (HERMES, '<tool_call>{"name": "x", "arguments": 3}</tool_call>', '<tool_call>{"name": "x", "arguments": 3}</tool_call>', []),
        (HERMES, HERMES_CALL + "<tool_call>{", HERMES_CALL + "<tool_call>{", []),
        (LLAMA, '{"name": "clock", "parameters": {"zone": "UTC"}}', "", [CLOCK]),
        (LLAMA, '{"name": "clock", "parameters": {"zone": "UTC"}}; {"name": "a", "parameters": {}}', "", [CLOCK, ToolCall("a", "{}")]),
        (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
        (LLAMA, 'It is {"name": "clock", "parameters": {}}', 'It is {"name": "clock", "parameters": {}}', []),
        (MISTRAL, '[{"name": "clock", "arguments": {"zone": "UTC"}}]', "", [CLOCK]),
        (MISTRAL, "[1, 2]", "[1, 2]", []),
        (None, HERMES_CALL, HERMES_CALL, []),
    ],
)  # fmt: skip
def test_calls_are_parsed_and_other_text_stays_text(form, text, content, calls):
    assert split_calls(form, text) == (content, calls)


@given(st.data())
def test_pieces_give_what_the_whole_gives(data):
    form = data.draw(st.sampled_from([HERMES, LLAMA, MISTRAL, None]))
    parts = st.sampled_from(
        ["<tool", "_call>", HERMES_CALL, "{", "[", '"x"', " ", "\n", "text", '{"name": "a", "parameters": {}}', "<"]
    )
    text = "".join(data.draw(st.lists(parts, max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    stream, given_out = CallStream(form), ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        given_out += stream.add(text[start:end])
    rest, calls = stream.finish()
    whole_text, whole_calls = split_calls(form, text)
    assert calls == whole_calls
    assert (given_out + rest).strip() == whole_text.strip()
    if not calls:
        assert given_out + rest == text, "nothing the model wrote is dropped"


def test_families_are_detected_by_their_templates():
    assert format_of(HERMES_TEMPLATE) is HERMES
    assert format_of("<tool_call><function=x>") is None
    assert format_of("{{ '[TOOL_CALLS]' }}") is MISTRAL
    assert format_of("{{ '<|python_tag|>' }}") is LLAMA
    assert format_of("{{ messages }}") is None
    assert format_of({"default": "x", "tool_use": "<tool_call>"}) is HERMES
    assert format_of(None) is None


TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def client():
    engine = taught_engine({"time?": f"Wait.{HERMES_CALL}", "hi": "<b>"}, template=HERMES_TEMPLATE, tools=TOOLS)
    with served(engine) as place, openai.OpenAI(base_url=f"{place.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def test_calls_between_special_tokens_are_seen():
    special = ("<tool_call>", "</tool_call>")
    engine = taught_engine({"time?": HERMES_CALL}, template=HERMES_TEMPLATE, tools=TOOLS, special=special)
    with served(engine) as place, openai.OpenAI(base_url=f"{place.url}/v1", api_key="x", max_retries=0) as client:
        (choice,) = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "time?"}], tools=TOOLS, temperature=0, max_tokens=100
        ).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.name == "clock"


def test_a_model_that_calls_a_tool_is_seen_to_call_it(client):
    made = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "time?"}], tools=TOOLS, temperature=0, max_tokens=100
    )
    (choice,) = made.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Wait."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("clock", {"zone": "UTC"})
    assert call.id
    cut = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "time?"}], tools=TOOLS, temperature=0, max_tokens=30
    )
    assert cut.choices[0].finish_reason == "length"
    assert cut.choices[0].message.content.startswith("Wait.<tool_call>")


def test_a_stream_of_a_call_gives_the_text_before_it_and_then_the_call(client):
    content, calls, reason = "", [], None
    for chunk in client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "time?"}],
        tools=TOOLS,
        temperature=0,
        max_tokens=100,
        stream=True,
    ):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        calls += delta.tool_calls or []
        reason = chunk.choices[0].finish_reason or reason
    assert (content, reason) == ("Wait.", "tool_calls")
    assert [(call.index, call.function.name, call.function.arguments) for call in calls] == [
        (0, "clock", '{"zone": "UTC"}')
    ]


def test_text_that_only_begins_like_a_call_arrives_whole(client):
    answers = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        tools=TOOLS,
        temperature=0,
        max_tokens=20,
        stream=True,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in answers) == "<b>"

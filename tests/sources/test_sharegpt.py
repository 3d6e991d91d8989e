"""ShareGPT and LLaMA-Factory data."""

import json
from pathlib import Path

import pytest

from pairwright.records.experience import Kind
from pairwright.records.messages import Message, ToolCall
from pairwright.sources.datasets.sharegpt import FORMAT
from pairwright.sources.format import Options, Origin

FIXTURE = Path(__file__).parent / "fixtures" / "sharegpt.jsonl"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "sharegpt_llamafactory"


def read_all(rows):
    assert all(map(FORMAT.matches, rows))
    return [
        experience
        for ordinal, row in enumerate(rows)
        for experience in FORMAT.read(row, Origin("f.jsonl", ordinal + 1, ordinal), Options())
    ]


@pytest.fixture(scope="module")
def experiences():
    return read_all([json.loads(line) for line in FIXTURE.read_text().splitlines()])


def test_a_conversation_with_calls_is_read_whole(experiences):
    first = experiences[0]
    assert first.prompt == (Message("system", "You know tides."), Message("user", "Tide in Emden and Kiel?"))
    assert first.completion == (
        Message(
            "assistant",
            tool_calls=(ToolCall("tide", '{"port":  "Emden"}', "call_0"), ToolCall("tide", '{"port": 1}', "call_1")),
        ),
        Message("tool", "Error: no such port", tool_call_id="call_0"),
        Message("tool", "8", tool_call_id="call_1"),
        Message("assistant", "Eight."),
    )
    assert (first.kind, first.reward) == (Kind.MULTI_TURN, 1.0)
    assert first.tools == ({"name": "tide", "parameters": {}},)
    assert [(site.index, site.kind, site.tool) for site in first.errors] == [(3, "tool_error", "tide")]


def test_chosen_and_rejected_make_a_preference(experiences):
    second = experiences[1]
    assert (second.kind, second.prompt) == (Kind.PREFERENCE, (Message("user", "Port?"),))
    assert second.chosen.messages == (Message("assistant", "Left"),)
    assert second.rejected.messages == (Message("assistant", tool_calls=(ToolCall("look", "{}", "call_0"),)),)
    assert second.info == {"images": ["a.png"]}


def test_parts_and_loss_weights_of_the_newer_form_are_kept(experiences):
    third = experiences[2]
    assert third.prompt == (
        Message("user", [{"type": "text", "text": "Look"}, {"type": "image", "value": "a.png"}]),
        Message("assistant", "I see.", generated=False),
        Message("user", "Depth?"),
    )
    assert third.completion == (
        Message("assistant", reasoning="Ask the sonar.", tool_calls=(ToolCall("sonar", '{"n": 1}', "call_0"),)),
        Message("tool", "9", tool_call_id="call_0"),
    )
    assert third.reward is None


def test_two_lists_of_messages_part_where_they_differ(experiences):
    fourth = experiences[3]
    assert fourth.prompt == (Message("user", "Port?"),)
    assert fourth.chosen.messages == (Message("assistant", "Left"),)
    assert fourth.rejected.messages == (Message("assistant", "Red"),)


def test_a_call_that_is_no_json_is_kept_as_text():
    turns = [{"from": "human", "value": "Go"}, {"from": "function_call", "value": "tide(Emden)"}]
    (experience,) = read_all([{"conversations": turns}])
    assert experience.completion == (Message("assistant", "tide(Emden)", extra={"from": "function_call"}),)


@pytest.mark.parametrize(
    "name, experiences, messages, calls",
    [("glaive_toolcall_en_demo.json", 300, 1914, 211), ("reason_tool_use_demo_50.jsonl", 50, 274, 68)],
)
def test_real_files_are_read_completely(name, experiences, messages, calls):
    if not SAMPLES.is_dir():
        pytest.skip("the sample traces are not on this machine")
    text = (SAMPLES / name).read_text()
    rows = json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    read = read_all(rows)
    assert len(read) == experiences
    assert sum(len(experience.messages) for experience in read) == messages
    assert sum(len(message.tool_calls) for experience in read for message in experience.messages) == calls
    results = [message for experience in read for message in experience.messages if message.role == "tool"]
    assert all(message.tool_call_id is not None for message in results)


def test_the_list_of_datasets_is_not_claimed():
    if not SAMPLES.is_dir():
        pytest.skip("the sample traces are not on this machine")
    assert not FORMAT.matches(json.loads((SAMPLES / "dataset_info.json").read_text()))

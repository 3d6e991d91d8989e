"""OpenHands: events, rows and logs of requests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import openhands, openhands_rows
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected

FIXTURE = Path(__file__).parent / "fixtures" / "openhands_events.jsonl"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "openhands"
TOOLS = [{"type": "function", "function": {"name": "sail", "parameters": {}}}]


def events() -> list[Any]:
    return [json.loads(line) for line in FIXTURE.read_text().splitlines()]


def read(value: Any, reward: str | None = None) -> list[Any]:
    return list(openhands.FORMAT.read(value, Origin("e.jsonl", 1), Options(reward=reward)))


def row(**more: Any) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "You sail."},
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "sail", "arguments": '{"to": "n"}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "name": "sail", "content": "OBSERVATION:\nERROR:\nNo sail."},
    ]
    return {"instance_id": "boat-1", "run_id": "r", "messages": messages, "tools": TOOLS, **more}


def log(**response: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "Aye."}}
    return {
        "messages": [{"role": "user", "content": "Sail?"}],
        "tools": TOOLS,
        "kwargs": {"temperature": 0},
        "response": {
            "model": "m",
            "choices": [choice],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1},
            **response,
        },
        "cost": 0.5,
        "latency_sec": 2,
        "timestamp": 7.5,
    }


def test_events_are_read_as_one_conversation_up_to_the_condensation() -> None:
    assert openhands.matches(events())
    first, _ = read(events())
    assert first.eid == EID(task="talk-1", run=0, step=0, suffix=first.eid.suffix)
    hint = [{"type": "text", "text": "Find the wind."}, {"type": "text", "text": "<hint>north</hint>"}]
    assert first.prompt == (Message("system", "You sail."), Message("user", hint))
    assert first.completion == (
        Message(
            "assistant",
            "Two looks.",
            reasoning="Look twice.",
            tool_calls=(ToolCall("terminal", '{"command": "vane"}', "w1"), ToolCall("chart", '{"page":3}', "w2")),
        ),
        Message("tool", "vane: stuck", tool_call_id="w1", name="terminal", extra={"exit_code": 2}),
        Message(
            "tool",
            "Error validating args for tool 'chart'",
            tool_call_id="w2",
            name="chart",
            extra={"is_error": True},
        ),
        Message("assistant", "No wind."),
    )
    names = ("terminal", "chart")
    assert first.errors == (
        ErrorSite(3, "nonzero_exit", "vane: stuck", "terminal", "w1", names),
        ErrorSite(4, "invalid_arguments", "Error validating args for tool 'chart'", "chart", "w2", names),
    )
    assert first.reward is None
    assert first.reward_components == {"critic": 0.75}
    assert read(events(), "critic")[0].reward == 0.75
    assert first.model_version == "m/sail"
    assert first.info == {"other_events": {"ConversationStateUpdateEvent": 2}}


def test_after_a_condensation_what_is_kept_is_context() -> None:
    _, second = read(events())
    assert second.eid.step == 1
    assert [(m.role, m.text, m.is_generated) for m in second.messages] == [
        ("system", "You sail.", False),
        ("user", "Find the wind.<hint>north</hint>", False),
        ("user", "The vane is stuck.", False),
        ("assistant", "No wind.", False),
        ("user", "Row.", False),
        ("assistant", "", True),
    ]
    assert len(second.completion) == 1
    assert second.errors == (
        ErrorSite(5, "unknown_tool", "no tool named 'oar'", "oar", "w3", ("terminal", "chart")),
    )  # fmt: skip


def test_recorded_token_ids_are_kept_where_the_turns_continue_one_another() -> None:
    base = [event for event in events()[:9] if event["kind"] != "AgentErrorEvent"]
    one = {"kind": "TokenEvent", "source": "agent", "prompt_token_ids": [1, 2], "response_token_ids": [3]}
    two = {"kind": "TokenEvent", "source": "agent", "prompt_token_ids": [1, 2, 3, 4], "response_token_ids": [5, 6]}
    (experience,) = read([*base, one, two])
    assert experience.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert experience.action_mask.tolist() == [True, False, True, True]
    (experience,) = read([*base, one])
    assert experience.tokens is None
    assert "are not one for each answer" in experience.info["tokens_dropped"]


def test_events_without_a_prompt_are_kept_and_never_share_a_task() -> None:
    first, second = (read([{**events()[3], "id": event_id}])[0] for event_id in ("a", "b"))
    assert first.prompt == ()
    assert first.info == {"prompt_missing": True}
    assert first.eid.task != second.eid.task


def test_an_unusable_event_is_rejected_alone() -> None:
    broken = {"id": "x", "source": "environment", "kind": "ObservationEvent", "observation": None}
    first, second, last = read([*events()[:4], broken, 5])
    assert isinstance(first, Rejected)
    assert (first.line, first.reason) == (5, "observation: expected an object, got null")
    assert isinstance(second, Rejected)
    assert isinstance(last, Experience)
    assert [m.role for m in last.messages] == ["system", "user", "assistant"]


def test_a_row_is_read_with_tools_reward_and_errors() -> None:
    value = row(resolved=True, test_result={"report": {"resolved": False}, "git_patch": "d", "test_output": "long"})
    assert openhands.matches(value)
    assert openhands_rows.matches(value)
    (experience,) = read(value)
    assert experience.eid.task == "boat-1"
    assert experience.prompt == (Message("system", "You sail."), Message("user", "Go."))
    assert experience.completion[0] == Message(
        "assistant", "", tool_calls=(ToolCall("sail", '{"to": "n"}', "1"),)
    )  # fmt: skip
    assert experience.tools == tuple(TOOLS)
    assert experience.reward == 1.0
    assert experience.errors == (
        ErrorSite(3, "tool_error", "OBSERVATION:\nERROR:\nNo sail.", "sail", "1", ("sail",)),
    )  # fmt: skip
    assert experience.info == {"run_id": "r", "test_result": {"report": {"resolved": False}, "git_patch": "d"}}


@pytest.mark.parametrize(
    ("more", "name", "reward"),
    [
        ({"resolved": False}, None, 0.0),
        ({"resolved": None}, None, None),
        ({"test_result": {"report": {"resolved": True}}}, None, 1.0),
        ({"resolved": True, "test_result": {"report": {"speed": "0.5"}}}, "speed", 0.5),
        ({"resolved": True}, "speed", None),
    ],
)
def test_the_reward_of_a_row_is_resolved_unless_another_is_named(
    more: dict[str, Any], name: str | None, reward: float | None
) -> None:
    (experience,) = read(row(**more), name)
    assert experience.reward == reward


def test_rows_in_a_list_are_read_one_by_one() -> None:
    value = [row(resolved=True), row(resolved=True, messages=[]), row(resolved=False)]
    first, bad, last = read(value)
    assert (first.eid.run, last.eid.run) == (0, 2)
    assert isinstance(bad, Rejected)
    assert bad.reason == "[1]: no answer of the model, so there is no completion"
    with pytest.raises(BadRecord, match="no answer of the model"):
        read(value[1])


def test_a_row_whose_history_is_events_is_read() -> None:
    value = {"instance_id": "boat-2", "history": events(), "test_result": {"resolved": 1}}
    assert openhands.matches(value)
    first, second = read(value)
    assert [(e.eid.task, e.eid.step, e.reward) for e in (first, second)] == [("boat-2", 0, 1.0), ("boat-2", 1, 1.0)]


def test_a_log_of_a_request_has_its_messages_as_prompt_and_each_choice_as_a_run() -> None:
    value = log()
    assert openhands.matches(value)
    (experience,) = read(value)
    assert experience.kind is Kind.SINGLE_TURN
    assert experience.prompt == (Message("user", "Sail?"),)
    assert experience.completion == (Message("assistant", "Aye."),)
    assert experience.tools == tuple(TOOLS)
    assert experience.truncate_status == "response_truncated"
    assert experience.metrics == {"cost": 0.5, "latency_sec": 2, "prompt_tokens": 5, "completion_tokens": 1}
    assert (experience.model_version, experience.reward) == ("m", None)
    choices = [{"message": {"role": "assistant", "content": text}} for text in ("a", "b")]
    assert [(e.eid.run, e.completion[0].content) for e in read(log(choices=[*choices, None]))[:2]] == [
        (0, "a"),
        (1, "b"),
    ]


def test_the_token_ids_of_a_log_are_kept_or_dropped_with_a_reason() -> None:
    choice = {"message": {"role": "assistant", "content": "Aye."}, "token_ids": [8, 9]}
    choice["logprobs"] = {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}
    (experience,) = read(log(choices=[choice], prompt_token_ids=[1, 2, 3]))
    assert experience.tokens.tolist() == [1, 2, 3, 8, 9]
    assert experience.prompt_length == 3
    assert np.array_equal(experience.logprobs, np.array([-0.5, -0.25], dtype=np.float32))
    (experience,) = read(log(choices=[choice]))
    assert experience.tokens is None
    assert "tokens_dropped" in experience.info


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("x\n[Command finished with exit code 1]", "nonzero_exit"),
        ("[The command completed with exit code 2.]\n[Current working directory: /w]", "nonzero_exit"),
        ("[The command completed with exit code -1.]", "timeout"),
        ("[Command finished with exit code 0]", None),
        ("Ran into [Errno 2] No such file or directory: 'x'", "file_not_found"),
        ("Invalid `path` parameter: x", "invalid_arguments"),
        ("Tool 'oar' not found. Available: []", "unknown_tool"),
        ("a file that says ERROR:", None),
    ],
)
def test_failures_are_told_from_the_words_of_a_result(said: str, kind: str | None) -> None:
    assert openhands_rows.error_kind_of_text(said) == kind


def test_other_chats_are_not_taken_for_openhands() -> None:
    messages = row()["messages"]
    for value in (
        {"messages": messages},
        {"messages": messages, "tools": TOOLS, "reward": 1},
        messages,
        [],
        {"kind": "x"},
    ):
        assert not openhands.matches(value)
        assert not openhands_rows.matches(value)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample files are not here")
@pytest.mark.parametrize(
    ("name", "num_experiences", "num_messages", "num_calls", "num_scored", "num_errors"),
    [
        ("events.jsonl", 1, 5, 2, 0, 3),
        ("litellm_proxy__anthropic__claude-sonnet-4-20250514-1757015046.707.json", 1, 13, 6, 0, 2),
        ("swe-gym_openhands_sampled_trajectories__sample_raw.json", 5, 188, 87, 5, 17),
    ],
)
def test_real_files_give_the_expected_counts(
    name: str, num_experiences: int, num_messages: int, num_calls: int, num_scored: int, num_errors: int
) -> None:
    text = (SAMPLES / name).read_text()
    value = [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else json.loads(text)
    assert openhands.matches(value)
    experiences = read(value)
    assert all(isinstance(e, Experience) for e in experiences)
    messages = [message for e in experiences for message in e.messages]
    assert len(experiences) == num_experiences
    assert len(messages) == num_messages
    assert sum(len(message.tool_calls) for message in messages) == num_calls
    assert sum(e.is_scored for e in experiences) == num_scored
    assert sum(len(e.errors) for e in experiences) == num_errors

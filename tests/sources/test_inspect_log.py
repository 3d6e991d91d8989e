"""Inspect logs: samples, scores, attachments and tool errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from pairwright.records.experience import EID, Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import inspect_log
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected

FIXTURE = Path(__file__).parent / "fixtures" / "inspect_log.json"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "inspect_log"
HEADER = {"task": "clocks", "model": "lab/tick"}


def fixture() -> Any:
    return json.loads(FIXTURE.read_text())


def read(value: Any, reward: str | None = None) -> list[Any]:
    return list(inspect_log.FORMAT.read(value, Origin("log.json", None), Options(reward=reward)))


def sample(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "source": "generate"}]
    return {"eval": HEADER, "sample": {"id": 1, "epoch": 1, "input": "q", "messages": messages, **more}}


def test_a_sample_is_read_with_attachments_reasoning_calls_and_tool_errors() -> None:
    assert inspect_log.matches(fixture())
    experience, _ = read(fixture())
    assert experience.eid == EID(task="noon", run=2, step=0, suffix=experience.eid.suffix)
    assert experience.prompt == (
        Message("system", "Tell time."),
        Message("user", "What time is it?"),
        Message("assistant", "An example.", generated=False),
        Message("user", "Now you."),
    )
    assert experience.completion == (
        Message(
            "assistant",
            "Let me look.",
            reasoning="Look up.",
            tool_calls=(ToolCall("clock", '{"zone":"utc"}', "k1"), ToolCall("sundial", "{}", "k2")),
        ),
        Message("tool", "Command timed out.", tool_call_id="k1", name="clock", extra={"error": "timeout"}),
        Message(
            "tool",
            "Tool sundial not found",
            tool_call_id="k2",
            name="sundial",
            extra={"error": "parsing", "content": "partial"},
        ),
        Message("assistant", [{"type": "text", "text": "Noon, "}, {"type": "text", "text": "I think."}]),
    )
    assert experience.tools == ({"name": "clock", "description": "Reads a clock.", "parameters": {}},)
    names = ("clock",)
    assert experience.errors == (
        ErrorSite(4, "unknown_tool", "no tool named 'sundial'", "sundial", "k2", names),
        ErrorSite(5, "timeout", "Command timed out.", "clock", "k1", names),
        ErrorSite(6, "unknown_tool", "Tool sundial not found", "sundial", "k2", names),
    )
    assert experience.model_version == "lab/tick"
    assert experience.truncate_status == "response_truncated"
    assert experience.metrics == {"total_time": 1.5, "input_tokens": 9, "output_tokens": 4}
    assert experience.info == {
        "eval_task": "clocks",
        "run_id": "rn",
        "eval_id": "ev",
        "target": "12",
        "metadata": {"level": 1},
        "limit": {"type": "token", "limit": 10},
        "answers": {"match": "Noon"},
        "other_scores": {"judge.note": "fine"},
    }


def test_the_reward_is_the_first_scorer_unless_another_is_named() -> None:
    experience, _ = read(fixture())
    assert experience.reward == 0.5
    assert experience.reward_components == {"match": 0.5, "judge.style": 3.0, "judge.truth": 1.0}
    assert read(fixture(), "judge.style")[0].reward == 3.0
    assert read(fixture(), "judge")[0].reward is None


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        ("C", 1.0), ("I", 0.0), ("P", 0.5), ("N", 0.0), (0.25, 0.25), (True, 1.0), ("0.5", 0.5), ("Yes", 1.0),
        ("other", None), (None, None), ([1, 2], None), ({"only": "C"}, 1.0), ({"a": 1, "b": 2}, None), ({}, None),
    ],
)  # fmt: skip
def test_score_values_become_rewards(value: Any, reward: float | None) -> None:
    (experience,) = read(sample(scores={"s.x": {"value": value}}))
    assert experience.reward == reward


def test_the_single_score_of_an_old_log_is_read() -> None:
    (experience,) = read(sample(score={"value": "C"}))
    assert experience.reward == 1.0


def test_a_sample_without_messages_is_read_from_its_input_and_output() -> None:
    output = {"choices": [{"message": {"role": "assistant", "content": "a"}, "stop_reason": "stop"}]}
    (experience,) = read(sample(messages=[], output=output))
    assert experience.messages == (Message("user", "q"), Message("assistant", "a"))


def test_a_sample_that_cannot_be_used_is_rejected_alone() -> None:
    _, rejected = read(fixture())
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "samples[1]: no answer of the model, so there is no completion"
    with pytest.raises(BadRecord, match="no answer of the model"):
        read({"eval": HEADER, "sample": fixture()["samples"][1]})


def test_a_log_without_samples_is_refused() -> None:
    header = {"version": 2, "status": "started", "eval": HEADER}
    assert inspect_log.matches(header)
    with pytest.raises(BadRecord, match="the log has none"):
        read(header)
    assert not inspect_log.matches({"eval": "clocks", "samples": []})
    assert not inspect_log.matches({"samples": []})


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample files are not here")
@pytest.mark.parametrize(
    ("name", "num_messages", "num_calls", "num_tools", "reward"),
    [
        ("2025-05-12T20-27-36-04-00_browser.json", 10, 4, 8, 1.0),
        ("log_formats.json", 3, 0, 0, 0.0),
        ("log_read_sample.json", 3, 0, 0, 1.0),
    ],
)
def test_real_logs_give_the_expected_counts(
    name: str, num_messages: int, num_calls: int, num_tools: int, reward: float
) -> None:
    value = json.loads((SAMPLES / name).read_text())
    assert inspect_log.matches(value)
    (experience,) = read(value)
    assert isinstance(experience, Experience)
    assert (experience.eid.task, experience.eid.run) == (1, 1)
    assert len(experience.messages) == num_messages
    assert sum(len(message.tool_calls) for message in experience.messages) == num_calls
    assert len(experience.tools) == num_tools
    assert experience.reward == reward
    assert experience.errors == ()
    assert "attachment://" not in str(experience.tools) + str(experience.messages)

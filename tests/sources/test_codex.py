"""Codex CLI sessions: items become messages, compactions and roll-backs become separate experiences."""

import json
from pathlib import Path
from typing import Any

import pytest

from pairwright.records.experience import EID, Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import codex
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.identity import session_run, task_hash

ORIGIN = Origin("s.jsonl", 1)
FIXTURE = Path(__file__).parent / "fixtures" / "codex.jsonl"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "codex_cli"
SYSTEM = Message("system", "Be brief.")
ENVIRONMENT = Message("user", "<environment_context>sh</environment_context>")


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(lines: list[Any], options: Options = Options()) -> tuple[list[Experience], list[Rejected]]:  # noqa: B008
    results = list(codex.FORMAT.read(lines, ORIGIN, options))
    return (
        [item for item in results if isinstance(item, Experience)],
        [item for item in results if isinstance(item, Rejected)],
    )


def item(**payload: Any) -> dict[str, Any]:
    return {"timestamp": "t", "type": "response_item", "payload": payload}


def test_a_session_is_read_with_instructions_reasoning_calls_and_results() -> None:
    experiences, rejected = read(lines_of(FIXTURE))
    first = experiences[0]
    assert rejected == []
    assert len(experiences) == 3
    assert first.eid == EID(
        task=task_hash(first.prompt, (), None), run=session_run("kite-1", ORIGIN), step=0, suffix=first.eid.suffix
    )
    assert first.prompt == (SYSTEM, ENVIRONMENT, Message("user", "Measure the string."))
    assert first.completion == (
        Message(
            "assistant",
            reasoning="Use wc.",
            tool_calls=(
                ToolCall("shell", '{"command": ["wc","s"]}', "k1"),
                ToolCall("apply_patch", "*** Begin Patch", "k2", "custom"),
            ),
            extra={"encrypted_reasoning": True},
        ),
        Message(
            "tool",
            '{"output":"wc: s: missing","metadata":{"exit_code":1,"duration_seconds":0.1}}',
            tool_call_id="k1",
        ),
        Message("tool", "patch refused", tool_call_id="k2"),
        Message("assistant", "It is missing."),
        Message("user", "Buy one."),
        Message("assistant", "I cannot."),
    )
    assert first.model_version == "gpt-z"
    assert first.reward is None
    assert first.info == {
        "session_id": "kite-1", "cwd": "/srv/kite", "cli_version": "0.9.0", "git": {"branch": "dev"}, "events": {"user_message": 1},
    }  # fmt: skip
    assert first.errors == (
        ErrorSite(index=4, kind="nonzero_exit", text=first.completion[1].text, tool="shell", call_id="k1"),
        ErrorSite(index=5, kind="tool_error", text="patch refused", tool="apply_patch", call_id="k2"),
    )


def test_after_a_roll_back_the_kept_turns_are_context_and_the_prompt_is_the_same() -> None:
    first, second, _ = read(lines_of(FIXTURE))[0]
    assert (second.eid.run, second.eid.sid) == (first.eid.run + 1, first.eid.sid)
    assert second.prompt == first.prompt
    assert [message.text for message in second.completion[3:]] == ["It is missing.", "Where was it?", "In the shed."]
    assert [message.is_generated for message in second.completion] == [False] * 5 + [True]


def test_a_compaction_begins_an_experience_with_the_summary_as_context() -> None:
    third = read(lines_of(FIXTURE))[0][2]
    summary = Message(
        "user", "The string was in the shed.", generated=False, extra={"is_compact_summary": True}
    )  # fmt: skip
    assert (third.eid.step, third.eid.run) == (1, session_run("kite-1", ORIGIN))
    assert third.prompt == (SYSTEM, summary, Message("user", "Go there."))
    assert third.completion[0].tool_calls == (
        ToolCall("local_shell", '{"type":"exec","command":["cd","shed"]}', "k3", "local_shell"),
    )
    assert [(site.index, site.kind, site.tool) for site in third.errors] == [(4, "nonzero_exit", "local_shell")]


def test_a_replacement_history_is_context_even_where_the_assistant_wrote_it() -> None:
    history = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "old"}]}]
    lines = [
        item(type="message", role="user", content="q"),
        item(type="message", role="assistant", content="a"),
        {"timestamp": "t", "type": "compacted", "payload": {"message": "", "replacement_history": history}},
        item(type="message", role="user", content="q2"),
        item(type="message", role="assistant", content="a2"),
    ]
    _, second = read(lines)[0]
    assert [(m.text, m.is_generated) for m in second.messages] == [("old", False), ("q2", False), ("a2", True)]


def compacted_session(summary: str) -> list[Any]:
    """A session with a compaction: the answer with its summary is an item like any other, its request is not logged."""
    return [
        item(type="message", role="user", content="q"),
        item(type="message", role="assistant", content="a"),
        item(type="reasoning", summary=[{"type": "summary_text", "text": "sum it up"}]),
        item(type="message", role="assistant", content="The user asked q."),
        {"timestamp": "t", "type": "compacted", "payload": {"message": summary}},
        item(type="message", role="user", content="q2"),
        item(type="message", role="assistant", content="a2"),
    ]


def test_the_summary_of_a_compaction_is_no_answer_to_the_turn_before_it() -> None:
    first, second = read(compacted_session("Another model wrote this:\nThe user asked q."))[0]
    assert [(m.text, m.is_generated) for m in first.messages] == [("q", False), ("a", True)]
    assert [m.text for m in second.prompt] == ["Another model wrote this:\nThe user asked q.", "q2"]
    assert [experience.eid.step for experience in (first, second)] == [0, 1]


def test_with_its_request_the_summary_of_a_compaction_is_a_step_of_its_own() -> None:
    lines = compacted_session("Another model wrote this:\nThe user asked q.")
    first, summary, last = read(lines, Options(compaction_prompt="Sum up."))[0]
    assert [(m.role, m.text, m.is_generated) for m in summary.messages] == [
        ("user", "q", False),
        ("assistant", "a", False),
        ("user", "Sum up.", False),
        ("assistant", "The user asked q.", True),
    ]
    assert summary.completion[0].reasoning == "sum it up"
    assert summary.info["is_compaction"] is True
    assert [experience.eid.step for experience in (first, summary, last)] == [0, 1, 2]
    assert len({(experience.eid.task, experience.eid.run) for experience in (first, summary, last)}) == 1


def test_an_answer_before_a_compaction_that_is_not_its_summary_stays() -> None:
    lines = compacted_session("They said: The user asked q.")  # has the same ending, but not on a separate line
    first, _ = read(lines, Options(compaction_prompt="Sum up."))[0]
    assert [m.text for m in first.completion] == ["a", "The user asked q."]


def test_an_older_file_of_bare_items_is_read() -> None:
    lines = [
        {"id": "old-1", "timestamp": "t", "instructions": "Be kind.", "git": {}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "Exit code: 3\nOutput:\nx"},
    ]
    assert codex.matches(lines)
    (experience,), rejected = read(lines)
    assert rejected == []
    assert experience.info["session_id"] == "old-1"
    assert [m.role for m in experience.messages] == ["system", "user", "assistant", "tool"]
    assert [site.kind for site in experience.errors] == ["nonzero_exit"]


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("unsupported call: fly", "unknown_tool"),
        ("failed to parse function arguments: missing field", "invalid_arguments"),
        ("command timed out after 10 s", "timeout"),
        ("Wall time: 1 s\nProcess exited with code 127\nOutput:", "nonzero_exit"),
        ("Process exited with code 0", None),
        ('{"output":"","metadata":{"exit_code":0}}', None),
        ('{"metadata":[]}', None),
        ("the page says: Exit code: 1", None),
    ],
)
def test_results_that_tell_of_a_failure_are_error_sites(output: str, kind: str | None) -> None:
    lines = [
        item(role="user", content="q"),
        item(type="function_call", name="f", arguments="{}", call_id="1"),
        item(type="function_call_output", call_id="1", output=output),
    ]
    (experience,), _ = read(lines)
    assert [site.kind for site in experience.errors] == ([] if kind is None else [kind])


def test_an_unusable_line_is_rejected_alone() -> None:
    lines = [
        item(role="user", content="q"),
        "torn",
        item(type="function_call", arguments="{}", call_id="1"),
        {"type": "response_item", "payload": None},
        item(role="assistant", content="a"),
    ]
    (experience,), rejected = read(lines)
    assert [m.text for m in experience.messages] == ["q", "a"]
    assert [r.line for r in rejected] == [2, 3, 4]


def test_a_session_rolled_back_too_often_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codex, "MAX_ROLLBACKS", 1)
    turn = [item(role="user", content="q"), item(role="assistant", content="a")]
    back = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}
    experiences, rejected = read([*turn, back, *turn, back, *turn])
    assert [e.info.get("branch", 0) for e in experiences] == [0, 1]
    assert [(r.line, r.reason) for r in rejected] == [(6, "more than 1 roll-backs: the rest is not read")]


def test_a_file_without_items_is_refused() -> None:
    with pytest.raises(BadRecord, match="no line is an item"):
        read([{"type": "session_meta", "payload": {"id": "x"}}])
    assert not codex.matches([{"type": "message", "role": "user", "content": "hi"}])


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample files are not here")
@pytest.mark.parametrize(
    ("name", "task", "num_messages", "num_calls"),
    [
        ("codex_session", "codex-test-001", 8, 2),
        ("fc_args_2", "fc-args-2", 2, 1),
        ("function_calls", "fc-1", 2, 2),
        ("rollout-tool-call", "tool-call-session-id", 3, 1),
    ],
)
def test_real_sessions_give_the_expected_counts(name: str, task: str, num_messages: int, num_calls: int) -> None:
    lines = lines_of(SAMPLES / f"{name}.jsonl")
    assert codex.matches(lines)
    (experience,), rejected = read(lines)
    assert rejected == []
    assert experience.info["session_id"] == task
    assert len(experience.messages) == num_messages
    assert sum(len(message.tool_calls) for message in experience.messages) == num_calls
    assert experience.errors == ()

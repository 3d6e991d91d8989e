"""SWE-agent and mini-SWE-agent trajectories."""

import json
from pathlib import Path
from typing import Any

import pytest

from pairwright.records.experience import EID, Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import swe_agent
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected

FIXTURES = Path(__file__).parent / "fixtures"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"


def read(value: Any, file: str = "runs/x__y-1.traj", reward: str | None = None) -> Experience:
    (experience,) = swe_agent.FORMAT.read(value, Origin(file, 1), Options(reward=reward))
    assert isinstance(experience, Experience)
    return experience


def fixture(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text())


def test_a_trajectory_is_read_whole() -> None:
    value = fixture("swe_agent.traj")
    assert swe_agent.matches(value)
    experience = read(value)
    task = [{"type": "text", "text": "Fix the bell.", "cache_control": {"type": "ephemeral"}}]
    of_main = {"agent": "main"}
    assert experience.prompt == (
        Message("system", "You fix code.", extra=of_main),
        Message("user", "An example.", generated=False, extra={"agent": "main", "is_demo": True}),
        Message("assistant", "Like this.", generated=False, extra={"agent": "main", "is_demo": True}),
        Message("user", task, extra=of_main),
    )
    assert experience.completion == (
        Message(
            "assistant",
            "Look around.",
            reasoning="First ls.",
            tool_calls=(ToolCall("bash", '{"command":"ls"}', "c1"),),
            extra={"action": "ls", "agent": "main"},
        ),
        Message("tool", "a.py", tool_call_id="c1", extra=of_main),
        Message(
            "assistant",
            "Fix it.",
            tool_calls=(ToolCall("edit", '{"path":"a.py"}', "c2"),),
            extra={"action": "edit a.py", "agent": "main"},
        ),
        Message(
            "tool",
            "Your proposed edit has introduced new syntax error(s).\nE999",
            tool_call_id="c2",
            extra=of_main,
        ),
        Message("assistant", "Done.", generated=False, extra={"from_trajectory": True, "action": "submit"}),
        Message("user", "diff --git a/a.py", extra={"from_trajectory": True}),
    )
    assert experience.eid == EID(task="bells__bell-7", run=0, step=0, suffix=experience.eid.suffix)
    assert experience.errors == (
        ErrorSite(index=7, kind="tool_error", text=experience.completion[3].text, tool="edit", call_id="c2"),
    )
    assert experience.model_version == "gpt-q"
    assert experience.metrics == {"api_calls": 4}
    assert experience.info == {
        "exit_status": "submitted",
        "submission": "diff",
        "resolved": True,
        "score": "0.25",
        "steps_not_in_history": 1,
        "steps_after_history": 1,
    }


def test_the_reward_is_resolved_unless_another_score_is_named() -> None:
    value = fixture("swe_agent.traj")
    assert read(value).reward == 1.0
    assert read(value).reward_components == {"resolved": 1.0, "score": 0.25}
    assert read(value, reward="score").reward == 0.25
    assert read(value, reward="nothing").reward is None
    del value["info"]["resolved"], value["info"]["score"]
    assert read(value).reward is None
    value["report"] = {"resolved": False}
    assert read(value).reward == 0.0


def test_without_any_id_the_task_is_the_name_of_the_file() -> None:
    value = fixture("swe_agent.traj")
    value["replay_config"] = "not json"
    assert read(value, "runs/bells__bell-9.traj").eid.task == "bells__bell-9"
    assert read(value, "runs/bells__bell-9.traj.json").eid.task == "bells__bell-9"
    assert read(value, "runs/trajectory.json").eid.task not in ("trajectory", "")
    value["instance_id"] = "own"
    assert read(value).eid.task == "own"


def test_where_the_history_is_missing_the_last_query_is_the_conversation() -> None:
    query = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "o"},
    ]
    steps = [
        {"action": "x", "observation": "o", "response": "one", "query": query[:1]},
        {"action": "y", "observation": "p", "response": "two", "query": query},
    ]
    experience = read({"trajectory": steps, "info": {}})
    assert [(m.text, m.is_generated) for m in experience.messages] == [
        ("q", False), ("one", True), ("o", False), ("two", False), ("p", False),
    ]  # fmt: skip
    with pytest.raises(BadRecord, match="the prompt is unknown"):
        read({"trajectory": [{"action": "x", "observation": "o", "response": "one"}], "info": {}})


def test_the_tool_calling_mini_agent_is_read_with_its_return_codes() -> None:
    value = fixture("mini_swe_agent.traj.json")
    assert swe_agent.matches(value)
    experience = read(value)
    assert experience.eid.task == "bells__bell-8"
    assert experience.prompt == (Message("system", "Use bash."), Message("user", "Ring it."))
    assert experience.completion == (
        Message("assistant", reasoning="Try.", tool_calls=(ToolCall("bash", '{"command": "ring"}', "x1"),)),
        Message("tool", "<output>none</output>", tool_call_id="x1", extra={"returncode": 127}),
        Message("assistant", "Again.", tool_calls=(ToolCall("bash", "{}", "x2"),)),
        Message(
            "tool", "late", tool_call_id="x2", extra={"returncode": -1, "exception_info": "action timed out"}
        ),
    )  # fmt: skip
    assert experience.errors == (
        ErrorSite(index=3, kind="nonzero_exit", text="<output>none</output>", tool="bash", call_id="x1"),
        ErrorSite(index=5, kind="timeout", text="late", tool="bash", call_id="x2"),
    )
    assert experience.reward is None
    assert experience.model_version == "m/one"
    assert experience.metrics == {"instance_cost": 0.5, "api_calls": 2}
    assert experience.info["submission"] == "patch"
    assert "config" not in experience.info


def test_a_list_of_trajectories_is_read_one_by_one() -> None:
    value = [fixture("swe_agent.traj"), {"trajectory": [], "info": {}}, fixture("mini_swe_agent.traj.json")]
    assert swe_agent.matches(value)
    first, bad, last = swe_agent.FORMAT.read(value, Origin("all.jsonl", 1), Options())
    assert isinstance(first, Experience)
    assert isinstance(last, Experience)
    assert (first.eid.run, last.eid.run, last.eid.task) == (0, 2, "bells__bell-8")
    assert isinstance(bad, Rejected)
    assert bad.reason == "[1]: history: missing, and no step has a query, so the prompt is unknown"


@pytest.mark.parametrize(
    ("observation", "kind"),
    [
        ("cat: x.py: No such file or directory", "file_not_found"),
        ("File /x.py not found", "file_not_found"),
        ("bash: zed: command not found", "unknown_tool"),
        ("The command 'make' was cancelled because it took more than 30 seconds.", "timeout"),
        ("Your bash command contained syntax errors and was NOT executed.", "invalid_arguments"),
        ("Traceback (most recent call last):\n  x", "exception"),
        ("1: raise Error\n2: Traceback (most recent call last)", None),
    ],
)
def test_observations_that_begin_with_a_failure_are_error_sites(observation: str, kind: str | None) -> None:
    history = [
        {"role": "user", "content": "Traceback (most recent call last)"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": observation},
    ]
    errors = read({"trajectory": [], "history": history, "info": {}}).errors
    assert [(site.index, site.kind) for site in errors] == ([] if kind is None else [(2, kind)])


def test_a_plain_chat_is_not_taken_for_a_trajectory() -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<b>hello</b>"}]
    assert not swe_agent.matches(chat)
    assert not swe_agent.matches({"messages": chat})
    assert not swe_agent.matches([{"messages": chat}])
    assert swe_agent.matches([*chat, {"role": "user", "content": "<returncode>0</returncode>"}])


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample files are not here")
@pytest.mark.parametrize(
    ("name", "task", "num_messages", "num_calls", "num_generated", "num_errors"),
    [
        ("swe_agent_traj/6e44b9__sweagenttestrepo-1c2844.traj", "SWE-agent__test-repo-i1", 12, 4, 4, 0),
        (
            "swe_agent_traj/marshmallow-code__marshmallow-1867.traj",
            "marshmallow-code__marshmallow-1867",
            *(24, 11, 11, 1),
        ),
        ("swe_agent_traj/swe-agent__test-repo-i1.traj", "swe-agent__test-repo-i1", 13, 0, 5, 0),
        ("mini_swe_agent/github_issue.traj.json", "github_issue", 22, 0, 10, 2),
    ],
)
def test_real_trajectories_give_the_expected_counts(
    name: str, task: str, num_messages: int, num_calls: int, num_generated: int, num_errors: int
) -> None:
    value = json.loads((SAMPLES / name).read_text())
    assert swe_agent.matches(value)
    experience = read(value, name)
    assert experience.eid.task == task
    assert len(experience.messages) == num_messages
    assert sum(len(message.tool_calls) for message in experience.messages) == num_calls
    assert sum(message.is_generated for message in experience.messages) == num_generated
    assert len(experience.errors) == num_errors
    assert experience.reward is None

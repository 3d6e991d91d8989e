"""Claude Code sessions: the tree becomes conversations, each generated turn exactly once."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import claude_code
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.identity import session_run, task_hash

ORIGIN = Origin("s.jsonl", 1)
FIXTURE = Path(__file__).parent / "fixtures" / "claude_code.jsonl"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "claude_code"


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(lines: list[Any]) -> tuple[list[Experience], list[Rejected]]:
    results = list(claude_code.FORMAT.read(lines, ORIGIN, Options()))
    return (
        [item for item in results if isinstance(item, Experience)],
        [item for item in results if isinstance(item, Rejected)],
    )


def line(kind: str, uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **more.pop("message", {})}
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **more}


SHARED_ANSWER = Message(
    "assistant",
    reasoning="Two files.",
    tool_calls=(ToolCall("Read", '{"path":"hall.txt"}', "t1"), ToolCall("Bash", '{"command":"cat cellar.txt"}', "t2")),
)
RESULTS = (
    Message("tool", [{"type": "text", "text": "3 lit"}, {"type": "text", "text": "1 dark"}], tool_call_id="t1"),
    Message("tool", "Exit code 1\ncat: cellar.txt: missing", tool_call_id="t2", extra={"is_error": True}),
)


def test_the_first_branch_is_read_whole_with_split_lines_and_parallel_results_joined() -> None:
    experiences, rejected = read(lines_of(FIXTURE))
    first = experiences[0]
    assert rejected == []
    assert first.eid == EID(
        task=task_hash(first.prompt, (), None), run=session_run("lamp-1", ORIGIN), step=0, suffix=first.eid.suffix
    )
    assert first.kind is Kind.MULTI_TURN
    assert first.prompt == (Message("user", "How many lamps are lit?"),)
    image = {"type": "image", "source": {"type": "base64", "data": "AA=="}}
    assert first.completion == (
        SHARED_ANSWER,
        *RESULTS,
        Message("assistant", "Three."),
        Message("user", [{"type": "text", "text": "And outside?"}, image]),
        Message("assistant", "None."),
    )
    assert first.reward is None
    assert first.model_version == "claude-x"
    assert first.truncate_status == "response_truncated"
    assert first.metrics == {"input_tokens": 40, "output_tokens": 9}
    assert first.info == {
        "session_id": "lamp-1",
        "cwd": "/srv/lamps",
        "gitBranch": "dev",
        "version": "2.1.0",
        "leaf": "a5",
        "other_lines": {"file-history-snapshot": 1, "progress": 1, "system": 1},
        "summaries": ["Counting lamps"],
    }
    assert first.source is not None
    assert (first.source.line, first.source.format) == (3, "claude-code")


def test_a_failed_call_is_an_error_site_with_its_tool() -> None:
    first = read(lines_of(FIXTURE))[0][0]
    assert first.errors == (
        ErrorSite(index=3, kind="nonzero_exit", text=RESULTS[1].text, tool="Bash", call_id="t2"),
    )  # fmt: skip


def test_a_second_branch_repeats_the_shared_turns_as_context_that_is_not_trained() -> None:
    first, second = read(lines_of(FIXTURE))[0][:2]
    assert (second.eid.run, second.eid.sid) == (first.eid.run + 1, first.eid.sid)
    assert second.prompt == first.prompt
    assert [message.is_generated for message in second.completion] == [False] * 6 + [True]
    assert [message.text for message in second.completion[3:]] == [
        "Three.", "Light one more.", "API Error: overloaded", "Four now.",
    ]  # fmt: skip
    assert second.completion[0].tool_calls == SHARED_ANSWER.tool_calls
    assert [(site.index, site.kind) for site in second.errors] == [(3, "nonzero_exit"), (6, "exception")]


def test_every_generated_turn_is_generated_in_exactly_one_experience() -> None:
    experiences, _ = read(lines_of(FIXTURE))
    generated = [message.text for e in experiences for message in e.messages if message.is_generated]
    assert generated == ["", "Three.", "None.", "Four now.", "Dark.", "Go on."]


def test_sidechains_and_compactions_are_conversations_of_their_own() -> None:
    sidechain, compacted = read(lines_of(FIXTURE))[0][2:]
    assert [message.text for message in sidechain.messages] == ["Look in the attic.", "Dark."]
    assert (sidechain.eid.step, sidechain.model_version) == (1, "claude-y")
    assert sidechain.info.pop("session_id") == "lamp-1"
    assert sidechain.info == {"agentId": "g7", "is_sidechain": True, "begins_after": "a4", "leaf": "s2"}
    assert compacted.prompt == (
        Message("user", "Summary: four lamps are lit.", generated=False, extra={"is_compact_summary": True}),
    )  # fmt: skip
    assert compacted.eid.step == 2


def test_what_follows_a_clear_does_not_see_what_came_before() -> None:
    lines = [
        line("user", "1", None, "one"),
        line("assistant", "2", "1", "first"),
        line("user", "3", "2", "<command-name>/clear</command-name>"),
        line("user", "4", "3", "two"),
        line("assistant", "5", "4", "second"),
    ]
    experiences, _ = read(lines)
    assert [[m.text for m in e.messages] for e in experiences] == [
        ["one", "first"], ["<command-name>/clear</command-name>", "two", "second"],
    ]  # fmt: skip


def test_lines_copied_from_another_session_are_not_trained() -> None:
    copied = {"forkedFrom": {"sessionId": "old", "messageUuid": "x"}}
    lines = [
        line("user", "1", None, "one", **copied),
        line("assistant", "2", "1", "copied", **copied),
        line("user", "3", "2", "two"),
        line("assistant", "4", "3", "own"),
    ]
    (experience,), _ = read(lines)
    assert [m.text for m in experience.prompt] == ["one", "copied", "two"]
    assert [m.is_generated for m in experience.messages] == [False, False, False, True]


def test_the_same_result_twice_is_a_real_branch_and_different_results_are_not() -> None:
    call = [{"type": "tool_use", "id": "t", "name": "Ls", "input": {}}]
    result = [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]
    lines = [
        line("user", "1", None, "q"),
        line("assistant", "2", "1", call, message={"id": "m"}),
        line("user", "3", "2", result),
        line("user", "4", "2", result),
        line("assistant", "5", "3", "a"),
        line("assistant", "6", "4", "b"),
    ]
    experiences, _ = read(lines)
    assert [e.completion[-1].text for e in experiences] == ["a", "b"]


def test_unusable_lines_are_rejected_one_by_one_and_still_link_the_conversation() -> None:
    lines = [
        line("user", "1", None, "q"),
        line("user", "2", "1", 7),
        42,
        line("user", "1", None, "again"),
        line("assistant", "3", "2", [{"type": "tool_use", "id": "t", "input": {}}]),
        line("assistant", "4", "3", "a"),
    ]
    (experience,), rejected = read(lines)
    assert [m.text for m in experience.messages] == ["q", "a"]
    assert [(r.line, r.reason) for r in rejected] == [
        (2, "message.content: expected a list, got a number"),
        (3, "line: expected an object, got a number"),
        (4, "uuid: '1' is on an earlier line already"),
        (5, "message.content[0].name: expected text, got null"),
    ]


def test_a_conversation_whose_beginning_is_missing_says_so() -> None:
    (experience,), _ = read([line("assistant", "2", "gone", "a"), line("user", "3", "2", "q")])
    assert experience.prompt == ()
    assert experience.info == {"session_id": "s", "begins_after": "gone", "leaf": "3", "prompt_missing": True}


def test_a_circle_of_parents_is_cut_at_its_first_line() -> None:
    (experience,), _ = read([line("user", "1", "2", "q"), line("assistant", "2", "1", "a")])
    assert [m.text for m in experience.messages] == ["q", "a"]


def test_more_branches_than_the_limit_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_code, "MAX_BRANCHES", 2)
    lines = [line("user", "0", None, "q")] + [line("assistant", f"a{n}", "0", f"{n}") for n in range(4)]
    experiences, rejected = read(lines)
    assert [e.completion[0].text for e in experiences] == ["0", "1"]
    assert [r.reason for r in rejected] == ["more than 2 branches from line 1"] * 2


def test_a_long_session_is_read_without_recursion() -> None:
    lines = [line("user" if n % 2 == 0 else "assistant", str(n), str(n - 1), str(n)) for n in range(5000)]
    (experience,), _ = read(lines)
    assert len(experience.messages) == 5000


def test_a_file_without_messages_is_refused() -> None:
    with pytest.raises(BadRecord, match="no line is a message"):
        read([{"type": "summary", "summary": "x"}])
    assert not claude_code.matches([{"type": "summary", "summary": "x"}])
    assert not claude_code.matches([{"role": "user", "content": "hi"}])


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample files are not here")
@pytest.mark.parametrize(
    ("name", "num_experiences", "num_messages", "num_calls", "num_errors", "num_rejected"),
    [
        ("agent-atest01", 1, 4, 1, 0, 0),
        ("agent_session", 1, 4, 1, 0, 0),
        ("clear_split_session", 2, 5, 0, 0, 0),
        ("edge_cases", 2, 12, 3, 1, 6),
        ("sample_session", 1, 7, 2, 0, 0),
        ("slug_clear_session", 2, 5, 0, 0, 0),
        ("tool_call_conversation", 1, 4, 1, 0, 0),
    ],
)
def test_real_sessions_give_the_expected_counts(
    name: str, num_experiences: int, num_messages: int, num_calls: int, num_errors: int, num_rejected: int
) -> None:
    lines = lines_of(SAMPLES / f"{name}.jsonl")
    assert claude_code.matches(lines)
    experiences, rejected = read(lines)
    messages = [message for e in experiences for message in e.messages]
    assert len(experiences) == num_experiences
    assert len(messages) == num_messages
    assert sum(len(message.tool_calls) for message in messages) == num_calls
    assert sum(len(e.errors) for e in experiences) == num_errors
    assert len(rejected) == num_rejected


def test_sessions_that_begin_alike_are_runs_of_one_task_and_their_later_conversations_too() -> None:
    def session(name: str, prompt: str, **more: Any) -> list[Experience]:
        lines = [
            line("user", "1", None, prompt, sessionId=name, **more),
            line("assistant", "2", "1", name, sessionId=name, **more),
            line("user", "3", None, "after /clear", sessionId=name, **more),
            line("assistant", "4", "3", "b", sessionId=name, **more),
        ]
        return read(lines)[0]

    first, later = session("s-1", "plant a tree")
    second, _ = session("s-2", "plant a tree")
    other, _ = session("s-3", "plant a bush")
    assert first.eid.sid == second.eid.sid
    assert first.eid.rid != second.eid.rid
    assert later.eid.tid == first.eid.tid
    assert (later.eid.step, later.eid.run) == (1, first.eid.run)
    assert other.eid.task != first.eid.task
    assert [e.info["session_id"] for e in (first, second)] == ["s-1", "s-2"]


def test_sessions_of_different_agents_are_different_tasks() -> None:
    talk = [line("user", "1", None, "q"), line("assistant", "2", "1", "a")]
    settings = [{"type": "agent-setting", "agentSetting": name, "sessionId": "s"} for name in ("shop", "bank")]
    tasks = {read([setting, *talk])[0][0].eid.task for setting in settings}
    assert len(tasks) == 2


def random_session(draw: random.Random) -> list[dict[str, Any]]:
    """A session with parallel calls, links, rewinds and sidechains; some are shuffled, or have no parents."""
    lines: list[dict[str, Any]] = []
    parent: str | None = None

    def add(kind: str, content: Any, above: str | None, **more: Any) -> str:
        uuid = f"u{len(lines)}"
        lines.append(line(kind, uuid, above, content, **more))
        return uuid

    for turn in range(draw.randrange(1, 5)):
        if lines and draw.random() < 0.3:  # the user went back
            parent = draw.choice(lines)["uuid"]
        parent = add("user", draw.choice(["go", "<command-name>/clear</command-name>", "on"]), parent)
        calls = []
        for number in range(draw.randrange(4)):
            use = {"type": "tool_use", "id": f"t{turn}{number}", "name": "Read", "input": {"n": number}}
            parent = add("assistant", [use], parent, message={"id": f"m{turn}"})
            calls.append((use["id"], parent))
            if draw.random() < 0.2:
                lines.append({"type": "system", "uuid": f"u{len(lines)}", "parentUuid": parent, "sessionId": "s"})
                parent = lines[-1]["uuid"]
        for call_id, asked in calls if draw.random() < 0.7 else draw.sample(calls, len(calls)):
            result = {"type": "tool_result", "tool_use_id": call_id, "content": "ok"}
            parent = add("user", [result], draw.choice([asked, parent]))
        if draw.random() < 0.2:
            add("user", "aside", draw.choice([None, parent]), isSidechain=True)
        parent = add("assistant", "done", parent, message={"id": f"n{turn}"})
    if draw.random() < 0.3:
        draw.shuffle(lines)
    if draw.random() < 0.1:
        lines = [{**item, "parentUuid": None} for item in lines]
    return lines


def test_every_call_of_a_shuffled_session_is_generated_at_most_once() -> None:
    for seed in range(300):
        session = random_session(random.Random(seed))
        experiences, rejected = read(session)
        assert experiences or rejected
        calls = [
            call.id for exp in experiences for turn in exp.messages if turn.is_generated for call in turn.tool_calls
        ]
        assert len(calls) == len(set(calls))


def test_a_link_in_a_session_without_parents_follows_the_line_before() -> None:
    link = {"type": "system", "uuid": "l1", "parentUuid": None, "sessionId": "s"}
    answer = line("assistant", "a1", "l1", "Yes.") | {"sessionId": "another"}
    experiences, _ = read([line("user", "u1", None, "Go."), link, answer])
    assert [exp.prompt for exp in experiences] == [(Message("user", "Go."),)]

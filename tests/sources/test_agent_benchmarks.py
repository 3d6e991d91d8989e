"""Results of agent benchmarks: tau2-bench, OpenHands before its SDK, Agent Data Protocol, Terminal-Bench, ATIF 1.8."""

import json
from pathlib import Path

import pytest
from mutations import survives
from outlines import outline, read_path

from pairwright.sources.agents import agent_data, atif, openhands_legacy, tau_bench, terminal_bench
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin

FIXTURES = Path(__file__).parent / "fixtures"
GOLDEN = {
    "tau2_bench.json": [
        [
            "system Berths are for members.",
            "assistant Hi! How can I help you today?",
            "user A berth, please.",
            "--",
            'assistant* find{"length":9}#c1 find{"length":8}#c2',
            "tool! #c1 Error: none free",
            "tool #c2 berth 4",
            "assistant* Berth 4 is free.",
            "user Thanks. ###STOP###",
        ],
    ],
    "openhands_legacy.json": [
        [
            "system You mend nets.",
            "user Mend the net.",
            "--",
            'assistant* Look around. execute_bash{"command": "ls"}#t1 execute_bash{"command": "cat net"}#t2',
            "tool #t1 net",
            "tool! #t2 cat: net: Is a directory",
            "assistant* Done. finish{}#t3",
        ],
    ],
    "openhands_legacy_rows.jsonl": [
        [
            "user Mend it.",
            "--",
            'assistant* I mend. run{"command":"mend"}#call_1',
            "tool #call_1 mended",
            'assistant* Mended. finish{"outputs":{}}#call_3',
        ],
    ],
    "agent_data.json": [
        [
            "system You have tools.",
            "user Find the shell.",
            "--",
            'assistant* I search. search{"for":"shell"}#call_2',
            "tool! #call_2 Error: too dark",
            'assistant* bash{"code":"light on"}#call_4',
            'tool #call_4 {"axtree":"a shell","url":"x://beach"}',
            "assistant* <Seen it.> It is by the rock.",
        ],
    ],
}
READERS_OF = {
    "tau2_bench.json": tau_bench.TAU2_FORMAT,
    "openhands_legacy.json": openhands_legacy.FORMAT,
    "openhands_legacy_rows.jsonl": openhands_legacy.FORMAT,
    "agent_data.json": agent_data.FORMAT,
    "terminal_bench.json": terminal_bench.FORMAT,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_trajectory_is_read_whole(name):
    format_name, experiences, _ = read_path(FIXTURES / name)
    assert format_name == READERS_OF[name].name
    assert [outline(exp) for exp in experiences] == GOLDEN[name]


@pytest.mark.slow  # every single damage; test_every_reader.py draws some of them
@pytest.mark.parametrize("name", READERS_OF)
def test_no_broken_trajectory_raises_anything_else(name):
    text = (FIXTURES / name).read_text()
    assert survives(READERS_OF[name], json.loads(text)) > 50


def test_tau2_bench_knows_task_trial_and_rewards():
    _, (exp,), (rejected,) = read_path(FIXTURES / "tau2_bench.json")
    assert (exp.eid.task, exp.eid.run, exp.reward, exp.model_version) == ("harbour/7", 1, 0.5, "gpt-4.1")
    assert exp.reward_components == {"COMMUNICATE": 1.0, "db_reward": 0.0}
    assert exp.info == {"id": "r1", "termination_reason": "user_stop", "hidden_messages": 2}
    assert exp.metrics == {"agent_cost": 0.1, "duration": 2.5}
    assert exp.tools == (
        {
            "type": "function",
            "function": {"name": "find", "description": "Find a berth.", "parameters": {"type": "object"}},
        },
    )
    assert rejected.reason == "simulations[1]: messages: expected a list, got null"
    _, (exp,), _ = read_path(FIXTURES / "tau2_bench.json", Options(reward="db_reward"))
    assert exp.reward == 0.0


def test_openhands_events_keep_the_answer_of_the_model():
    _, (exp,), _ = read_path(FIXTURES / "openhands_legacy.json")
    assert (exp.model_version, len(exp.tools), exp.reward) == ("claude-x", 2, None)
    assert [(site.index, site.kind, site.call_id) for site in exp.errors] == [(4, "nonzero_exit", "t2")]
    _, (exp,), _ = read_path(FIXTURES / "openhands_legacy_rows.jsonl")
    assert (exp.eid.task, exp.reward, exp.metrics) == ("net-1", 1.0, {"accumulated_cost": 0.5, "unanswered_calls": 1})


def test_a_condensation_begins_a_step_with_what_is_left():
    def event(number, **fields):
        return {"id": number, "timestamp": "t", **fields}

    events = [
        event(0, source="user", action="message", args={"content": "Go."}),
        event(1, source="agent", action="message", args={"content": "One."}),
        event(2, source="agent", action="message", args={"content": "Two."}),
        event(3, source="agent", action="condensation", args={"forgotten_event_ids": [1], "summary": "It went."}),
        event(4, source="user", action="message", args={"content": "On."}),
        event(5, source="agent", action="message", args={"content": "Three."}),
    ]
    one, two = openhands_legacy.FORMAT.read(events, Origin("e.json"), Options())
    assert (one.eid.step, outline(one)) == (0, ["user Go.", "--", "assistant* One.", "assistant* Two."])
    assert (two.eid.step, outline(two)) == (
        1,
        ["user Go.", "assistant Two.", "user It went.", "user On.", "--", "assistant* Three."],
    )


@pytest.fixture
def trial(tmp_path):
    (tmp_path / "results.json").write_text((FIXTURES / "terminal_bench.json").read_text())
    for number, (prompt, answer) in enumerate([("Tie a knot.", "ls"), ("rope", "tie rope"), ("tied", None)]):
        episode = tmp_path / "agent-logs" / f"episode-{number}"
        episode.mkdir(parents=True)
        (episode / "prompt.txt").write_text(prompt)
        if answer is not None:
            (episode / "response.txt").write_text(answer)
    return tmp_path


def test_a_terminal_bench_trial_is_its_episodes_and_its_result(trial):
    format_name, (exp,), _ = read_path(trial / "results.json")
    assert format_name == "terminal-bench"
    assert outline(exp) == ["user Tie a knot.", "--", "assistant* ls", "user rope", "assistant* tie rope", "user tied"]
    assert (exp.eid.task, exp.reward) == ("knot", 1.0)
    assert exp.reward_components == {"is_resolved": True, "test_tied": 1.0, "test_neat": 0.0}
    _, (exp,), _ = read_path(trial / "results.json", Options(reward="test_neat"))
    assert exp.reward == 0.0


def test_a_terminal_bench_result_without_turns_is_rejected():
    _, experiences, (rejected,) = read_path(FIXTURES / "terminal_bench.json")
    assert experiences == []
    assert "logged no turns" in rejected.reason


def test_an_agent_data_trajectory_without_an_action_is_refused():
    row = {"id": "x", "content": [{"class_": "text_observation", "content": "hi", "source": "user"}]}
    with pytest.raises(BadRecord, match="no answer of the model"):
        list(agent_data.FORMAT.read(row, Origin("a.json"), Options()))


def test_atif_1_8_reads_content_of_several_kinds():
    audio = {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav"}}
    trajectory = {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": "t",
        "agent": {"name": "mate", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "Listen."}, audio]},
            {
                "step_id": 2,
                "source": "agent",
                "message": "I hear.",
                "tool_calls": [
                    {"tool_call_id": "c", "function_name": "play", "arguments": {}, "extra": {"retries": 1}}
                ],
                "observation": {"results": [{"source_call_id": "c", "content": [audio], "extra": {"score": 1}}]},
                "llm_call_count": 2,
            },
        ],
    }
    (exp,) = atif.FORMAT.read(trajectory, Origin("trajectory.json"), Options())
    assert exp.prompt[0].content == [{"type": "text", "text": "Listen."}, audio]
    assert exp.completion[1].content == [audio]
    assert exp.completion[1].tool_call_id == "c"


def test_a_job_folder_of_harbor_gives_its_trajectories_with_their_rewards(tmp_path):
    trial = tmp_path / "knot__abc"
    (trial / "agent").mkdir(parents=True)
    result = {
        "task_name": "knot",
        "trial_name": "knot__abc",
        "agent_info": {},
        "verifier_result": {"rewards": {"reward": 1.0}},
    }
    (trial / "result.json").write_text(json.dumps(result))
    (tmp_path / "result.json").write_text(json.dumps({"n_total_trials": 1, "stats": {}}))
    (trial / "agent" / "trajectory.json").write_text((FIXTURES / "atif.json").read_text())
    _, (exp, *_), rejected = read_path(trial / "agent" / "trajectory.json")
    assert (exp.eid.task, exp.reward, rejected) == ("knot", 1.0, [])
    # The results are valid, but are not experiences.
    assert read_path(trial / "result.json") == ("atif", [], [])
    assert read_path(tmp_path / "result.json") == ("atif", [], [])
    (trial / "agent" / "trajectory.json").unlink()
    _, _, (refused,) = read_path(trial / "result.json")
    assert "without a trajectory" in refused.reason

"""NAT intermediate steps: scored candidates and trajectories."""

import json
from pathlib import Path
from typing import Any

import pytest
from mutations import survives

from pairwright.records.experience import Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import nat
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected

FIXTURE = Path(__file__).parent / "fixtures" / "nat.json"
PROMPT = (Message("system", "Play."), Message("user", "Board: X"))


def load() -> Any:
    return json.loads(FIXTURE.read_text())


def read(value: Any, **options: str) -> tuple[list[Experience], list[Rejected]]:
    results = list(nat.FORMAT.read(value, Origin("steps.jsonl"), Options(**options)))
    return [r for r in results if isinstance(r, Experience)], [r for r in results if isinstance(r, Rejected)]


def end(name: str = "pick", uuid: str = "u", **data: Any) -> dict[str, Any]:
    return {"parent_id": "p", "payload": {"event_type": "TTC_END", "name": name, "UUID": uuid, "data": data}}


def test_candidates_are_experiences_with_their_own_prompt_output_score_and_turn() -> None:
    (first, second, third), rejected = read(load()[:1])
    assert rejected == []
    assert first.prompt == second.prompt == PROMPT
    assert first.completion == (Message("assistant", None, tool_calls=(ToolCall("move", '{"to":  3}', "c1"),)),)
    assert second.completion == (Message("assistant", ""),)
    assert third.messages == (Message("user", "Board: XO"), Message("assistant", "5"))
    assert first.tools == second.tools == ({"type": "function", "function": {"name": "move"}},)
    assert [one.reward for one in (first, second, third)] == [0.9, 0.1, None]
    assert {one.eid.task for one in (first, second, third)} == {"game-1"}
    assert [one.eid.step for one in (first, second, third)] == [0, 0, 1]
    assert first.eid.sid == second.eid.sid
    assert first.info == {
        "step_name": "pick", "uuid": "u1", "turn_id": "t0", "turn_index": 0, "candidate_index": 0,
        "metadata": {"is_selected": True},
    }  # fmt: skip


def test_an_item_without_candidates_is_a_trajectory_of_its_calls_and_tools() -> None:
    (one,), rejected = read(load()[1:])
    assert rejected == []
    assert one.prompt == (Message("user", "Weather?"),)
    assert one.completion == (
        Message("assistant", "", tool_calls=(ToolCall("sky", '{"at":"Bonn"}', "c1"),)),
        Message("tool", "Error: fog", tool_call_id="c1"),
        Message("assistant", "Rain."),
    )
    assert one.errors == (ErrorSite(2, "tool_error", "Error: fog", "sky", "c1", ("sky",)),)
    assert (one.eid.task, one.reward, one.metrics) == ("game-2", 0.5, {"input_tokens": 4, "output_tokens": 2})


def test_a_file_of_bare_steps_is_one_item_whose_task_is_its_prompt() -> None:
    found, _ = read(load()[0]["intermediate_steps"])
    assert [one.reward for one in found] == [0.9, 0.1, None]
    assert found[0].eid.task == found[1].eid.task != "game-1"


@pytest.mark.parametrize(
    ("output", "content", "empty"),
    [(None, "", "null"), ("", "", None), (0, "0", None), (False, "false", None), ([], "", "[]"), ({}, "{}", None),
     ({"move": [1]}, '{"move":[1]}', None), ([1, 2], "[1,2]", None), ({"output": "5"}, "5", None)],
)  # fmt: skip
def test_odd_outputs_are_kept_as_what_they_are(output: Any, content: str, empty: str | None) -> None:
    (one,), _ = read([end(input="go", output=output, score=1)])
    assert one.completion == (Message("assistant", content),)
    assert one.info.get("empty_output") == empty
    assert one.reward == 1.0


@pytest.mark.parametrize("points", [None, "high", [], {}])
def test_a_candidate_without_a_number_is_kept_unscored(points: Any) -> None:
    (one,), _ = read([end(input="go", output="x", score=points)])
    assert one.reward is None


def test_turns_are_told_apart_by_turn_id_and_numbers_do_not_collide() -> None:
    ends = [end(uuid=str(n), input="go", output=str(n), turn_id=turn, turn_index=i)
            for n, (turn, i) in enumerate([("a", 5), ("b", 5), ("a", 5), ("c", None), ("b", 9)])]  # fmt: skip
    assert [one.eid.step for one in read(ends)[0]] == [5, 6, 5, 7, 6]


def test_the_step_name_chooses_and_several_names_are_never_one_group() -> None:
    ends = [end("plan", "1", input="go", output="a", score=1), end("move", "2", input="go", output="b", score=0)]
    both, _ = read(ends)
    assert [one.info["step_name"] for one in both] == ["plan", "move"]
    assert both[0].eid.sid != both[1].eid.sid
    (chosen,), rejected = read(ends, step_name="move")
    assert (chosen.completion[0].content, rejected) == ("b", [])
    none, (reason,) = read(ends, step_name="other")
    assert none == []
    assert "no TTC_END event named 'other'; there are 'plan', 'move'" in reason.reason


def test_an_item_that_comes_twice_is_two_runs() -> None:
    found, _ = read([load()[0], load()[0]])
    assert [one.eid.run for one in found] == [0, 0, 0, 1, 1, 1]
    assert len({one.eid.uid for one in found}) == 6


def test_a_refused_item_is_a_run_too() -> None:
    bad = {**load()[0], "intermediate_steps": 4}
    found, rejected = read([bad, load()[0]])
    assert (len(rejected), {one.eid.run for one in found}) == (1, {1})


def test_tools_that_are_not_a_list_are_refused() -> None:
    item = load()[1]
    item["intermediate_steps"][0]["payload"]["metadata"]["tools_schema"] = {"name": "sky"}
    found, rejected = read([item])
    assert found == []
    assert "tools_schema: expected a list" in rejected[0].reason


def test_a_candidate_that_never_ended_and_a_step_without_payload_are_rejected() -> None:
    steps = load()[0]["intermediate_steps"]
    del steps[2]
    found, rejected = read([*steps, 7])
    assert len(found) == 2
    assert ["no payload" in rejected[0].reason, "has no TTC_END" in rejected[1].reason] == [True, True]


def test_one_bad_item_does_not_spoil_the_others() -> None:
    found, (rejected,) = read([load()[0], {"id": 3, "intermediate_steps": 4}, load()[1]])
    assert len(found) == 4
    assert rejected.reason == "item 1: intermediate_steps: expected a list, got a number"


def test_without_any_events_the_answer_is_the_completion() -> None:
    (one,), _ = read([{"id": 0, "question": "2+2?", "generated_answer": "4", "intermediate_steps": []}])
    assert one.messages == (Message("user", "2+2?"), Message("assistant", "4"))
    assert one.eid.task == 0
    with pytest.raises(BadRecord, match="no TTC_END and no LLM_END"):
        read([])


def test_other_files_are_not_claimed() -> None:
    for other in (
        None,
        [],
        {},
        [{}],
        {"payload": {}},
        [{"payload": {"type": "x"}, "type": "response_item"}],
        {"steps": []},
    ):
        assert not nat.matches(other)


def test_no_broken_file_raises_anything_but_our_errors() -> None:
    assert survives(nat.FORMAT, load()) > 1000
    assert survives(nat.FORMAT, load()[0]["intermediate_steps"]) > 1000


@pytest.mark.parametrize(("name", "task"), [("intermediate_steps_ttc.jsonl", None), ("workflow_output.json", "0")])
def test_real_files_are_read_whole(traces: Path, name: str, task: str | None) -> None:
    text = (traces / "nat_intermediate_steps" / name).read_text()
    value = [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else json.loads(text)
    assert nat.matches(value)
    found, rejected = read(value, step_name="dpo_candidate_move")
    assert rejected == []
    assert [one.reward for one in found] == [0.8, 0.35, 0.35, 0.1] * 2
    assert [one.eid.step for one in found] == [0] * 4 + [1] * 4
    assert all(len(one.prompt) == 2 and len(one.completion) == 1 for one in found)
    assert len({one.eid.tid for one in found}) == 1
    assert task is None or found[0].eid.task == task

"""ATIF trajectories: steps become messages, the sibling result gives the reward."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mutations import broken, survives

from pairwright.errors import PairwrightError
from pairwright.records.experience import Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import atif
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected

FIXTURE = Path(__file__).parent / "fixtures" / "atif.json"
RESULT = {
    "task_name": "plant", "trial_name": "plant__x1", "verifier_result": {"rewards": {"reward": 0.5, "speed": "0.9"}},
}  # fmt: skip


def load() -> Any:
    return json.loads(FIXTURE.read_text())


def read(value: Any, file: Path | str = "nowhere/trajectory.json", **options: str) -> list[Experience]:
    results = list(atif.FORMAT.read(value, Origin(str(file)), Options(**options)))
    assert not any(isinstance(result, Rejected) for result in results)
    return [result for result in results if isinstance(result, Experience)]


def trial(folder: Path, result: Any = RESULT, *, inside: str = "agent") -> Path:
    """The path of a trajectory in a trial's folder, with result.json as Harbor lays it out."""
    (folder / inside).mkdir(exist_ok=True)
    (folder / "result.json").write_text(result if isinstance(result, str) else json.dumps(result))
    return folder / inside / "trajectory.json"


def test_a_trajectory_is_read_with_parts_reasoning_calls_and_matched_results() -> None:
    one = read(load())[0]
    image = {"type": "image", "source": {"media_type": "image/png", "path": "seed.png"}}
    assert one.prompt == (
        Message("system", "You garden."),
        Message("user", [{"type": "text", "text": "Plant this."}, image]),
        Message("assistant", "An earlier answer.", generated=False, extra={"is_copied_context": True}),
    )
    calls = (ToolCall("dig", '{"deep":1}', "c1"), ToolCall("sing", "{}", "c2"))
    reference = {"subagent_trajectory_ref": [{"session_id": "s-2"}]}
    assert one.completion == (
        Message("assistant", "", reasoning="Dig twice.", tool_calls=calls),
        Message("tool", "no such tool", tool_call_id="c2", extra={"is_error": True}),
        Message("tool", [{"type": "text", "text": "stone"}], tool_call_id="c1", extra={"exit_code": 2}),
        Message("assistant", "Planted.", tool_calls=(ToolCall("dig", '{"deep":2}', "c3"),)),
        Message("tool", None, tool_call_id="c3", extra=reference),
    )
    assert one.errors == (
        ErrorSite(3, "unknown_tool", "no tool named 'sing'", "sing", "c2", ("dig",)),
        ErrorSite(4, "tool_error", "no such tool", "sing", "c2", ("dig",)),
        ErrorSite(5, "nonzero_exit", "stone", "dig", "c1", ("dig",)),
    )
    assert one.info == {"agent": {"name": "gardener", "version": "2"}, "session_id": "s-1", "trajectory_id": "tr-1"}
    assert (one.model_version, one.metrics, one.reward) == ("m-6", {"total_prompt_tokens": 7}, None)


def test_a_result_that_says_error_is_an_error_site_without_a_mark() -> None:
    value = load()
    value["steps"][4]["observation"]["results"][0]["content"] = "Error: the spade broke"
    assert ErrorSite(7, "tool_error", "Error: the spade broke", "dig", "c3", ("dig",)) in read(value)[0].errors


def test_a_subagent_inside_the_file_is_an_experience_of_the_same_run() -> None:
    main, mole = read(load())
    assert mole.prompt == (Message("user", "Dig."),)
    assert mole.completion == (Message("assistant", "$ dig"), Message("user", "done"))
    assert (mole.eid.run, mole.eid.step, main.eid.step) == (main.eid.run, 1, 0)
    assert mole.info["parent_session_id"] == "s-1"


def test_recorded_tokens_are_kept_where_the_steps_continue_one_another() -> None:
    one = read(load())[0]
    assert one.tokens is not None
    assert one.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert one.prompt_length == 2
    assert one.action_mask is not None
    assert one.action_mask.tolist() == [True, True, False, True]
    assert one.logprobs is not None
    assert one.logprobs.tolist() == [-0.5, -0.25, 0.0, -1.0]
    broken = load()
    broken["steps"][4]["metrics"]["prompt_token_ids"] = [9, 9]
    one = read(broken)[0]
    assert one.tokens is None
    assert one.info["tokens_dropped"] == "the prompt of a step does not continue the steps before it"
    del broken["steps"][4]["metrics"]
    assert read(broken)[0].info["tokens_dropped"] == "not every step of the agent has valid token ids"


@pytest.mark.parametrize("inside", ["agent", "."])
def test_the_reward_and_task_are_those_of_the_result_beside_or_above(tmp_path: Path, inside: str) -> None:
    one = read(load(), trial(tmp_path, inside=inside))[0]
    assert (one.eid.task, one.reward) == ("plant", 0.5)
    assert one.reward_components == {"reward": 0.5, "speed": "0.9"}
    assert one.info["trial_name"] == "plant__x1"
    assert read(load(), trial(tmp_path, inside=inside), reward="speed")[0].reward == 0.9


def test_the_only_component_is_the_reward_and_two_unnamed_ones_are_not(tmp_path: Path) -> None:
    def reward(rewards: Any) -> float | None:
        return read(load(), trial(tmp_path, {"verifier_result": {"rewards": rewards}}))[0].reward

    assert reward({"passed": True}) == 1.0
    assert reward({"a": 1, "b": 0}) is None
    assert reward(None) is None
    assert reward(0.25) == 0.25


def test_two_trials_of_a_task_are_two_runs_and_a_continuation_is_the_same_run(tmp_path: Path) -> None:
    first = read(load(), trial(tmp_path))[0]
    second = read(load(), trial(tmp_path, {**RESULT, "trial_name": "plant__x2"}))[0]
    assert first.eid.tid == second.eid.tid
    assert first.eid.rid != second.eid.rid
    continued = load()
    continued["agent"]["extra"] = {"continuation_index": 1}
    again = read(continued, trial(tmp_path))[0]
    assert (again.eid.rid, again.eid.step) == (first.eid.rid, 1)


def test_the_exception_that_ended_a_trial_is_an_error_site(tmp_path: Path) -> None:
    raised = {"exception_type": "AgentTimeoutError", "exception_message": "after 60 s"}
    one = read(load(), trial(tmp_path, {**RESULT, "exception_info": raised}))[0]
    assert one.errors[-1] == ErrorSite(7, "timeout", "after 60 s", meta={"exception_type": "AgentTimeoutError"})


def test_a_result_that_cannot_be_read_leaves_a_note_and_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = read(load(), trial(tmp_path, "{torn"))[0]
    assert one.reward is None
    assert one.info["result_json"].startswith("not readable")
    assert read(load(), trial(tmp_path, "[]"))[0].info["result_json"] == "not readable: not an object"
    monkeypatch.setattr(atif, "MAX_RESULT_BYTES", 10)
    assert read(load(), trial(tmp_path))[0].info["result_json"] == "not read: larger than 10 bytes"


def test_a_result_that_is_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text(json.dumps(RESULT))
    path = trial(tmp_path)
    (tmp_path / "result.json").unlink()
    (tmp_path / "result.json").symlink_to(tmp_path / "elsewhere.json")
    assert read(load(), path)[0].reward is None


def test_steps_that_no_model_wrote_are_not_generated() -> None:
    value = load()
    value["steps"][3]["llm_call_count"] = 0
    one = read(value)[0]
    assert [message.is_generated for message in one.messages if message.role == "assistant"] == [False, False, True]
    for step in value["steps"]:
        step["is_copied_context"] = True
    with pytest.raises(BadRecord, match="no answer of the model"):
        read(value)


def test_other_files_are_not_claimed() -> None:
    for other in (None, [], {}, {"steps": []}, {"schema_version": "1.7", "steps": []}, {"schema_version": "ATIF-v1.7"}):
        assert not atif.matches(other)


def test_no_broken_file_raises_anything_but_our_errors(tmp_path: Path) -> None:
    assert survives(atif.FORMAT, load(), str(trial(tmp_path))) > 1000


def test_no_broken_result_raises_anything_but_our_errors(tmp_path: Path) -> None:
    value = load()
    for mutant in broken({**RESULT, "task_id": {"path": "x"}, "exception_info": {"exception_type": "E"}}):
        (tmp_path / "result.json").write_text(json.dumps(mutant))
        with suppress(PairwrightError):
            list(atif.FORMAT.read(value, Origin(str(tmp_path / "t.json")), Options()))


COUNTS = {
    "exmp01_atif.json": (4, 5, 0),
    "exmp03_atif.json": (2, 3, 0),
    "exmp05_atif.json": (1, 4, 1),
    "openhands_hello-world.trajectory.json": (4, 7, 2),
    "terminus_2_hello-world-context-summarization-linear-history.trajectory.cont-1.json": (4, 12, 0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_trajectories_are_read_whole(traces: Path, name: str) -> None:
    path = traces / "atif" / name
    value = json.loads(path.read_text())
    assert atif.matches(value)
    (one,) = read(value, path)
    calls = sum(len(message.tool_calls) for message in one.messages)
    assert (len(one.prompt), len(one.messages), calls) == COUNTS[name]
    assert one.errors == ()
    assert one.reward is None

"""NeMo Gym rollouts: a hand-written file, the real samples, and invalid rows."""

import json
from pathlib import Path

import pytest

from pairwright.errors import PairwrightError
from pairwright.records.experience import Kind
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin
from pairwright.sources.rollouts.nemo_gym import FORMAT

DEFAULTS = Options()
FIXTURE = Path(__file__).parent / "fixtures" / "nemo_gym.jsonl"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "nemo_gym"


def read_file(path, options=DEFAULTS):
    lines = path.read_text().splitlines()
    return [
        experience
        for ordinal, line in enumerate(lines)
        for experience in FORMAT.read(json.loads(line), Origin(str(path), ordinal + 1, ordinal), options)
    ]


def read_row(row, options=DEFAULTS):
    (experience,) = FORMAT.read(row, Origin("rollouts.jsonl", 1, 0), options)
    return experience


def rollout(**changes):
    return {"responses_create_params": {"input": "Hi"}, "output": [{"role": "assistant", "content": "Yo"}], **changes}


def test_a_rollout_is_read_whole():
    first = read_file(FIXTURE)[0]
    assert first.prompt == (Message("system", "You sell boats."), Message("user", "Is the red boat in stock?"))
    assert first.completion == (
        Message(
            "assistant", reasoning="Check the stock.", tool_calls=(ToolCall("stock", '{"item": "red boat"}', "c1"),)
        ),
        Message("tool", '{"error": "request timed out"}', tool_call_id="c1"),
        Message("assistant", "I cannot tell."),
    )  # fmt: skip
    assert [tool["name"] for tool in first.tools] == ["stock"]
    assert (first.eid.batch, first.eid.task, first.eid.run, first.eid.step) == ("nemo_gym", '["shop/1",7]', 2, 0)
    assert (first.reward, first.reward_components) == (-100.0, {"format": 1, "answer": -101.0})
    assert first.info == {
        "mask_sample": True, "_ng_failure_class": "tool", "verdict": "bad", "metadata": {"shop": "north"},
    }  # fmt: skip
    assert (first.kind, first.model_version, first.truncate_status) == (Kind.MULTI_TURN, "sailor-1", None)
    assert first.errors == (
        ErrorSite(
            index=3, kind="timeout", text='{"error": "request timed out"}', tool="stock", call_id="c1",
            available_tools=("stock",),
        ),
    )  # fmt: skip
    assert (first.source.line, first.source.format) == (1, "nemo-gym")


def test_recorded_tokens_are_kept_with_the_mask_of_what_was_generated():
    first = read_file(FIXTURE)[0]
    assert first.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert first.prompt_length == 3
    assert first.action_mask.tolist() == [True, True, False, True]
    assert first.logprobs.tolist() == [-0.5, -0.25, 0.0, -1.0]


def test_leading_turns_of_the_output_are_prompt_and_later_ones_stay_in_the_completion():
    second = read_file(FIXTURE)[1]
    assert second.prompt == (Message("system", "Be brief."), Message("user", "Hi"))
    assert [message.role for message in second.completion] == ["assistant", "user", "assistant"]
    assert [call.id for call in second.completion[0].tool_calls] == ["a", "a"]
    assert (second.reward, second.truncate_status, second.eid.run) == (0.5, "response_truncated", 1)


def test_nested_output_and_a_missing_reward_are_kept():
    third = read_file(FIXTURE)[2]
    assert third.prompt == (Message("user", "What is 2+2?"),)
    assert third.completion == (Message("assistant", "4"),)
    assert (third.kind, third.reward) == (Kind.SINGLE_TURN, None)


def test_a_failed_rollout_without_output_is_kept_with_the_task_of_its_prompt():
    third, fourth = read_file(FIXTURE)[2:4]
    assert (fourth.completion, fourth.reward, fourth.info) == ((), None, {"_ng_failure_class": "server"})
    assert fourth.eid.task == third.eid.task


def test_a_reward_profile_is_its_sample_with_the_statistics_as_metrics():
    profile = read_file(FIXTURE)[4]
    assert profile.prompt == (Message("user", "Click."),)
    assert (profile.reward, profile.metrics) == (None, {"mean/reward": 0.25, "max/reward": 1.0})
    assert profile.info == {"target": "red"}


def test_metadata_tells_tasks_with_equal_prompts_apart():
    params = {"input": "Hi", "metadata": {"level": 1}}
    one = read_row(rollout(responses_create_params=params))
    other = read_row(rollout(responses_create_params={**params, "metadata": {"level": 2}}))
    assert one.eid.task != other.eid.task


@pytest.mark.parametrize(
    "changes, name, expected",
    [
        ({"reward": True}, None, 1.0),
        ({"reward": {"reward": 2, "style": 1}}, None, 2.0),
        ({"reward": {"style": 1, "speed": 3}}, None, None),
        ({"reward": 1.0, "reward_components": {"style": 0.5}}, "style", 0.5),
        ({"reward": 1.0, "rmsle": 0.25}, "rmsle", 0.25),
        ({"reward": 1.0}, "absent", None),
        ({"reward": float("-inf")}, None, float("-inf")),
        ({"reward_components": {"score": 3}}, None, 3.0),
    ],
)
def test_rewards_of_every_shape(changes, name, expected):
    assert read_row(rollout(**changes), Options(reward=name)).reward == expected


def test_a_call_of_a_tool_that_does_not_exist_is_an_error_site():
    output = [{"type": "function_call", "call_id": "a", "name": "fly", "arguments": "{}"}]
    tools = [{"type": "function", "name": "walk", "parameters": {}}]
    row = rollout(output=output, responses_create_params={"input": "Go", "tools": tools})
    (site,) = read_row(row).errors
    assert (site.kind, site.tool, site.index, site.available_tools) == ("unknown_tool", "fly", 1, ("walk",))


@pytest.mark.parametrize(
    "text, kind",
    [
        ('{"detail":"Not Found"}', "tool_error"),
        ("Error: no such file: a.txt", "file_not_found"),
        ("Traceback (most recent call last):\n  ...", "exception"),
        ('{"output":"Error executing tool"}', "tool_error"),
        ('{"error": null, "rows": []}', None),
        ('{"detail": "oak", "price": 3}', None),
        ("The error rate is 3%", None),
    ],
)
def test_failures_are_told_from_what_a_result_begins_with(text, kind):
    output = [{"type": "function_call_output", "call_id": "a", "output": text}]
    assert [site.kind for site in read_row(rollout(output=output)).errors] == ([kind] if kind else [])


def generated(prompt, ids, **more):
    return {"role": "assistant", "content": "x", "prompt_token_ids": prompt, "generation_token_ids": ids, **more}


USER = {"role": "user", "content": "more"}


@pytest.mark.parametrize(
    "output, reason",
    [
        ([generated([1], [2]), USER, generated([9], [3])], "a turn's prompt does not continue the tokens before it"),
        ([generated([1], [2]), USER, {"role": "assistant", "content": "x"}], "some turns have no token ids"),
        ([generated([1], ["two"])], "token fields that are not lists of token ids"),
        ([generated([1], [2], generation_log_probs=[10**400])], "a log-probability that is not a number of 64 bits"),
    ],
)
def test_tokens_that_make_no_sequence_are_dropped_with_the_reason(output, reason):
    experience = read_row(rollout(output=output))
    assert (experience.tokens, experience.info["tokens_dropped"]) == (None, reason)


def test_token_fields_that_are_empty_drop_nothing():
    experience = read_row(rollout(output=[generated([], [], generation_log_probs=[])]))
    assert (experience.tokens, experience.info) == (None, {})


def test_large_fields_are_named_but_not_kept():
    assert read_row(rollout(rubric="x" * 5000, seed=3)).info == {"seed": 3, "not_read": ["rubric"]}


def test_a_task_that_was_never_rolled_out_is_refused():
    row = {"responses_create_params": {"input": "Hi"}, "verifier": {}}
    assert not FORMAT.matches(row)
    with pytest.raises(BadRecord, match="a task for rollouts"):
        read_row(row)


JUNK = [
    None,
    True,
    3,
    2.5,
    "x",
    "\ud800",
    [],
    [None],
    [[[]]],
    {},
    {"a": "\ud800"},
    {"type": 1},
    [{"type": "message"}],
    10**400,
]
KEYS = ["responses_create_params", "response", "output", "reward", "reward_components", "agent_ref", "_ng_task_index",
        "_ng_rollout_index", "sample", "other"]  # fmt: skip


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_no_value_anywhere_makes_another_exception_escape(junk):
    params = {"input": "Hi"}
    rows = [junk, *({**rollout(), key: junk} for key in KEYS)]
    rows += [
        rollout(responses_create_params={**params, key: junk}) for key in ("input", "tools", "instructions", "metadata")
    ]
    rows += [
        rollout(response={key: junk}) for key in ("output", "tools", "model", "instructions", "incomplete_details")
    ]
    rows += [rollout(output=[{**generated([1], [2]), key: junk}]) for key in ("role", "content", "prompt_token_ids")]
    rows += [{"sample": {"responses_create_params": params, "output": junk}, "mean/reward": junk}]
    for row in rows:
        FORMAT.matches(row)
        try:
            list(FORMAT.read(row, Origin("f.jsonl", 1, 0), Options()))
        except PairwrightError:
            continue


@pytest.mark.parametrize(
    "name, messages, calls, errors, unscored",
    [
        ("circle_click__example_rollouts_reward_profiling", 10, 0, 0, 5),
        ("gdpval__example_rollouts", 157, 147, 0, 0),
        ("newton_bench__example_rollouts", 71, 28, 0, 0),
        ("openair_congestion__example_rollouts", 15, 5, 0, 0),
        ("workplace_assistant__example_rollouts", 31, 8, 0, 0),
        ("xlam_fc__example_rollouts", 26, 6, 6, 0),
    ],
)
def test_real_rollouts_are_read_completely(name, messages, calls, errors, unscored):
    if not SAMPLES.is_dir():
        pytest.skip("the sample traces are not on this machine")
    path = SAMPLES / f"{name}.jsonl"
    experiences = read_file(path)
    assert len(experiences) == 5
    assert all(FORMAT.matches(json.loads(line)) for line in path.read_text().splitlines())
    assert sum(len(experience.messages) for experience in experiences) == messages
    assert sum(len(message.tool_calls) for experience in experiences for message in experience.messages) == calls
    assert sum(len(experience.errors) for experience in experiences) == errors
    assert sum(not experience.is_scored for experience in experiences) == unscored
    assert all([m.role for m in experience.prompt] == ["system", "user"] for experience in experiences)


CALL = {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"}


@pytest.mark.parametrize("tools", [[], [{"type": "function", "name": "look", "parameters": {}}]])
@pytest.mark.parametrize("last", [{"role": "assistant", "content": "Sorry"}, CALL])
def test_what_failed_in_the_prompt_is_an_error_site_whatever_the_answer_is(tools, last):
    history = [
        {"role": "user", "content": "?"},
        CALL,
        {"type": "function_call_output", "call_id": "c", "output": "Error: x"},
    ]
    row = {"responses_create_params": {"input": history, "tools": tools}, "response": {"output": [last]}, "reward": 1}
    assert [(site.index, site.kind, site.tool) for site in read_row(row).errors] == [(2, "tool_error", "look")]

"""verifiers: rows of results, and message graphs with their tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
from mutations import survives

from pairwright import Message, ToolCall
from pairwright.records.messages import turn_reward_of
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.reading import detect, read_file
from pairwright.sources.rollouts.verifiers_results import FORMAT as RESULTS
from pairwright.sources.rollouts.verifiers_traces import FORMAT as TRACES

FIXTURES = Path(__file__).parent / "fixtures"


def rows(name):
    return [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]


def read(form, row, **options):
    return list(form.read(row, Origin("r.jsonl", 1, 0), Options(**options)))


def test_a_row_is_read_with_its_calls_tools_metrics_and_tokens():
    (run,) = read(RESULTS, rows("verifiers_results.jsonl")[0])
    assert (run.eid.task, run.reward, run.reward_components) == ("boats/3", 0.5, {"exact": 0.0, "polite": 1.0})
    assert [message.role for message in run.prompt] == ["system", "user"]
    assert run.completion[0].tool_calls == (ToolCall("rent", '{"day":  "Friday"}', "c1"),)
    assert [(site.index, site.tool) for site in run.errors] == [(3, "rent")]
    assert run.tools[0]["function"] == {
        "name": "rent",
        "description": "Rents a boat.",
        "parameters": {"type": "object"},
    }
    assert (run.info["answer"], run.info["level"], run.info["stop_condition"]) == ("none", 2, "done")
    assert run.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert run.prompt_length == 3
    assert run.action_mask.tolist() == [True, False, False, True]
    assert run.logprobs.tolist() == [-0.5, -0.25, 0.0, -1.0]
    (other,) = read(RESULTS, rows("verifiers_results.jsonl")[0], reward="polite")
    assert other.reward == 1.0


def test_the_older_id_counts_rows_and_names_no_task():
    first, second = (read(RESULTS, row)[0] for row in rows("verifiers_results.jsonl")[1:3])
    assert first.eid.tid != second.eid.tid
    assert first.reward_components == {"correct": 1.0}


def test_raw_text_is_not_wrapped_into_a_chat():
    (run,) = read(RESULTS, rows("verifiers_results.jsonl")[3])
    assert run.prompt == (Message("text", "Once"),)
    assert run.completion == (Message("text", " upon a time", generated=True),)
    assert run.truncate_status == "response_truncated"


def test_a_completion_that_begins_with_the_prompt_does_not_repeat_it():
    row = rows("verifiers_results.jsonl")[1]
    expected = read(RESULTS, row)[0]
    (run,) = read(RESULTS, {**row, "completion": [{**row["prompt"][0], "tool_calls": None}, *row["completion"]]})
    assert (run.prompt, run.completion, run.eid.tid) == (expected.prompt, expected.completion, expected.eid.tid)
    hint = {"role": "user", "content": "Think first."}
    (run,) = read(RESULTS, {**row, "completion": [hint, *row["completion"]]})
    assert (run.prompt, run.completion) == ((*expected.prompt, Message("user", "Think first.")), expected.completion)


def test_tokens_that_were_rendered_anew_are_dropped_with_the_reason():
    row = rows("verifiers_results.jsonl")[0]
    row["trajectory"][1]["tokens"]["prompt_ids"][0] = 9
    (run,) = read(RESULTS, row)
    assert run.tokens is None
    assert "does not continue" in run.info["tokens_dropped"]


def test_each_path_of_a_graph_is_an_experience_with_its_tokens():
    first, second = read(TRACES, rows("verifiers_traces.jsonl")[0])
    assert (first.eid.task, first.eid.run, first.eid.step, second.eid.step) == ("k3", second.eid.run, 0, 1)
    assert first.prompt == second.prompt == (Message("user", "A boat?"),)
    assert first.completion[0] == Message(
        "assistant", None, "rent it", tool_calls=(ToolCall("rent", '{"day":  1}', "c1"),)
    )
    assert [message.is_generated for message in first.completion] == [True, False, True]
    assert [message.text for message in second.completion] == ["No boat."]
    assert (first.reward, first.reward_components, first.metrics) == (
        1.0,
        {"rented": 1.0, "polite": 0.5},
        {"turns": 2.0},
    )
    assert (first.truncate_status, second.truncate_status) == ("response_truncated", None)
    # 1 2 | 3 is the generation prompt, and the model wrote 4 5; then 6 of the tool, 7 of the template, and 8.
    assert (first.tokens.tolist(), first.prompt_length) == ([1, 2, 3, 4, 5, 6, 7, 8], 3)
    assert first.action_mask.tolist() == [True, True, False, False, True]
    np.testing.assert_array_equal(first.logprobs, np.float32([-0.5, -0.25, 0, 0, -1.5]))
    np.testing.assert_array_equal(first.advantages, np.float32([0.5, 0.5, 0, 0, 0.25]))
    assert (second.tokens.tolist(), second.prompt_length, second.logprobs.tolist()) == ([1, 2, 3, 9], 3, [-2.0])


def test_a_turn_that_an_earlier_path_has_is_context():
    row = rows("verifiers_traces.jsonl")[0]
    row["traces"][0]["nodes"][4]["parent"] = 2  # after the first answer and its tool result
    first, second = read(TRACES, row)
    assert [message.is_generated for message in second.completion] == [False, False, True]
    assert second.prompt == first.prompt
    assert second.action_mask.tolist() == [False, False, False, False, True]
    assert second.logprobs.tolist() == [-0.5, -0.25, 0.0, 0.0, -2.0]


def test_a_reward_that_was_never_computed_leaves_the_trace_unscored():
    row = rows("verifiers_traces.jsonl")[0]
    row["traces"][0]["rewards"]["polite"] = None
    assert read(TRACES, row)[0].reward is None
    assert read(TRACES, row, reward="rented")[0].reward == 1.0


def test_an_episode_without_traces_is_refused_with_its_error():
    with pytest.raises(BadRecord, match="ProviderError: overloaded"):
        read(TRACES, rows("verifiers_traces.jsonl")[1])


def test_a_parent_after_its_child_is_refused():
    row = rows("verifiers_traces.jsonl")[0]
    row["traces"][0]["nodes"][1]["parent"] = 3
    (rejected,) = read(TRACES, row)
    assert isinstance(rejected, Rejected)
    assert "expected a node before it" in rejected.reason


def test_no_broken_row_raises_anything_else():
    assert survives(RESULTS, rows("verifiers_results.jsonl")[0]) > 500
    assert survives(TRACES, rows("verifiers_traces.jsonl")[0]) > 500


@pytest.mark.parametrize(
    ("name", "num_runs", "num_turns", "num_calls", "num_tasks"),
    [
        ("traces_new/verifiers/3bd2_results.jsonl", 3, 6, 3, 1),
        ("traces_new/verifiers/45ee_results.jsonl", 1, 85, 0, 1),
        ("traces_new/verifiers/5a89_results.jsonl", 4, 4, 0, 2),
        ("traces_new/verifiers/6802_results.jsonl", 1, 10, 0, 1),
        ("traces_new/verifiers/results.jsonl", 3, 255, 0, 1),
        ("repro/verifiers_results.jsonl", 15, 45, 30, 5),
        ("repro/ux/verifiers_results.jsonl", 3, 3, 0, 1),
    ],
)
def test_the_real_files_read(traces, name, num_runs, num_turns, num_calls, num_tasks):
    path = traces.parent / name
    layout = detect(path)
    assert layout.format == "verifiers"
    runs = list(read_file(path, layout, Options()))
    assert (len(runs), len({run.eid.tid for run in runs})) == (num_runs, num_tasks)
    messages = [message for run in runs for message in run.completion]
    assert sum(message.is_generated for message in messages) == num_turns
    assert sum(len(message.tool_calls) for message in messages) == num_calls


def test_rewards_of_steps_are_those_of_their_turns():
    row = {
        "example_id": 1, "task": "t", "answer": "", "reward": 1.0, "prompt": [{"role": "user", "content": "q"}],
        "completion": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}],
        "trajectory": [{"reward": 0.5}, {"reward": -1}],
    }  # fmt: skip
    (run,) = read(RESULTS, row)
    assert [turn_reward_of(message) for message in run.completion] == [0.5, None, -1.0]
    # Which step is which turn is not known.
    (other,) = read(RESULTS, {**row, "trajectory": [{"reward": 0.5}]})
    assert [turn_reward_of(message) for message in other.completion] == [None] * 3

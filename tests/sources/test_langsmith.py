"""LangSmith runs: posts and patches are joined, traces become conversations with their feedback."""

import json
from pathlib import Path
from typing import Any

import pytest
from mutations import survives

from pairwright.records.experience import Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import READERS
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.tracing import span_formats

(LANGSMITH,) = READERS["langsmith"]
FIXTURE = Path(__file__).parent / "fixtures" / "langsmith.json"


def read(value: Any, **options: str) -> tuple[list[Experience], list[Rejected]]:
    results = list(LANGSMITH.read(value, Origin("runs.jsonl"), Options(**options)))
    return [r for r in results if isinstance(r, Experience)], [r for r in results if isinstance(r, Rejected)]


def load() -> Any:
    return json.loads(FIXTURE.read_text())


def runs() -> list[dict[str, Any]]:
    """The same trace as a list of whole runs, in any order."""
    return span_formats.LANGSMITH.rows(load())[::-1]


def test_batches_are_joined_to_a_trace_with_its_calls_results_feedback_and_errors() -> None:
    (one,), rejected = read(load())
    assert rejected == []
    assert one.prompt == (Message("system", "Add."), Message("user", "2+2?"))
    calls = (ToolCall("add", '{"a":2}', "c1"),)
    assert one.completion == (
        Message("assistant", "", tool_calls=calls, extra={"finish_reason": "tool_calls"}),
        Message("tool", "b is missing", tool_call_id="c1", extra={"status": "error"}),
        Message("assistant", "4"),
    )
    assert one.tools == ({"type": "function", "function": {"name": "add"}},)
    assert one.errors == (ErrorSite(3, "tool_error", "b is missing", "add", "c1", ("add",)),)
    assert (one.eid.task, one.eid.step, one.reward) == ("ex-5", 0, 1.0)
    assert one.reward_components == {"correct": 1.0}
    assert one.model_version == "m-5"
    assert one.info == {"name": "agent", "session": "exp-1", "trace_id": "r", "calls": ["l1", "l2"]}


def test_a_list_of_runs_in_any_order_and_a_tree_of_child_runs_read_the_same() -> None:
    expected = read(load())[0][0]
    assert read(runs())[0][0].messages == expected.messages
    by_id = {run["id"]: dict(run) for run in runs()}
    tree = {**by_id["r"], "child_runs": [by_id["l1"], by_id["t1"], by_id["l2"]]}
    assert read(tree)[0][0].messages == expected.messages
    assert read(tree)[0][0].eid == expected.eid


def test_feedback_names_its_run_and_counts_before_averages() -> None:
    listed = runs()
    root = next(run for run in listed if run["id"] == "r")
    root["feedback"] = [{"key": "correct", "score": 0.0}, {"key": "note", "value": "odd"}]
    (one,), _ = read(listed)
    assert (one.reward, one.reward_components) == (0.0, {"correct": 0.0, "note": "odd"})
    assert read(listed, reward="note")[0][0].reward is None


def test_a_failed_run_without_output_is_rejected_with_its_error() -> None:
    run = {"id": "x", "run_type": "llm", "inputs": {"messages": [{"role": "user", "content": "hi"}]}, "error": "Boom()"}
    found, (rejected,) = read(run)
    assert found == []
    assert "the model gave no output: Boom()" in rejected.reason


def test_choices_are_alternatives_of_one_step() -> None:
    choices = [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"} for text in "ab"]
    run = {"id": "x", "run_type": "llm", "inputs": {"messages": [{"role": "user", "content": "hi"}]},
           "outputs": {"choices": choices, "model": "m"}}  # fmt: skip
    found, _ = read([run])
    assert [one.completion[0].content for one in found] == ["a", "b"]
    assert len({one.eid.sid for one in found}) == 1


def test_without_llm_runs_the_root_is_the_call() -> None:
    (one,), _ = read({"id": "x", "run_type": "chain", "inputs": {"question": "2+2?"}, "outputs": {"answer": "4"}})
    assert one.messages == (Message("user", "2+2?"), Message("assistant", "4"))


def test_other_files_are_not_claimed() -> None:
    for other in (
        None,
        [],
        {},
        {"post": []},
        {"inputs": {}},
        {"messages": []},
        {"run_type": "llm"},
        [[]],
        {"post": [{}]},
    ):
        assert not LANGSMITH.matches(other)
    with pytest.raises(BadRecord, match="no spans"):
        read({"post": []})


def test_no_broken_file_raises_anything_but_our_errors() -> None:
    assert survives(LANGSMITH, load()) > 1000
    assert survives(LANGSMITH, runs()) > 1000


@pytest.mark.parametrize(
    "name", ["js_wrap_openai_default", "py_wrap_openai_", "py_wrap_openai_stream"]
)  # fmt: skip
def test_real_batches_are_read_whole(traces: Path, name: str) -> None:
    value = json.loads((traces / "langsmith" / f"langsmith_{name}.json").read_text())
    assert LANGSMITH.matches(value)
    (one,), rejected = read(value)
    assert rejected == []
    assert one.prompt == (Message("user", "howdy"),)
    assert one.completion == (
        Message("assistant", "Howdy! How can I assist you today?", extra={"finish_reason": "stop"}),
    )
    assert one.model_version == "gpt-4o-mini-2024-07-18"
    assert one.metrics == {"input_tokens": 9, "output_tokens": 9}
    assert one.reward is None

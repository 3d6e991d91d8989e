"""tau-bench: task, trial, the whole conversation, failed calls."""

import json
from pathlib import Path

import pytest
from mutations import survives

from pairwright import ErrorSite, Kind, Message, ToolCall
from pairwright.sources.agents.tau_bench import TAU_FORMAT
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin

FIXTURE = Path(__file__).parent / "fixtures" / "tau_bench.json"


def read(row, ordinal=0):
    (experience,) = TAU_FORMAT.read(row, Origin("t.json", None, ordinal), Options())
    return experience


def test_a_trajectory_is_read_whole():
    first, second = map(read, json.loads(FIXTURE.read_text()))
    assert (first.eid.task, first.eid.run, first.reward, first.kind) == (7, 2, 0.5, Kind.MULTI_TURN)
    assert first.prompt == (Message("system", "You rent boats."), Message("user", "A boat for Friday, please."))
    assert first.completion == (
        Message("assistant", None, tool_calls=(ToolCall("rent", '{"day":  "Friday"}', id="c1"),)),
        Message("tool", "Error: no boat left", tool_call_id="c1", name="rent"),
        Message("assistant", "None left on Friday."),
        Message("user", "Saturday, then. ###STOP###"),
    )
    assert [message.is_generated for message in first.completion] == [True, False, True, False]
    assert first.errors == (ErrorSite(3, "tool_error", "Error: no boat left", tool="rent", call_id="c1"),)
    assert first.info == {"source": "user", "loss": None}
    assert (second.eid.tid, second.eid.run, second.reward, second.kind) == (first.eid.tid, 3, 1.0, Kind.SINGLE_TURN)


def test_a_trajectory_without_an_answer_is_refused():
    with pytest.raises(BadRecord, match="no answer of the model"):
        read({"task_id": 1, "traj": [{"role": "user", "content": "hi"}]})


def test_no_broken_row_raises_anything_else():
    assert survives(TAU_FORMAT, json.loads(FIXTURE.read_text())[0]) > 500


def test_the_real_file_reads(traces):
    rows = json.loads((traces / "tau_bench" / "gpt-4o-airline-12-tasks.json").read_text())
    found = [read(row, number) for number, row in enumerate(rows)]
    assert len(found) == 48
    assert {(exp.eid.task, exp.eid.run) for exp in found} == {(task, run) for task in range(12) for run in range(4)}
    assert sum(len(message.tool_calls) for exp in found for message in exp.completion) == 343
    assert sum(len(exp.errors) for exp in found) == 31

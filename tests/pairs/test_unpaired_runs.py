"""Scored runs as labelled rows: the label, what is refused, and that they are read back as they were."""

import json

import pytest
from typer.testing import CliRunner

from pairwright.cli import app
from pairwright.errors import PairwrightError
from pairwright.export import ExportOptions, export_runs
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import Message, ToolCall
from pairwright.store.importing import import_traces
from pairwright.store.table import Table

CALL = Message("assistant", "", tool_calls=[ToolCall(id="1", name="clock", arguments='{"zone": "UTC"}')])
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


def make_table(folder, rewards=(1.0, 0.0, None, 0.4)):
    with Table(folder) as table:
        table.append(
            Experience(
                eid=EID(batch=0, task=number, run=0),
                kind="multi_turn",
                prompt=[Message("user", f"question {number}")],
                tools=[TOOL],
                completion=[CALL, Message("tool", "noon", tool_call_id="1"), Message("assistant", f"answer {number}")],
                reward=reward,
            )
            for number, reward in enumerate(rewards)
        )
    return folder


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_is_labelled_by_its_reward_and_an_unscored_one_is_refused(tmp_path):
    summary = export_runs(make_table(tmp_path / "runs"), tmp_path / "rows.jsonl", ExportOptions(), threshold=None)
    rows = rows_of(tmp_path / "rows.jsonl")
    assert [row["label"] for row in rows] == [True, False, False]
    assert (summary.pairs, summary.written, summary.refused) == (4, 3, {"unscored": 1})
    assert summary.noted == {"several_messages_a_side": 3, "arguments_as_text": 3}
    assert rows[0]["prompt"] == [{"role": "user", "content": "question 0"}]
    assert [message["role"] for message in rows[0]["completion"]] == ["assistant", "tool", "assistant"]
    assert json.loads(rows[0]["tools"]) == [TOOL]


def test_the_command_takes_a_threshold_and_says_runs(tmp_path):
    table = make_table(tmp_path / "runs")
    done = CliRunner().invoke(app, ["export", str(table), "--to", "trl-unpaired", "-o", str(tmp_path / "out.jsonl"), "--threshold", "0.3"])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "3 of 4 runs written" in done.output
    assert [row["label"] for row in rows_of(tmp_path / "out.jsonl")] == [True, False, True]
    other = CliRunner().invoke(app, ["export", str(table), "--to", "trl", "-o", str(tmp_path / "x.jsonl")])
    assert other.exit_code != 0
    assert not (tmp_path / "x.jsonl").exists()


def test_one_sided_labels_write_nothing(tmp_path):
    table = make_table(tmp_path / "runs", (1.0, 1.0))
    with pytest.raises(PairwrightError, match="all 2 scored runs have the reward 1"):
        export_runs(table, tmp_path / "rows.jsonl", ExportOptions(), threshold=None)
    assert not (tmp_path / "rows.jsonl").exists()


def test_labelled_rows_are_read_back(tmp_path):
    export_runs(make_table(tmp_path / "runs"), tmp_path / "rows.jsonl", ExportOptions(), threshold=None)
    import_traces(str(tmp_path / "rows.jsonl"), tmp_path / "again")
    runs = list(Table(tmp_path / "again").records())
    assert sorted(run.reward for run in runs) == [0.0, 0.0, 1.0]
    assert runs[0].completion[0].tool_calls[0].name == "clock"
    assert runs[0].tools

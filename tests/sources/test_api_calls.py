"""Calls of model APIs: batches joined by custom_id, logs, stored responses."""

import json
import shutil
from pathlib import Path

import pytest
from mutations import survives

from pairwright import Message, ToolCall
from pairwright.sources import READERS
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect, read_file

FIXTURES = Path(__file__).parent / "fixtures"


def read(path):
    layout = detect(path)
    items = list(read_file(path, layout, Options()))
    rejected = [item.reason for item in items if isinstance(item, Rejected)]
    return layout.format, [item for item in items if not isinstance(item, Rejected)], rejected


def test_results_of_a_batch_find_their_requests_by_custom_id():
    name, (first, second, call, raw), rejected = read(FIXTURES / "batch_results.jsonl")
    assert name == "batch"
    assert first.prompt == second.prompt == (Message("system", "Be brief."), Message("user", "Two and two?"))
    assert (first.eid.tid, first.eid.step) == (second.eid.tid, second.eid.step)
    assert [run.completion[0].text for run in (first, second)] == ["4", "It is"]
    assert [run.truncate_status for run in (first, second)] == [None, "response_truncated"]
    assert first.tools[0]["function"]["name"] == call.tools[0]["function"]["name"] == "add"
    assert call.prompt == (Message("system", "Be brief."), Message("user", "Two and three?"))
    assert call.completion == (Message("assistant", None, "sum", (ToolCall("add", '{"a":  2}', "f1"),)),)
    assert (raw.prompt, raw.completion) == ((Message("text", "Once"),), (Message("text", " upon", generated=True),))
    assert [reason.split(":")[0] for reason in rejected] == [
        "no request with custom_id 'r9' beside this file",
        "the request failed",
    ]
    assert "batch_expired" in rejected[1]


def test_two_requests_of_one_custom_id_are_never_mixed_up(tmp_path):
    for name in ("batch_results.jsonl", "batch_requests.jsonl"):
        shutil.copy(FIXTURES / name, tmp_path / name)
    lines = (FIXTURES / "batch_requests.jsonl").read_text().splitlines()
    (tmp_path / "other.jsonl").write_text(lines[0].replace("Two and two?", "Two and ten?") + "\n" + lines[1] + "\n")
    _, runs, rejected = read(tmp_path / "batch_results.jsonl")
    assert [run.info["custom_id"] for run in runs] == ["r2", "r3"]
    assert "two different requests with custom_id 'r1'" in rejected[0]


def test_a_chat_log_with_a_key_is_no_batch():
    row = {"key": "a", "request": {"messages": [{"role": "user", "content": "hi"}]}}
    row["response"] = {"choices": [{"message": {"role": "assistant", "content": "yo"}}]}
    assert not READERS["batch"][0].matches(row)
    assert READERS["openai-chat"][0].matches(row)


def test_requests_alone_are_refused_with_the_way_out():
    _, runs, rejected = read(FIXTURES / "batch_requests.jsonl")
    assert (runs, len(rejected)) == ([], 3)
    assert "import the file of the results" in rejected[0]


def test_results_of_anthropic_batches_are_read():
    name, (run,), rejected = read(FIXTURES / "anthropic_batch.jsonl")
    assert name == "batch"
    assert run.prompt == (Message("system", "Be brief."), Message("user", "A boat?"))
    assert run.completion[0].tool_calls == (ToolCall("rent", '{"day":1}', "t1"),)
    assert (run.completion[0].text, run.tools[0]["function"]["name"]) == ("Looking.", "rent")
    assert rejected == ["the request failed: expired"]


def test_results_of_gemini_batches_are_read():
    name, (call, cut), rejected = read(FIXTURES / "gemini_batch.jsonl")
    assert name == "batch"
    assert call.prompt == cut.prompt == (Message("system", "You rent boats."), Message("user", "A boat?"))
    assert (call.completion[0].tool_calls[0].name, call.completion[0].tool_calls[0].arguments) == ("rent", '{"day":1}')
    assert (call.eid.sid, call.model_version) == (cut.eid.sid, "gemini-x")
    assert (call.truncate_status, cut.truncate_status) == (None, "response_truncated")
    assert rejected[0].startswith("no request with custom_id 'g2'")


def test_logs_of_generate_content_are_read(tmp_path):
    row = json.loads((FIXTURES / "gemini_batch.jsonl").read_text().splitlines()[0])
    del row["key"]
    (tmp_path / "log.jsonl").write_text(json.dumps({**row, "reward": 0.5}) + "\n")
    name, (run, _), rejected = read(tmp_path / "log.jsonl")
    assert (name, run.reward, len(run.prompt), rejected) == ("api-log", 0.5, 2, [])


def test_logs_of_both_apis_are_read():
    name, (claude, first, second), rejected = read(FIXTURES / "api_log.jsonl")
    assert name == "api-log"
    assert [message.role for message in claude.prompt] == ["system", "user", "assistant", "tool"]
    assert claude.completion[0].reasoning == "sad"
    assert (claude.reward, claude.truncate_status, claude.model_version) == (0.5, "response_truncated", "c-1")
    assert [site.index for site in claude.errors] == [3]
    assert first.eid.tid == second.eid.tid
    assert first.prompt == second.prompt == (Message("system", "Be brief."), Message("user", "Two and two?"))
    assert [(run.reward, run.completion[0].text) for run in (first, second)] == [(1.0, "4"), (0.0, "5")]
    assert "/input_items" in rejected[0]


def test_a_request_that_the_server_continues_is_refused(tmp_path):
    row = json.loads((FIXTURES / "api_log.jsonl").read_text().splitlines()[1])
    row["request"]["previous_response_id"] = "resp_0"
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    _, runs, rejected = read(tmp_path / "log.jsonl")
    assert (runs, rejected[0].split(":")[0]) == ([], "previous_response_id")


def test_a_page_of_input_items_is_read_only_where_its_order_does_not_matter(tmp_path):
    row = json.loads((FIXTURES / "api_log.jsonl").read_text().splitlines()[2])
    row["input"]["data"] *= 2
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    _, runs, rejected = read(tmp_path / "log.jsonl")
    assert (runs, "order" in rejected[0]) == ([], True)


@pytest.mark.parametrize(
    ("file", "name"), [("anthropic_batch", "batch"), ("batch_results", "batch"), ("api_log", "api-log")]
)
def test_no_broken_line_raises_anything_else(file, name):
    for line in (FIXTURES / f"{file}.jsonl").read_text().splitlines()[:3]:
        assert survives(READERS[name][0], json.loads(line)) > 100


def test_real_files_without_their_other_half_are_refused(traces):
    name, runs, rejected = read(traces.parent / "traces_new" / "openai_batch" / "bedrock_batch_completions.jsonl")
    assert (name, len(runs), len(rejected)) == ("batch", 0, 128)
    name, runs, rejected = read(traces.parent / "repro" / "ux" / "openai_batch_output.jsonl")
    assert (name, len(runs), len(rejected)) == ("batch", 0, 3)


def test_the_real_requests_join_with_answers_written_to_them(traces, tmp_path):
    source = traces.parent / "traces_new" / "openai_batch" / "bedrock_batch_completions.jsonl"
    shutil.copy(source, tmp_path / "requests.jsonl")
    requests = [json.loads(line) for line in source.read_text().splitlines()]
    answers = [
        {
            "custom_id": row["custom_id"],
            "response": {"status_code": 200, "body": {"choices": [{"message": {"content": str(number)}}]}},
        }
        for number, row in enumerate(requests)
    ]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, reversed(answers))))
    _, runs, rejected = read(tmp_path / "results.jsonl")
    assert (len(runs), rejected) == (128, [])
    expected = [row["body"]["messages"][1]["content"] for row in reversed(requests)]
    assert [run.prompt[1].text for run in runs] == expected

"""One sale, as eight tracing tools log it: the same conversation, its tools, scores, failure, usage and truncation."""

import json
from pathlib import Path
from typing import Any

import pytest

from pairwright.records.experience import Experience
from pairwright.records.messages import Message, ToolCall
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, read_file
from pairwright.sources.rewards import Score, read_scores

FIXTURES = Path(__file__).parent / "fixtures"
CALL = ToolCall("shelf", '{"row":1}', "c1")


def read(path: Path, **options: str) -> tuple[str, list[Experience], list[Rejected]]:
    layout = detect(path)
    assert isinstance(layout, Layout), layout
    results = list(read_file(path, layout, Options(**options)))
    records = [result for result in results if isinstance(result, Experience)]
    return layout.format, records, [result for result in results if isinstance(result, Rejected)]


def bare(message: Message) -> Message:
    """Roles, texts and calls: without reasoning, ids of calls that some APIs lack, and other fields."""
    calls = tuple(ToolCall(call.name, call.arguments.replace(" ", "")) for call in message.tool_calls)
    return Message(message.role, message.text or None, tool_calls=calls)


# Fixture -> format, result of the tool, reward, components.
SALES: dict[str, tuple[str, str, float | None, dict[str, Any]]] = {
    "mlflow.json": ("mlflow", "fell", None, {"correct": 1.0, "tone": 0.25}),
    "weave.jsonl": ("weave", "fell", 0.5, {"judge.good": True, "judge.why": "ok", "reward": 0.5, "tone": 0.25}),
    "openai_agents.jsonl": ("openai-agents", "fell", None, {}),
    "litellm.jsonl": ("litellm", "fell", 0.5, {"reward": 0.5}),
    "deepeval_trace.json": ("deepeval", "fell", 0.5, {"reward": 0.5, "Tone": 0.25}),
    "nat_atof.jsonl": ("nat-atof", '{"error":"fell"}', 0.5, {"judge": 0.5}),
    "vercel_spans.json": ("otel", "fell", 0.5, {"judge": 0.5}),
}


@pytest.mark.parametrize("name", SALES)
def test_a_sale_is_read_alike_from_every_tool(name: str) -> None:
    format_name, result, reward, components = SALES[name]
    found, records, _ = read(FIXTURES / name)
    assert found == format_name
    (sale,) = records
    call = ToolCall("shelf", '{"row":1}')
    assert [bare(message) for message in sale.messages] == [
        Message("system", "Sell."),
        Message("user", "Sell me a book"),
        Message("assistant", tool_calls=(call,)),
        Message("tool", result),
        Message("assistant", "Sold."),
    ]
    assert len(sale.prompt) == 2
    assert (sale.eid.task, sale.model_version) == ("book-3", "m-1")
    assert (sale.reward, sale.reward_components) == (reward, components)
    # These spans have neither schemas nor the reason why the model stopped.
    if name not in ("openai_agents.jsonl", "deepeval_trace.json"):
        assert [tool["function"]["name"] for tool in sale.tools] == ["shelf"]
        assert sale.truncate_status == "response_truncated"
    if name not in ("nat_atof.jsonl",):
        assert sale.metrics == {"input_tokens": 14, "output_tokens": 5}
    # No mark of the failure on the result itself; DeepEval's tool spans do not name the call that they answer.
    if name not in ("litellm.jsonl", "openai_agents.jsonl", "deepeval_trace.json"):
        assert [(site.index, site.kind) for site in sale.errors] == [(3, "tool_error")]


def test_what_an_exporter_left_out_is_rejected_with_the_reason() -> None:
    _, _, rejected = read(FIXTURES / "openai_agents.jsonl")
    assert ["the model gave no output" in one.reason for one in rejected] == [True]
    _, _, rejected = read(FIXTURES / "litellm.jsonl")
    assert "redacted-by-litellm" in rejected[0].reason
    assert "timed out" in rejected[1].reason
    assert len(rejected) == 2


def test_expectations_of_mlflow_are_kept_beside_the_scores() -> None:
    _, (sale,), _ = read(FIXTURES / "mlflow.json")
    assert sale.info["expectations"] == {"answer": "Sold."}
    assert read(FIXTURES / "mlflow.json", reward="correct")[1][0].reward == 1.0


def test_a_stream_of_claude_is_a_session_its_later_turns_and_its_subagents() -> None:
    found, records, rejected = read(FIXTURES / "claude_stream.jsonl")
    assert (found, rejected) == ("claude-stream", [])
    sale, later, agent = records
    assert sale.prompt == (Message("user", "Sell me a book"),)
    calls = (ToolCall("Agent", '{"prompt":"Find the shelf"}', "c1"),)
    assert sale.completion == (
        Message("assistant", reasoning="Look.", tool_calls=calls),
        Message("tool", "fell", tool_call_id="c1", extra={"is_error": True}),
        Message("assistant", "Sold."),
    )
    assert [(site.index, site.kind, site.tool) for site in sale.errors] == [(2, "tool_error", "Agent")]
    # What the user said next is not in the stream: such a turn is compared with nothing.
    assert (later.prompt, later.eid.task, later.truncate_status) == ((), "s-1#1", "response_truncated")
    assert agent.messages == (Message("user", "Find the shelf"), Message("assistant", "Row 1."))
    assert (agent.model_version, agent.info["subagent_of"]) == ("m-2", "c1")


def test_the_spans_of_an_attempt_of_agent_lightning_are_one_trace_with_its_rewards() -> None:
    found, (one,), _ = read(FIXTURES / "agent_lightning.jsonl")
    assert found == "otel"
    assert [message.text for message in one.messages] == ["Sell me a book", "Sold."]
    assert (one.reward, one.reward_components) == (0.5, {"reward": 0.5, "done": 0.5, "speed": 0.25})
    assert one.info["trace_id"] == "ro-1/at-1"


def test_an_operation_of_vercel_stands_for_its_calls_where_they_were_not_logged(tmp_path: Path) -> None:
    spans = json.loads((FIXTURES / "vercel_spans.json").read_text())
    (tmp_path / "spans.json").write_text(json.dumps(spans[3:]))
    _, (one,), _ = read(tmp_path / "spans.json")
    assert [message.text for message in one.messages] == ["Sell.", "Sell me a book", "Sold."]


# Experiences, messages, tool calls, rejected; counted in the raw files by hand.
REAL = {
    "nat_atof/exmp02_atof.jsonl": ("nat-atof", 1, 4, 1, 0),
    "nat_atof/exmp03_atof.jsonl": ("nat-atof", 1, 2, 0, 0),
    "nat_atof/exmp05_atof.jsonl": ("nat-atof", 2, 7, 2, 0),
    "vercel_ai_sdk/ai-generateObject-doGenerate.json": ("otel", 1, 2, 0, 0),
    "vercel_ai_sdk/ai-generateText-doGenerate.json": ("otel", 2, 7, 0, 0),
    "vercel_ai_sdk/ai-generateText.json": ("otel", 2, 7, 0, 0),
    "vercel_ai_sdk/ai-streamText-doStream.json": ("otel", 1, 2, 0, 0),
    "vercel_ai_sdk/ai-embed-doEmbed.json": ("otel", 0, 0, 0, 1),
    "weave/background_subagent_response.json": ("claude-stream", 2, 8, 2, 0),
    "weave/error_response.json": ("claude-stream", 1, 1, 0, 0),
    "weave/multi_tool_response.json": ("claude-stream", 1, 4, 2, 0),
    "weave/multi_turn_response.json": ("claude-stream", 2, 2, 0, 0),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_are_read_whole(traces: Path, name: str) -> None:
    found, records, rejected = read(traces.parent / "traces_new" / name)
    messages = [message for one in records for message in one.messages]
    calls = sum(len(message.tool_calls) for message in messages)
    assert (found, len(records), len(messages), calls, len(rejected)) == REAL[name]


@pytest.mark.parametrize("name", ["agent_lightning", "phoenix_evalruns"])
def test_metrics_of_training_and_of_evaluations_are_no_traces(traces: Path, name: str) -> None:
    for path in (traces.parent / "traces_new" / name).iterdir():
        layout = detect(path)
        assert not isinstance(layout, Layout) or layout.format not in ("otel", "mlflow", "weave", "openai-agents")


def test_a_trace_of_a_subagent_in_phoenix_is_read_whole(traces: Path) -> None:
    path = traces.parent / "traces_new" / "phoenix" / "pxi_turn_subagent_trace.json"
    spans = json.loads(path.read_text())
    calls = [
        span for span in spans if span["attributes"].get("openinference.span.kind", span.get("span_kind")) == "LLM"
    ]
    found, records, rejected = read(path)
    assert found == "otel"
    # Every model call of the file is in a conversation or was rejected with its id.
    seen = {call for one in records for call in one.info["calls"]}
    named = " ".join(one.reason for one in rejected)
    assert {span["context"]["span_id"] for span in calls} <= seen | {
        span["context"]["span_id"] for span in calls if span["context"]["span_id"] in named
    }


@pytest.mark.parametrize("name", ["claude_stream.jsonl", "claude_code.jsonl", "cursor_stream.jsonl"])
def test_a_score_names_the_session_it_belongs_to(name: str, tmp_path: Path) -> None:
    _, records, _ = read(FIXTURES / name)
    session = records[0].info["session_id"]
    (tmp_path / "scores.csv").write_text(f"session_id,reward\n{session},0.25\n")
    scores = read_scores(tmp_path / "scores.csv")
    assert scores.of(records[0]) == (Score(0.25), session)

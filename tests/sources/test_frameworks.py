"""Histories of frameworks: LangChain, pydantic-ai, smolagents, DSPy, run states of the OpenAI Agents SDK."""

import json
from pathlib import Path

import pytest
from mutations import survives

from pairwright import Message, ToolCall
from pairwright.sources import READERS
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.reading import detect, read_file

FIXTURES = Path(__file__).parent / "fixtures"


def read(path, **options):
    layout = detect(path)
    return layout.format, list(read_file(path, layout, Options(**options)))


def read_value(name, value):
    return list(READERS[name][0].read(value, Origin("a.json", 1, 0), Options()))


def test_langchain_messages_of_all_three_forms_are_read():
    name, (first, second, third) = read(FIXTURES / "langchain.jsonl")
    assert name == "langchain"
    assert first.prompt == (Message("system", "You rent boats."), Message("user", "A boat?"))
    assert first.completion[0].tool_calls == (ToolCall("rent", '{"day":1}', "c1"), ToolCall("sail", "{day", "c2"))
    assert [(site.index, site.tool, site.kind) for site in first.errors] == [(3, "rent", "tool_error")]
    assert (first.eid.task, [run.reward for run in (first, second, third)]) == ("b1", [0.5, 1.0, 1.0])
    assert second.completion == (Message("assistant", "4", "sum"),)
    assert third.completion == (Message("assistant", "5"),)


def test_a_list_of_langchain_messages_is_one_conversation():
    row = json.loads((FIXTURES / "langchain.jsonl").read_text().splitlines()[0])
    (run,) = read_value("langchain", row["messages"])
    assert (len(run.prompt), len(run.completion), run.reward) == (2, 3, None)


def test_the_agents_of_a_saved_autogen_team_are_records():
    name, (run,) = read(FIXTURES / "autogen.json")
    assert (name, run.info, run.reward) == ("autogen", {"agent": "clerk"}, None)
    assert run.prompt == (Message("user", "Sell me a book"),)
    call = ToolCall("shelf", '{"row": 1}', "c1")
    assert run.completion[0] == Message("assistant", None, "The shelf first.", (call,))
    assert [(site.index, site.tool, site.kind) for site in run.errors] == [(2, "shelf", "tool_error")]
    assert run.completion[-1] == Message("assistant", "Sold.")
    state = json.loads((FIXTURES / "autogen.json").read_text())["agent_states"]["clerk"]["agent_state"]
    older = {"type": "AssistantAgentState", "llm_messages": state["llm_context"]["messages"]}
    for value in (state, older):
        assert read_value("autogen", value)[0].completion == run.completion
    (refused,) = read_value("autogen", {"llm_messages": state["llm_context"]["messages"][:1]})
    assert isinstance(refused, Rejected)


def test_parts_of_pydantic_ai_become_messages():
    name, (run,) = read(FIXTURES / "pydantic_ai.json")
    assert name == "pydantic-ai"
    assert [(message.role, message.text) for message in run.prompt] == [
        ("system", "You rent boats."),
        ("system", "Use tools."),
        ("user", "A boat?"),
    ]
    assert run.prompt[2].content[1] == {"type": "image-url", "kind": "image-url", "url": "https://boats.example/1.png"}
    calls = (ToolCall("rent", '{"day":1}', "c1"), ToolCall("rent", '{"day":  2}', "c2"))
    assert run.completion[0] == Message("assistant", "Looking.", "rent it", calls)
    assert [(message.role, message.text, message.tool_call_id) for message in run.completion[1:3]] == [
        ("tool", "which month?", "c1"),
        ("tool", '{"boat":7}', "c2"),
    ]
    assert [site.index for site in run.errors] == [4]
    assert (run.truncate_status, run.model_version) == ("response_truncated", "m")


def test_a_part_of_unknown_kind_is_refused():
    history = json.loads((FIXTURES / "pydantic_ai.json").read_text())
    history[0]["parts"][1]["part_kind"] = "riddle"
    with pytest.raises(ValueError, match="unknown kind 'riddle'"):
        read_value("pydantic-ai", history)


def test_a_run_of_a_code_agent_is_one_conversation():
    name, (run,) = read(FIXTURES / "smolagents.json")
    assert name == "smolagents"
    assert [message.text for message in run.prompt] == ["Write code.", "New task:\nOne and two?"]
    assert [(message.role, message.is_generated) for message in run.completion] == [
        ("assistant", True), ("assistant", False), ("user", False), ("assistant", True),
    ]  # fmt: skip
    assert [(site.index, site.text) for site in run.errors] == [(4, "ZeroDivisionError: division by zero")]


def test_steps_that_come_back_in_other_words_are_experiences_of_their_own():
    steps = json.loads((FIXTURES / "smolagents.json").read_text())
    steps[2]["model_input_messages"][2]["content"][0]["text"] = "a summary"
    first, second = read_value("smolagents", {"steps": steps, "reward": 1.0})
    assert (first.eid.tid, first.eid.step, second.eid.step) == (second.eid.tid, 0, 1)
    assert (len(first.prompt), len(second.prompt), second.reward) == (2, 5, 1.0)
    assert [message.is_generated for message in second.prompt] == [False] * 5


def test_outputs_of_one_call_of_dspy_are_candidates():
    name, (first, second, raw) = read(FIXTURES / "dspy.jsonl")
    assert name == "dspy"
    assert (first.eid.tid, first.eid.step) == (second.eid.tid, second.eid.step)
    assert first.eid.run != second.eid.run
    assert [message.role for message in first.prompt] == ["system", "user"]
    assert second.completion == (Message("assistant", "[[ ## answer ## ]]\n5", "guess"),)
    assert (first.model_version, first.metrics["prompt_tokens"]) == ("m-1", 5)
    assert raw.prompt == (Message("text", "Two and three?\n\nBEGIN RESPONSE:"),)
    assert (raw.completion, raw.reward) == ((Message("text", "5", generated=True),), 1.0)


@pytest.mark.parametrize("name", ["langchain.jsonl", "pydantic_ai.json", "smolagents.json", "dspy.jsonl"])
def test_no_broken_history_raises_anything_else(name):
    path = FIXTURES / name
    text = path.read_text()
    value = json.loads(text if path.suffix == ".json" else text.splitlines()[0])
    assert survives(READERS[path.stem.replace("_", "-")][0], value) > 200


def test_the_real_files_read(traces):
    for file in ("langchain_dump", "langchain_type_content"):
        name, runs = read(traces.parent / "repro" / "ux" / f"{file}.jsonl")
        assert (name, len(runs), len({run.eid.tid for run in runs})) == ("langchain", 3, 1)
        assert [run.reward for run in runs] == [1.0, 0.0, 0.2]


def test_a_history_without_requests_is_refused_with_the_way_out(tmp_path):
    steps = json.loads((FIXTURES / "smolagents.json").read_text())
    for step in steps[1:]:
        del step["model_input_messages"]
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(steps))
    _, (rejected,) = read(path)
    assert isinstance(rejected, Rejected)
    assert "get_full_steps()" in rejected.reason


def test_a_run_state_is_its_input_and_the_items_of_the_run():
    name, (exp,) = read(FIXTURES / "run_state.json")
    assert name == "openai-agents"
    assert exp.prompt == (Message("user", "Book a berth if it is deep enough."),)
    depth, book = ToolCall("depth", '{"berth": 4}', "call_1"), ToolCall("book", '{"berth": 4}', "call_2")
    assert exp.completion == (
        Message("assistant", reasoning="Measure first.", tool_calls=(depth,)),
        Message("tool", "6 m", tool_call_id="call_1"),
        Message("assistant", "Deep enough.", tool_calls=(book,)),
    )
    assert exp.info == {"agents": ["Harbour"], "trace_id": "trace_7", "workflow": "Berths"}
    assert (exp.metrics["unanswered_calls"], exp.metrics["input_tokens"], exp.reward) == (1, 20, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"conversation_id": "conv_1"}, "the server holds"),
        ({"previous_response_id": "resp_1"}, "the server holds"),
        ({"generated_items": []}, "no answer of the model"),
    ],
)
def test_a_run_state_without_all_of_the_conversation_is_refused(changes, reason):
    state = json.loads((FIXTURES / "run_state.json").read_text()) | changes
    with pytest.raises(BadRecord, match=reason):
        list(READERS["openai-agents"][1].read(state, Origin("a.json", 1, 0), Options()))


def test_a_traced_test_case_of_deepeval_is_read_from_its_spans():
    case = {
        "name": "t",
        "input": "Sell me a book",
        "actualOutput": "Sold.",
        "metricsData": [{"name": "Tone", "score": 1}],
    }
    trace = json.loads((FIXTURES / "deepeval_trace.json").read_text())
    traced, plain = read_value("deepeval", {"testCases": [case | {"trace": trace}, case]})
    assert (len(traced.messages), traced.reward_components["Tone"]) == (5, 0.25)  # the nearest score: of the span
    assert (len(plain.messages), plain.reward) == (2, 1.0)


def test_answers_of_a_langchain_agent_that_deepeval_traced_have_the_role_AI():  # noqa: N802
    trace = json.loads((FIXTURES / "deepeval_trace.json").read_text())
    plain = read_value("deepeval", {"testCases": [{"name": "t", "trace": trace}]})
    for span in trace["llmSpans"]:
        if isinstance(span["output"], str):
            span["output"] = {"role": "AI", "content": span["output"]}
    named = read_value("deepeval", {"testCases": [{"name": "t", "trace": trace}]})
    assert [one.messages for one in named] == [one.messages for one in plain]
    assert named[0].messages[-1].role == "assistant"


def test_an_output_that_is_a_list_of_calls_is_a_turn_with_these_calls():
    trace = json.loads((FIXTURES / "deepeval_trace.json").read_text())
    call = {"id": "c9", "type": "function", "function": {"name": "shelf", "arguments": '{"row":2}'}}
    trace["llmSpans"] = [trace["llmSpans"][0] | {"output": [call]}]
    (read,) = read_value("deepeval", {"testCases": [{"name": "t", "trace": trace}]})
    calls = [call for message in read.messages if message.role == "assistant" for call in message.tool_calls]
    assert (calls[-1].name, calls[-1].arguments, calls[-1].id) == ("shelf", '{"row":2}', "c9")


def test_no_broken_run_state_and_no_broken_trace_of_deepeval_raises_anything_else():
    for name, variant, file in (("openai-agents", 1, "run_state.json"), ("deepeval", 1, "deepeval_trace.json")):
        assert survives(READERS[name][variant], json.loads((FIXTURES / file).read_text())) > 500

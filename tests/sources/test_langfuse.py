"""Langfuse exports: generations become conversations that agree with Langfuse's own reading of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mutations import survives

from pairwright.records.experience import Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import langfuse
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.shapes.any_messages import conversation

FIXTURE = Path(__file__).parent / "fixtures" / "langfuse.json"


def read(value: Any, **options: str) -> list[Experience]:
    results = list(langfuse.FORMAT.read(value, Origin("lf.json"), Options(**options)))
    assert not any(isinstance(result, Rejected) for result in results)
    return [result for result in results if isinstance(result, Experience)]


def load() -> Any:
    return json.loads(FIXTURE.read_text())


def test_a_trace_is_read_with_calls_results_tools_scores_and_errors() -> None:
    sale, judge = read(load())
    assert sale.prompt == (Message("user", "Sell me a book"),)
    assert sale.completion == (
        Message("assistant", "", tool_calls=(ToolCall("shelf", '{"row":  1}', "c1"),)),
        Message("tool", "shelf fell", tool_call_id="c1"),
        Message("assistant", "Sold."),
    )
    assert sale.tools == ({"type": "function", "function": {"name": "shelf"}},)
    assert sale.errors == (ErrorSite(2, "tool_error", "shelf fell", "shelf", "c1", ("shelf",)),)
    assert (sale.eid.task, sale.eid.step, sale.reward) == ("book-3", 0, 0.25)
    assert sale.reward_components == {"reward": 0.25, "mood": "calm"}
    assert sale.metrics == {"input_tokens": 30, "output_tokens": 7}
    assert sale.model_version == "m-3"
    assert sale.info == {
        "name": "bookshop", "session_id": "s-1", "tags": ["night"], "trace_id": "lf-1", "calls": ["g1", "g2"],
    }  # fmt: skip
    assert judge.prompt == (Message("system", "You judge."), Message("user", "Was it sold?"))
    assert judge.completion == (Message("assistant", "Yes.", reasoning="It was."),)
    assert judge.tools == ({"type": "function", "name": "gavel"},)
    assert (judge.eid.step, judge.reward) == (1, 1.0)
    assert judge.eid.rid == sale.eid.rid


def test_a_correction_is_a_pair_without_a_reward() -> None:
    export = load()
    num_before = len(read(export))
    correction = {"name": "output", "dataType": "CORRECTION", "value": 0, "stringValue": "Sold, with a receipt."}
    export["trace"]["scores"] += [{**correction, "observationId": "g2"}]
    *others, pair = read(export)
    assert len(others) == num_before
    assert all("output" not in one.reward_components for one in others)  # its value is not a score
    assert pair.kind == "preference"
    assert (pair.reward, pair.chosen.reward, pair.rejected.reward) == (None, None, None)
    assert pair.chosen.messages == (Message("assistant", "Sold, with a receipt."),)
    assert pair.rejected.messages == (Message("assistant", "Sold."),)
    assert [message.role for message in pair.prompt] == ["user", "assistant", "tool"]
    assert (pair.eid.task, pair.info["corrected_call"]) == ("book-3", "g2")
    export["trace"]["scores"][-1]["observationId"] = "nowhere"
    refused = [one for one in langfuse.FORMAT.read(export, Origin("lf.json"), Options()) if isinstance(one, Rejected)]
    assert len(refused) == 1
    assert "correction" in refused[0].reason


def test_the_user_names_the_score_that_is_the_reward() -> None:
    assert read(load(), reward="mood")[0].reward is None
    assert read(load(), reward="absent")[0].reward is None
    export = load()
    export["trace"]["scores"] = [{"name": "a", "value": True}, {"name": "b", "value": "0.5"}]
    assert read(export)[0].reward is None
    assert read(export, reward="a")[0].reward == 1.0
    assert read(export, reward="b")[0].reward == 0.5


def test_a_trace_with_everything_inside_reads_the_same() -> None:
    export = load()
    flat = {**export["trace"], "observations": export["observations"]}
    assert langfuse.matches(flat)
    assert [one.messages for one in read(flat)] == [one.messages for one in read(export)]


def test_a_failed_generation_is_an_error_site_where_it_was_tried_again() -> None:
    export = load()
    failed = {**export["observations"][2], "id": "g0", "startTime": "2026-01-01T00:00:00.5Z", "output": None,
              "level": "ERROR", "statusMessage": "Request timed out"}  # fmt: skip
    export["observations"].append(failed)
    sale = read(export)[0]
    assert sale.errors[0] == ErrorSite(0, "timeout", "Request timed out", available_tools=("shelf",))
    assert sale.info["calls"] == ["g0", "g1", "g2"]


def test_without_generations_the_trace_itself_is_the_call() -> None:
    export = load()
    export["observations"] = []
    (one,) = read(export)
    assert one.messages == (Message("user", "Sell me a book"), Message("assistant", "Sold."))
    export["trace"]["output"] = None
    with pytest.raises(BadRecord, match="no GENERATION"):
        read(export)


def test_other_files_are_not_claimed() -> None:
    for other in (
        None,
        [],
        {},
        {"observations": []},
        {"trace": {}},
        {"id": 1, "messages": []},
        {"observations": [1], "id": 1},
    ):
        assert not langfuse.matches(other)


def test_no_broken_file_raises_anything_but_our_errors() -> None:
    assert survives(langfuse.FORMAT, load()) > 1000


COUNTS = {
    "autogen-2025-06-06": (1, 3, 0),
    "langgraph-python-2025-08-22": (1, 5, 1),
    "openai-agents-2025-09-30": (1, 5, 1),
    "pydantic-ai-tools-2025-12-04": (2, 12, 4),
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_traces_are_read_whole(traces: Path, name: str) -> None:
    found = read(json.loads((traces / "langfuse" / f"{name}.trace.json").read_text()))
    messages = [message for one in found for message in one.messages]
    assert (len(found), len(messages), sum(len(message.tool_calls) for message in messages)) == COUNTS[name]
    assert not any(one.is_scored or one.errors for one in found)


def golden_messages(side: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the reading of an input or output by Langfuse itself; None if it has none."""
    return side["data"] if side["success"] and all("role" in message for message in side["data"]) else None


def assert_agrees(message: Message, golden: dict[str, Any]) -> None:
    role = {"model": "assistant"}.get(golden["role"], golden["role"])
    content = golden.get("content")
    if message.tool_calls and not golden.get("tool_calls"):  # Koog's calls, which Langfuse leaves as the text they were
        theirs = [(call["id"], call["function"]["name"]) for call in json.loads(content)]
        assert [(call.id, call.name) for call in message.tool_calls] == theirs
        assert not message.content
        return
    if message.role == "tool" and role != "tool":  # results, which Langfuse shows as turns of the user or of the tool
        assert role in ("user", message.name)
    else:
        assert message.role == role
    if isinstance(content, str):
        assert message.text == content
    elif content is not None:  # it decodes JSON in tool results; ours stays the text
        assert json.loads(message.text) == content
    calls = golden.get("tool_calls", [])
    assert [(call.id or "", call.name) for call in message.tool_calls] == [(call["id"], call["name"]) for call in calls]
    for call, theirs in zip(message.tool_calls, calls, strict=True):
        assert json.loads(call.arguments) == json.loads(theirs["arguments"])
    # An id that Langfuse has not is that of the call that the result follows.
    assert golden.get("tool_call_id") in (message.tool_call_id, None)


@pytest.mark.parametrize("name", COUNTS)
def test_what_we_read_agrees_with_the_golden_reading_of_each_observation(traces: Path, name: str) -> None:
    trace = json.loads((traces / "langfuse" / f"{name}.trace.json").read_text())
    golden = json.loads((traces / "langfuse" / f"{name}.chatml.json").read_text())
    compared = 0
    for observation in trace["observations"]:
        for side, role in (("input", "user"), ("output", "assistant")):
            expected = golden_messages(golden[observation["id"]][side]) if observation["id"] in golden else None
            if expected is None:
                continue
            given, _ = langfuse._without_tool_schemas(langfuse.decode_json_text(observation[side]))
            messages = conversation(given, side, role=role)
            assert len(messages) == len(expected)
            for message, theirs in zip(messages, expected, strict=True):
                assert_agrees(message, theirs)
                compared += 1
    assert compared == {"autogen": 0, "langgraph": 29, "openai": 6, "pydantic": 22}[name.split("-")[0]]


@pytest.mark.parametrize("name", COUNTS)
def test_each_experience_is_the_golden_input_and_output_of_its_last_call(traces: Path, name: str) -> None:
    trace = json.loads((traces / "langfuse" / f"{name}.trace.json").read_text())
    golden = json.loads((traces / "langfuse" / f"{name}.chatml.json").read_text())
    for one in read(trace):
        last = golden[one.info["calls"][-1]]
        given, output = golden_messages(last["input"]), golden_messages(last["output"])
        if given is None or output is None:  # plain text, which Langfuse does not convert to messages
            assert name.startswith("autogen")
            continue
        messages = list(one.messages)
        if name.startswith("openai-agents"):  # the instructions, which the golden reading leaves out
            assert messages.pop(0) == Message("system", "You are a helpful agent.")
        assert len(messages) == len(given) + len(output)
        for message, theirs in zip(messages, given + output, strict=True):
            assert_agrees(message, theirs)


# Traces of other frameworks: their file, the golden reading, and the number of equal messages of generations.
MORE = {
    "google-adk": ("traces_new/langfuse/google-adk-2025-08-28.trace.json", "google-adk-2025-08-28", 8),
    "google-gemini": ("traces_new/langfuse/google-gemini-2025-08-01.trace.json", "google-gemini-2025-08-01", 2),
    "koog": ("repro/langfuse_koog.trace.json", "koog-2025-08-26", 11),
}


@pytest.mark.parametrize("name", MORE)
def test_generations_of_other_frameworks_agree_with_the_golden_reading(traces: Path, name: str) -> None:
    file, golden_name, count = MORE[name]
    trace = json.loads((traces.parent / file).read_text())
    golden = json.loads((traces.parent / "traces_new" / "langfuse" / f"{golden_name}.chatml.json").read_text())
    compared = 0
    for observation in trace["observations"]:
        for side, role in (("input", "user"), ("output", "assistant")):
            expected = golden_messages(golden.get(observation["id"], {}).get(side, {"success": False}))
            if expected is None or observation["type"] != "GENERATION":
                continue
            messages = conversation(observation[side], side, role=role)
            for message, theirs in zip(messages, expected, strict=True):
                assert_agrees(message, theirs)
                compared += 1
    assert compared == count


# Experiences, messages, calls, results and rejected calls, counted by hand in each file; scores of the trace by name.
FRAMEWORKS = {
    "repro/langfuse_google-adk.trace.json": (1, 5, 1, 1, 0, ["hallucination", "toxicity"]),
    "repro/langfuse_google-gemini.trace.json": (1, 2, 0, 0, 0, ["hallucination", "toxicity"]),
    "repro/langfuse_vertex-ai.trace.json": (1, 2, 0, 0, 0, ["hallucination", "toxicity"]),
    "repro/langfuse_koog.trace.json": (2, 12, 4, 4, 0, []),
    "repro/langfuse_langgraph-js.trace.json": (1, 4, 1, 1, 0, ["hallucination", "toxicity"]),
    "repro/langfuse_microsoft-agent-2025-10.json": (1, 4, 1, 1, 0, ["hallucination", "toxicity"]),
    "repro/langfuse_vercel-aisdk.trace.json": (1, 3, 1, 1, 0, ["hallucination", "toxicity"]),
    "traces_new/langfuse/crewai-2025-07-11.trace.json": (1, 3, 0, 0, 0, ["hallucination", "toxicity"]),
    "traces_new/langfuse/microsoft-agent-2025-12-17.trace.json": (
        1, 4, 1, 1, 0, ["correctness", "hallucination", "toxicity"],
    ),
    "traces_new/langfuse/pydantic-ai-2025-06-06.trace.json": (1, 3, 0, 0, 0, []),
    "traces_new/langfuse/vertex-ai-2025-08-01.trace.json": (1, 2, 0, 0, 0, ["hallucination", "toxicity"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_traces_of_every_framework_are_read_whole(traces: Path, name: str) -> None:
    text = (traces.parent / name).read_text()
    results = list(langfuse.FORMAT.read(json.loads(text), Origin("lf.json"), Options()))
    records = [result for result in results if isinstance(result, Experience)]
    messages = [message for one in records for message in one.messages]
    calls = [call for message in messages for call in message.tool_calls]
    num_results = sum(message.role == "tool" for message in messages)
    counts = (len(records), len(messages), len(calls), num_results, len(results) - len(records))
    assert (*counts, sorted(records[0].reward_components)) == FRAMEWORKS[name]
    # An independent look at the raw text: every id of a call is there, and no turn is the dump of an API's object.
    assert set(re.findall(r"call_\w{24}", " ".join(str(call.id) for call in calls))) == set(
        re.findall(r"call_\w{24}", text)
    )
    assert not [message for message in messages if message.role != "tool" and message.text.startswith("{")]
    assert all(one.model_version for one in records)


def test_a_call_that_logs_only_what_is_new_continues_the_one_before() -> None:
    def generation(number: int, given: Any, output: Any) -> dict[str, Any]:
        return {"id": f"g{number}", "type": "GENERATION", "startTime": f"2025-01-01T00:00:0{number}Z",
                "parentObservationId": "a", "input": given, "output": output}  # fmt: skip

    call = {"role": "assistant", "parts": [{"type": "tool_call", "id": ["r", "c"], "name": "look", "arguments": {}}]}
    result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": ["r", "c"], "response": "rain"}]}
    other = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "x", "response": "sun"}]}
    first = generation(1, [{"role": "user", "content": "Weather?"}], [call])
    for given in ([result], [call, result]):
        export = {"trace": {"id": "t"}, "observations": [first, generation(2, given, "It rains.")]}
        (one,) = read(export)
        assert [message.role for message in one.messages] == ["user", "assistant", "tool", "assistant"]
        assert "what is new" in one.info["rebuilt"]
    export = {"trace": {"id": "t"}, "observations": [first, generation(2, [other], "Sunny.")]}
    results = list(langfuse.FORMAT.read(export, Origin("lf.json"), Options()))
    assert [isinstance(result, Rejected) for result in results] == [False, True]
    assert "the result of a call that is not in the trace" in results[1].reason


def test_a_payload_of_unknown_shape_is_refused_with_its_keys_and_the_other_calls_are_read() -> None:
    export = load()
    bad = next(one for one in export["observations"] if one["type"] == "GENERATION")
    export["observations"].append({**bad, "id": "bad", "output": {"verdict": 1, "usage": {}}})
    results = list(langfuse.FORMAT.read(export, Origin("lf.json"), Options()))
    reasons = [result.reason for result in results if isinstance(result, Rejected)]
    assert len(reasons) == 1
    assert "output: an object with the keys verdict, usage" in reasons[0]
    assert len(results) == 3


@pytest.mark.parametrize("name", COUNTS)
def test_the_golden_files_themselves_are_not_claimed(traces: Path, name: str) -> None:
    assert not langfuse.matches(json.loads((traces / "langfuse" / f"{name}.chatml.json").read_text()))

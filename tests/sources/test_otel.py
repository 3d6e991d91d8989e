"""OpenTelemetry spans: GenAI and OpenInference attributes become conversations, scores and error sites."""

import json
from pathlib import Path
from typing import Any

import pytest
from mutations import survives

from pairwright.records.experience import EID, Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.sources import otel
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.tracing import otel_spans

FIXTURES = Path(__file__).parent / "fixtures"


def read(value: Any, **options: str) -> tuple[list[Experience], list[Rejected]]:
    results = list(otel.FORMAT.read(value, Origin("traces.json"), Options(**options)))
    return [r for r in results if isinstance(r, Experience)], [r for r in results if isinstance(r, Rejected)]


def load(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text())


def span(
    span_id: str, *, parent: str | None = None, kind: str = "LLM", code: str = "OK", **more: Any
) -> dict[str, Any]:
    attributes = {key.replace("__", "."): value for key, value in more.items()}
    return {
        "name": more.get("name", span_id), "context": {"trace_id": "t", "span_id": span_id}, "span_kind": kind,
        "parent_id": parent, "status_code": code, "attributes": attributes,
    }  # fmt: skip


def test_growing_calls_are_one_experience_with_the_first_input_as_prompt() -> None:
    (one,), rejected = read(load("otel_genai.json"))
    assert rejected == []
    assert one.prompt == (Message("system", "You cook."), Message("user", "Soup?"))
    calls = (ToolCall("stock", '{"of":"leek"}', "c1"), ToolCall("fly", "{}", "c2"))
    extra = {"finish_reason": "tool_call"}
    assert one.completion == (
        Message("assistant", None, reasoning="Look first.", tool_calls=calls, extra=extra),
        Message("tool", '{"left":0}', tool_call_id="c1"),
        Message("tool", "timed out", tool_call_id="c2"),
        Message("assistant", "No leek.", extra={"finish_reason": "length"}),
    )
    assert one.tools == ({"type": "function", "name": "stock", "parameters": {}},)
    assert one.reward == 0.75
    assert one.reward_components == {"taste": 0.75}
    assert one.truncate_status == "response_truncated"
    assert one.metrics == {"input_tokens": 42}
    assert one.model_version == "m-1"
    assert (one.eid.task, one.eid.step) == ("soup-7", 0)
    assert one.info == {
        "name": "invoke_agent cook", "gen_ai.agent.name": "cook", "trace_id": "t1", "calls": ["call1", "call2"],
        "tools_changed": True,
    }  # fmt: skip


def test_unknown_tools_and_failed_tool_spans_are_error_sites() -> None:
    (one,), _ = read(load("otel_genai.json"))
    tools = ("stock",)
    assert one.errors == (
        ErrorSite(2, "unknown_tool", "no tool named 'fly'", "fly", "c2", tools),
        ErrorSite(4, "timeout", "timed out", "fly", "c2", tools),
    )


def test_a_result_that_says_error_is_an_error_site_without_a_mark_of_its_span() -> None:
    text = (FIXTURES / "otel_genai.json").read_text()
    text = text.replace(r"{\"left\":0}", r"\"Error: the larder is locked\"")
    (one,), _ = read(json.loads(text))
    assert ErrorSite(3, "tool_error", "Error: the larder is locked", "stock", "c1", ("stock",)) in one.errors


def test_openinference_attributes_annotations_and_a_failed_last_call_are_read() -> None:
    (one,), rejected = read(load("phoenix.json"), reward="helpful")
    assert rejected == []
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    assert one.prompt == (Message("user", [{"type": "text", "text": "Lamp on?"}, image]),)
    assert one.completion == (
        Message("assistant", None, tool_calls=(ToolCall("lamp", '{"on":  true}', "c1"),)),
        Message("tool", "no power", tool_call_id="c1", name="lamp"),
    )
    assert one.errors == (ErrorSite(2, "tool_error", "no power", "lamp", "c1", ("lamp",)),)
    assert (one.eid.task, one.reward) == (41, 1.0)
    assert one.reward_components == {"helpful": 1, "tone": "dry"}
    assert one.tools == ({"type": "function", "function": {"name": "lamp"}},)


def test_a_label_is_no_reward_and_several_numbers_are_not_averaged() -> None:
    spans = load("phoenix.json")
    assert read(spans)[0][0].reward == 1.0
    assert read(spans, reward="tone")[0][0].reward is None
    spans[1]["annotations"] = [{"name": "speed", "score": 0.5}]
    assert read(spans)[0][0].reward is None


def test_a_score_of_a_call_counts_more_than_one_of_its_trace_and_not_for_others() -> None:
    root = span("a", kind="AGENT")
    root["annotations"] = [{"name": "reward", "score": 0.1}]
    calls = [
        span("b", parent="a", gen_ai__input__messages="x", llm__input_messages__0__message__content="one",
             llm__output_messages__0__message__content="1"),
        span("c", parent="a", llm__input_messages__0__message__content="two",
             llm__output_messages__0__message__content="2"),
    ]  # fmt: skip
    calls[0]["annotations"] = [{"name": "reward", "score": 0.9}]
    found, _ = read([root, *calls])
    assert [one.reward for one in found] == [0.9, 0.1]
    assert [one.eid.step for one in found] == [0, 1]
    assert found[0].info["more_scores"] == {"reward": [0.9, 0.1]}
    root["annotations"].append({"name": "reward", "score": 0.2})  # corrected later: the last one counts
    assert [one.reward for one in read([root, *calls])[0]] == [0.9, 0.2]


def test_alternative_answers_to_one_prompt_share_task_run_and_step() -> None:
    output = [{"role": "assistant", "parts": [{"type": "text", "content": text}]} for text in ("yes", "no")]
    found, _ = read([span("a", gen_ai__input__messages="Well?", gen_ai__output__messages=json.dumps(output))])
    assert [one.completion[0].content for one in found] == ["yes", "no"]
    assert len({one.eid.sid for one in found}) == 1
    assert len({one.eid.rid for one in found}) == 1
    assert len({one.eid.uid for one in found}) == 2


def test_calls_that_log_only_the_opening_are_put_together_with_the_tool_runs_between_them() -> None:
    agent = span("a", kind="AGENT", input__value="Go")
    first = span("b", parent="a", input__value="Go", output__value="Looking.")
    tool = span("c", parent="a", kind="TOOL", tool__name="look", input__value='{"at":1}', output__value="dark")
    last = span("d", parent="a", input__value="Go", output__value="It is dark.")
    (one,), _ = read([agent, first, tool, last])
    assert one.prompt == (Message("user", "Go"),)
    assert one.completion == (
        Message("assistant", "Looking.", tool_calls=(ToolCall("look", '{"at":1}', "c"),)),
        Message("tool", "dark", tool_call_id="c", name="look"),
        Message("assistant", "It is dark."),
    )
    assert "rebuilt" in one.info


def test_a_call_that_shows_it_was_given_more_than_it_logs_is_rejected() -> None:
    agent = span("a", kind="AGENT", input__value="Go")
    tokens = [
        span(key, parent="a", input__value="Go", output__value=key, llm__token_count__prompt=n)
        for key, n in (("b", 5), ("c", 9))
    ]
    found, (rejected,) = read([agent, *tokens])
    assert [one.completion[0].content for one in found] == ["b"]
    assert "9 input tokens, not 5" in rejected.reason


def test_a_failed_call_that_was_repeated_leaves_an_error_site_and_no_second_experience() -> None:
    messages = {"llm__input_messages__0__message__content": "Hi"}
    failed = span("b", code="ERROR", **messages)
    failed["status_message"] = "overloaded"
    again = span("c", llm__output_messages__0__message__content="Hello", **messages)
    (one,), rejected = read([failed, again])
    assert rejected == []
    assert one.messages == (Message("user", "Hi"), Message("assistant", "Hello"))
    assert one.errors == (ErrorSite(0, "exception", "overloaded"),)
    _, (only,) = read([failed])
    assert "the model gave no output: overloaded" in only.reason


def test_a_providers_span_inside_a_frameworks_call_is_not_a_second_call() -> None:
    messages = {"llm__input_messages__0__message__content": "Hi", "llm__output_messages__0__message__content": "Hello"}
    found, _ = read([span("outer", **messages), span("inner", parent="outer", **messages)])
    assert [one.info["calls"] for one in found] == [["outer"]]


@pytest.mark.parametrize(
    "attributes",
    [
        {
            "gen_ai.operation.name": "chat", "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi",
            "gen_ai.completion.0.content": "Yo", "gen_ai.completion.0.tool_calls.0.id": "c",
            "gen_ai.completion.0.tool_calls.0.name": "f", "gen_ai.completion.0.tool_calls.0.arguments": "{}",
        },
        {
            "gen_ai.operation.name": "chat",
            "events": '[{"event.name":"gen_ai.user.message","role":"user","content":"Hi"},{"event.name":"gen_ai.choice",'
            '"index":0,"message":{"role":"assistant","content":"Yo","tool_calls":[{"id":"c","type":"function",'
            '"function":{"name":"f","arguments":"{}"}}]}}]',
        },
        {
            "openinference.span.kind": "LLM", "input.value": '{"messages":[{"role":"user","content":"Hi"}]}',
            "output.value": '{"choices":[{"message":{"content":"Yo","tool_calls":[{"id":"c","type":"function",'
            '"function":{"name":"f","arguments":"{}"}}]}}]}',
        },
        {
            "llm": {
                "input_messages": [{"message": {"role": "user", "content": "Hi"}}],
                "output_messages": [{"message": {"role": "assistant", "content": "Yo", "tool_calls": [
                    {"tool_call": {"id": "c", "function": {"name": "f", "arguments": "{}"}}}]}}],
            },
            "openinference": {"span": {"kind": "LLM"}},
        },
    ],
    ids=["numbered", "events", "values", "nested"],
)  # fmt: skip
def test_older_and_other_spellings_of_a_call_give_the_same_messages(attributes: dict[str, Any]) -> None:
    bare = {"name": "n", "context": {"trace_id": "t", "span_id": "s"}, "attributes": attributes}
    (one,), _ = read([bare])
    assert one.messages == (Message("user", "Hi"), Message("assistant", "Yo", tool_calls=(ToolCall("f", "{}", "c"),)))


def test_span_events_and_log_records_carry_messages_too() -> None:
    def key(name: str, value: str) -> dict[str, Any]:
        return {"key": name, "value": {"stringValue": value}}

    call = {"traceId": "t", "spanId": "s", "name": "chat", "attributes": [key("gen_ai.operation.name", "chat")],
            "events": [{"name": "gen_ai.system.message", "attributes": [key("content", "Be kind.")]},
                       {"name": "gen_ai.user.message", "attributes": [key("content", "Go")]},
                       {"name": "gen_ai.tool.message", "attributes": [key("content", "7"), key("id", "c")]}]}  # fmt: skip
    body = {
        "kvlistValue": {"values": [{"key": "message", "value": {"kvlistValue": {"values": [key("content", "Ok")]}}}]}
    }
    log = {"traceId": "t", "spanId": "s", "eventName": "gen_ai.choice", "body": body}
    spans = {"resourceSpans": [{"scopeSpans": [{"spans": [call]}]}]}
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]}
    (one,), _ = read([logs, spans])
    assert one.prompt == (Message("system", "Be kind."), Message("user", "Go"), Message("tool", "7", tool_call_id="c"))
    assert one.completion == (Message("assistant", "Ok"),)


def test_spans_of_one_trace_are_joined_across_the_lines_of_a_file() -> None:
    whole = load("otel_genai.json")
    spans = whole["resourceSpans"][0]["scopeSpans"][0]["spans"]
    lines = [{"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]} for one in spans]
    assert read(lines)[0][0].messages == read(whole)[0][0].messages


def test_runs_of_different_traces_differ_and_the_same_file_gives_the_same_ids() -> None:
    first, second = load("otel_genai.json"), load("otel_genai.json")
    for one in second["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        one["traceId"] = "t2"
    (left,), (right,) = read(first)[0], read(second)[0]
    assert left.eid.tid == right.eid.tid
    assert left.eid.rid != right.eid.rid
    assert read(first)[0][0].eid == left.eid
    assert isinstance(left.eid, EID)


def stored(span_id: str, children: list[Any], **attributes: Any) -> dict[str, Any]:
    return {
        "timestamp": "2026-03-19T16:49:39.7Z", "trace_id": "t", "span_id": span_id, "parent_span_id": None,
        "span_name": span_id, "span_kind": "Internal", "status_code": "Unset", "status_message": "", "events": [],
        "span_attributes": {key.replace("__", "."): item for key, item in attributes.items()}, "child_spans": children,
    }  # fmt: skip


def test_spans_as_a_table_has_them_are_read_at_any_depth_with_their_failures() -> None:
    question = {"llm__input_messages__0__message__role": "user", "llm__input_messages__0__message__content": "Soup?"}
    call = stored(
        "call",
        [],
        openinference__span__kind="LLM",
        **question,
        llm__output_messages__0__message__role="assistant",
        llm__output_messages__0__message__content="Leek.",
    )
    tool = stored("tool", [], openinference__span__kind="TOOL")
    tool["status_code"] = "Error"
    tool["events"] = [{"Name": "exception", "Attributes": {"exception.message": "no leek"}}]
    nested: dict[str, Any] = stored("step", [call])
    for depth in range(20):
        nested = stored(f"level {depth}", [nested])
    (one,), rejected = read({"trace_id": "t", "spans": [nested]})
    assert (one.prompt, one.completion, rejected) == ((Message("user", "Soup?"),), (Message("assistant", "Leek."),), [])
    assert otel.FORMAT.matches({"trace_id": "t", "spans": [nested]})
    (failed,) = otel_spans.traces_in([tool])
    assert failed[0].failure is not None
    assert failed[0].failure.text == "no leek"


def test_rows_of_the_clickhouse_exporter_are_spans() -> None:
    attributes = {"input.value": "Soup?", "output.value": "Leek.", "openinference.span.kind": "LLM"}
    names = {"TraceId": "t", "SpanId": "s", "ParentSpanId": "", "SpanName": "chat", "Timestamp": "2026-03-19 16:49:39"}
    row = {**names, "SpanAttributes": attributes, "StatusCode": "Ok"}
    assert otel.FORMAT.matches([row])
    (one,), rejected = read([row])
    assert (one.prompt, one.completion, rejected) == ((Message("user", "Soup?"),), (Message("assistant", "Leek."),), [])


def test_other_files_are_not_claimed_and_a_file_without_spans_is_refused() -> None:
    for other in (None, 3, [], {}, [{}], {"messages": []}, {"spans": []}, [{"traceId": "t"}], {"trace": {}}):
        assert not otel.FORMAT.matches(other)
    with pytest.raises(BadRecord, match="no spans"):
        read({"resourceSpans": []})


@pytest.mark.parametrize("name", ["otel_genai.json", "phoenix.json"])
def test_no_broken_file_raises_anything_but_our_errors(name: str) -> None:
    assert survives(otel.FORMAT, load(name)) > 1000


COUNTS = {
    "otel_genai/pydantic_ai_v3.otlp.json": (1, 5, 1, 0, 0),
    "otlp_openinference/exmp04_atif.otlp.json": (1, 4, 1, 0, 0),
    "otlp_openinference/openhands_hello-world.trajectory.otlp.json": (1, 5, 2, 0, 0),
    "otlp_openinference/terminus_2_hello-world-context-summarization-linear-history.trajectory.otlp.json": (
        1,
        2,
        0,
        0,
        2,
    ),
    "openinference_phoenix/pxi_suggestion_traces.json": (3, 30, 12, 0, 0),
    "openinference_phoenix/pxi_turn_trace.json": (1, 27, 11, 1, 0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_files_are_read_whole(traces: Path, name: str) -> None:
    value = json.loads((traces / name).read_text())
    assert otel.FORMAT.matches(value)
    found, rejected = read(value)
    messages = [message for one in found for message in one.messages]
    calls = sum(len(message.tool_calls) for message in messages)
    errors = sum(len(one.errors) for one in found)
    assert (len(found), len(messages), calls, errors, len(rejected)) == COUNTS[name]
    assert not any(one.is_scored for one in found)

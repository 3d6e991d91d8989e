"""Real sessions and benchmark results: what we read of each file against counts taken from its raw JSON."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from outlines import counts, read_path

from pairwright.sources.format import Rejected
from pairwright.sources.reading import detect

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not (SHARED / "traces_new").is_dir(), reason="the shared sample files are not here")


def objects(value: Any) -> Iterator[dict]:
    """All objects in a JSON value."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            yield item
        stack += item.values() if isinstance(item, dict) else item if isinstance(item, list) else []


def raw_value(path: Path) -> Any:
    text = path.read_text()
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def tally(path: Path, turn: Callable, call: Callable, result: Callable) -> tuple[int, int, int]:
    """Generated turns, calls and results, each as a condition on the objects of the raw file."""
    listed = list(objects(raw_value(path)))
    return sum(map(turn, listed)), sum(map(call, listed)), sum(map(result, listed))


def is_type(*names: str) -> Callable:
    return lambda item: item.get("type") in names


def is_assistant(item: dict) -> bool:
    return item.get("role") == "assistant"


def has_text(item: dict) -> bool:
    return is_assistant(item) and bool(item.get("content"))


def is_class(*names: str) -> Callable:
    return lambda item: item.get("class_") in names


ADP = (
    is_class("message_action", "api_action", "code_action"),
    is_class("api_action", "code_action"),
    lambda item: False,  # an observation is a result or a turn: compared below
)
PI = (has_text, is_type("toolCall"), lambda item: item.get("role") == "toolResult")
MANAGED = (
    lambda item: item.get("type") == "agent.message" or item.get("type") in ("agent.tool_use", "agent.custom_tool_use"),
    is_type("agent.tool_use", "agent.custom_tool_use"),
    lambda item: item.get("type") in ("agent.tool_result", "user.custom_tool_result") and "id" in item,
)
LINES = (is_type("assistant"), is_type("tool"), is_type("tool"))
BLOCKS = (is_assistant, is_type("tool_use"), is_type("tool_result"))
# File: (format, experiences, counters), and where the raw turns are not ours one by one, our number of them.
FILES = {
    "repro/cline_session.messages.json": ("cline", 1, BLOCKS, None),
    "traces_new/cline/success.messages.json": ("cline", 1, BLOCKS, None),
    "traces_new/gemini_cli/standard_session.json": ("gemini-cli", 1, (is_type("gemini"), is_type("-"), is_type("-")), None),
    "traces_new/gemini_cli/thinking_only.json": ("gemini-cli", 1, (is_type("gemini"), is_type("-"), is_type("-")), None),
    "traces_new/kiro_cli/session_single_turn.jsonl": (
        "kiro-cli",
        1,
        (lambda item: item.get("kind") == "AssistantMessage", is_type("-"), is_type("-")),
        None,
    ),
    "traces_new/pi/2024-01-15T10-30-00-000Z_abc12345-1234-5678-9abc-def012345678.jsonl": ("pi", 1, PI, None),
    "traces_new/openclaw/crux1-sample-telemetry.jsonl": ("pi", 2, PI, None),
    "traces_new/anthropic_events/anthropic_managed_builtin_tools.jsonl": ("managed-agents", 1, MANAGED, None),
    "traces_new/anthropic_events/anthropic_managed_custom_tools.jsonl": ("managed-agents", 1, MANAGED, None),
    # Calls after a result without text before them are separate turns.
    "traces_new/sessions_misc/aider_bugfix.jsonl": ("session-lines", 1, LINES, 14),
    "traces_new/sessions_misc/cline_vscode_setup.jsonl": ("session-lines", 1, LINES, 18),
    "traces_new/sessions_misc/codex_api_design.jsonl": ("session-lines", 1, LINES, 11),
    "traces_new/sessions_misc/gemini_debugging.jsonl": ("session-lines", 1, LINES, 15),
    "traces_new/sessions_misc/chatgpt_react_help.jsonl": ("claude-code", 1, LINES, None),
    "traces_new/sessions_misc/unicode_heavy.jsonl": ("claude-code", 1, LINES, None),
    # The greeting is not a generated turn.
    "traces_new/tau2_bench/tau2_retail_example_trajectory.json": (
        "tau2-bench",
        1,
        (is_assistant, lambda item: item.get("requestor") == "assistant" and "arguments" in item and "id" in item,
         lambda item: item.get("role") == "tool"),
        9,
    ),
    "traces_new/swe_agent/function_calling_simple.traj": (
        "swe-agent",
        1,
        (is_assistant, is_type("function"), lambda item: item.get("role") == "tool"),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_real_file_gives_what_its_json_holds(name):
    format_name, num_experiences, counters, num_turns = FILES[name]
    detected, experiences, rejected = read_path(SHARED / name)
    turns, calls, results = tally(SHARED / name, *counters)
    assert (detected, rejected) == (format_name, [])
    turns = num_turns if num_turns is not None else turns
    assert counts(experiences) == (num_experiences, turns, calls, results)


@pytest.mark.parametrize("name", ["10df_sample", "19bb_sample", "1abf_sample", "1c6c_sample", "2408_sample", "sample"])
def test_agent_data_files_give_every_action_and_observation(name):
    path = SHARED / "traces_new" / "adp_std" / f"{name}_std.json"
    rows = raw_value(path)
    detected, experiences, rejected = read_path(path)
    turns, calls, _ = tally(path, *ADP)
    assert (detected, rejected) == ("agent-data", [])
    assert counts(experiences)[:3] == (len(rows), turns, calls)
    assert [len(exp.prompt) + len(exp.completion) for exp in experiences] == [len(row["content"]) for row in rows]


def test_openhands_events_give_every_answer_and_observation():
    events = raw_value(SHARED / "traces_new" / "openhands_legacy" / "basic_gui_mode.json")
    _, experiences, rejected = read_path(SHARED / "traces_new" / "openhands_legacy" / "basic_gui_mode.json")
    responses = {
        event["tool_call_metadata"]["model_response"]["id"] for event in events if "tool_call_metadata" in event
    }
    answers = [event for event in events if event["source"] == "agent" and event.get("action") == "message"]
    results = [event for event in events if event.get("observation") in ("run", "edit")]
    assert counts(experiences) == (1, len(responses) + len(answers), len(responses), len(results))
    assert rejected == []


def test_openhands_rows_give_every_action_and_observation():
    path = SHARED / "traces_new" / "openhands_legacy" / "output.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    events = [
        event for row in rows for item in row["history"] for event in (item if isinstance(item, list) else [item])
    ]
    kinds = Counter("call" if "action" in event else "result" for event in events if event.get("action") != "message")
    _, experiences, _ = read_path(path)
    assert counts(experiences) == (len(rows), kinds["call"], kinds["call"], kinds["result"])
    assert [exp.reward for exp in experiences] == [float(row["success"]) for row in rows]


# Files without a conversation: each is refused, with a reason.
WITHOUT = {
    "pi/2026-02-19T13-30-29-055Z_64ddb985-5b6b-4d0c-854b-e8300d86dee4.jsonl": "400 bad request",
    "pi/2026-02-19T15-21-35-350Z_525a5c8b-f733-4ca8-84e1-db7bdfb12bbe.jsonl": "400 bad request",
    "pi/2026-02-20T05-44-27-727Z_ac8c717e-0824-4232-8182-17cbdc9376a4.jsonl": "400 bad request",
    "opencode/msg_test2.json": "without its opencode session",
    "opencode/part1.json": "without its opencode session",
    "terminal_bench/results.json": "logged no turns",
    "terminal_bench/4caf_results.json": "logged no turns",
    "inspect/log_tool_call_error.json": "no answer of the model",
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_file_without_a_conversation_is_rejected_with_the_reason(name):
    _, experiences, (rejected,) = read_path(SHARED / "traces_new" / name)
    assert experiences == []
    assert WITHOUT[name] in rejected.reason


# Recorded answers without their prompts, lists of patches, tables of results.
NO_TRACE = [
    *(f"cline/{name}.json" for name in ("headless-model-flag", "headless-verbose", "hello-and-goodbye", "per-turn-metrics")),
    *(f"cline/{name}.json" for name in ("read-file-outside-cwd", "read-file", "session")),
    *(f"gemini_cli/{name}.json" for name in ("agent-static-instructions", "skill-root-success", "tool-success")),
    *("gemini_cli/tool-error-recovery.json", "openhands_legacy/example_model_output.json"),
    *("tau2_bench/eval_results.json", "tau2_bench/a13a_eval_results.json"),
]  # fmt: skip


@pytest.mark.parametrize("name", NO_TRACE)
def test_no_reader_of_sessions_claims_a_file_without_a_prompt(name):
    layout = detect(SHARED / "traces_new" / name)
    assert isinstance(layout, Rejected) or layout.format in ("openai-chat", "rows")

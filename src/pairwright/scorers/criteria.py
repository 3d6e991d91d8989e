"""Built-in criteria that score what a run did, without a model and without a reference.

Each takes a run and returns a score from 0 to 1 (higher is better) with a reason, or None if it does not apply, such as
the share of successful calls in a run without calls.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from pairwright.records.experience import Experience
from pairwright.records.messages import Json, ToolCall, canonical_arguments, content_hash
from pairwright.sources.shapes.tool_errors import result_error_kind

Judged = tuple[float, str] | None  # a score and its reason
LOOP_LENGTH = 3  # repetitions of a call with the same result that count as a loop
# The start of a user turn that corrects the previous answer.
_COMPLAINT = re.compile(
    r"(?:no[,.! ]|nope\b|wrong\b|incorrect\b|that(?:'s| is) (?:not|wrong|incorrect)|not what i\b"
    r"|i (?:said|meant|asked)\b|you (?:did not|didn't|forgot|misunderstood|missed)\b"
    r"|still (?:not|wrong|broken|failing)\b|(?:please )?try again\b)",
    re.I,
)
_SIMILAR = 0.8  # minimum share of common words for a repeated turn
# Patterns of test runner summaries: numbers of passed and failed tests.
_NUMBERS = re.compile(r"(\d+) (passed|passing|failed|failing|errors?|failures?)\b", re.I)
_UNITTEST = re.compile(r"^Ran (\d+) tests? in [^\n]*\n\s*(?:OK|FAILED \(([^)\n]*)\))", re.M)
_GO = re.compile(r"^\s*--- (PASS|FAIL): ", re.M)
_SUMMARY_WORDS = ("passed", "passing", "failed", "failing", "Ran ", "--- PASS", "--- FAIL")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip


def calls_succeed(run: Experience) -> Judged:
    """The share of tool results that are not failures."""
    start = len(run.prompt)
    sites = {site.index for site in run.errors}
    results = [(start + at, message) for at, message in enumerate(run.completion) if message.role == "tool"]
    if not results:
        return None
    failed = [message for at, message in results if at in sites or result_error_kind(at, message) is not None]
    names = ", ".join(sorted({message.name for message in failed if message.name})[:3])
    return _share(len(results) - len(failed), len(results), f"tool results failed{': ' + names if names else ''}")


def tools_known(run: Experience) -> Judged:
    """The share of calls to tools that were offered."""
    offered = set(_schemas(run))
    calls = _calls(run)
    if not calls or not offered:
        return None
    unknown = [call.name for call in calls if call.name not in offered]
    return _share(len(calls) - len(unknown), len(calls), f"calls are to unknown tools: {', '.join(unknown[:3])}")


def arguments_fit(run: Experience) -> Judged:
    """The share of calls whose arguments are a JSON object that fits the schema of the tool."""
    schemas = _schemas(run)
    calls = [call for call in _calls(run) if call.name in schemas]
    if not calls:
        return None
    problems = [(call.name, problem) for call in calls if (problem := _misfit(call, schemas[call.name]))]
    first = f"{problems[0][0]}: {problems[0][1]}" if problems else ""
    return _share(len(calls) - len(problems), len(calls), f"calls have bad arguments: {first}")


def no_loop(run: Experience) -> Judged:
    """0 if the same call gave the same result three times, or the same text was written three times."""
    results = {message.tool_call_id: message.text for message in run.completion if message.role == "tool"}
    seen: Counter[str] = Counter()
    for message in run.completion:
        if not message.is_generated:
            continue
        for call in message.tool_calls:
            seen[content_hash(call.name, canonical_arguments(call.arguments), results.get(call.id))] += 1
        if not message.tool_calls and message.text.strip():
            seen[content_hash(message.text.strip())] += 1
    most = max(seen.values(), default=0)
    return (0.0, f"the same action {most} times") if most >= LOOP_LENGTH else (1.0, "no action was repeated")


def not_truncated(run: Experience) -> Judged:
    """0 if the run was cut off by a limit of tokens or turns."""
    reasons = [run.info.get("finish_reason"), *(run.info.get("finish_reasons") or ())]
    is_cut = run.truncate_status is not None or "length" in reasons
    return (0.0, "cut off") if is_cut else (1.0, "whole")


def final_answer(run: Experience) -> Judged:
    """1 if the run ends with text that the model wrote, without another call."""
    last = run.completion[-1] if run.completion else None
    has_answer = bool(final_text(run)) and (last is None or not last.tool_calls)
    return (1.0, "ends with an answer") if has_answer else (0.0, "ends without an answer")


def user_content(run: Experience) -> Judged:
    """The share of user turns after the first answer that neither repeat an earlier user turn nor correct an answer."""
    start = next((at for at, message in enumerate(run.completion) if message.is_generated), len(run.completion))
    later = [message.text for message in run.completion[start:] if message.role == "user"]
    if not later:
        return None
    earlier = [message.text for message in (*run.prompt, *run.completion[:start]) if message.role == "user"]
    bad = []
    for text in later:
        if _COMPLAINT.match(text.lstrip()) or any(_is_repeated(text, other) for other in earlier):
            bad.append(text)
        earlier.append(text)
    return _share(
        len(later) - len(bad), len(later), f"user turns are repetitions or corrections: {bad[0][:80] if bad else ''}"
    )


def _is_repeated(text: str, other: str) -> bool:
    one, two = set(text.lower().split()), set(other.lower().split())
    return len(one) > 2 and len(one & two) >= _SIMILAR * len(one | two)


def tests_passed(run: Experience) -> Judged:
    """The share of passed tests in the last tool result with the summary of a test runner."""
    for message in reversed(run.completion):
        text = message.text if message.role == "tool" else ""
        if not any(map(text.__contains__, _SUMMARY_WORDS)):
            continue
        passed, failed = _count_tests(text[-20_000:])
        if passed + failed:
            return _share(passed, passed + failed, "tests did not pass")
    return None


def _count_tests(text: str) -> tuple[int, int]:
    if found := _UNITTEST.search(text):
        failed = sum(map(int, re.findall(r"(?:failures|errors)=(\d+)", found[2] or "")))
        return int(found[1]) - failed, failed
    if verdicts := _GO.findall(text):
        return verdicts.count("PASS"), verdicts.count("FAIL")
    # In pytest, Jest and Cargo the last line with counts is the summary; Mocha has one line per count.
    counts: dict[bool, int] = {}
    for line in reversed(text.splitlines()):
        found_here: Counter[bool] = Counter()
        for number, word in _NUMBERS.findall(line):
            found_here[word.lower() in ("passed", "passing")] += int(number)
        if counts and (not found_here or not counts.keys().isdisjoint(found_here)):
            break
        counts.update(found_here)
    return counts.get(True, 0), counts.get(False, 0)


def final_text(run: Experience) -> str:
    """Return the text of the last generated turn."""
    for message in reversed(run.completion):
        if message.is_generated:
            return message.text.strip()
    return (run.response_text or "").strip()


def _calls(run: Experience) -> list[ToolCall]:
    return [call for message in run.completion if message.is_generated for call in message.tool_calls]


def _schemas(run: Experience) -> dict[str, Json]:
    """Return the parameter schema of each tool by name, from OpenAI's, Anthropic's or a plain form."""
    schemas = {}
    for tool in run.tools:
        function = tool.get("function", tool)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            schema = function.get("parameters") or function.get("input_schema") or function.get("inputSchema") or {}
            schemas[function["name"]] = schema if isinstance(schema, dict) else {}
    return schemas


def _misfit(call: ToolCall, schema: Json) -> str:
    """Return why the arguments of a call violate a schema (required or unknown keys, types, enums); "" if valid."""
    try:
        value = msgspec.json.decode(call.arguments) if call.arguments.strip() else {}
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return "not JSON"
    if not isinstance(value, dict):
        return "not an object"
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    for name in schema.get("required") or ():
        if name not in value:
            return f"{name} is missing"
    for name, item in value.items():
        if name not in properties:
            if schema.get("additionalProperties") is False:
                return f"{name} is unknown"
            continue
        if problem := _misfit_value(item, properties[name]):
            return f"{name} {problem}"
    return ""


def _misfit_value(value: Any, schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return "is not among the allowed values"
    wanted = schema.get("type")
    names = wanted if isinstance(wanted, list) else [wanted]
    known = [_TYPES[name] for name in names if name in _TYPES]
    if known and not any(_has_type(value, kinds) for kinds in known):
        return f"is not of type {' or '.join(map(str, names))}"
    return ""


def _has_type(value: Any, kinds: tuple[type, ...]) -> bool:
    # bool is a subclass of int in Python; a whole float is an integer in JSON Schema
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (kinds == (int,) and isinstance(value, float) and value.is_integer())


def _share(num_good: int, num_all: int, problem: str) -> Judged:
    return num_good / num_all, f"{num_all - num_good} of {num_all} {problem}" if num_good < num_all else "all good"


CRITERIA: dict[str, Callable[[Experience], Judged]] = {
    function.__name__: function
    for function in (
        calls_succeed, tools_known, arguments_fit, no_loop, not_truncated, final_answer, user_content, tests_passed
    )
}  # fmt: skip

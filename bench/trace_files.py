"""Files of synthetic traces in the most common formats, for measurements; deterministic for a seed."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = [
    "the", "agent", "reads", "a", "calendar", "and", "sends", "an", "email", "to", "the", "customer", "about",
    "the", "invoice", "before", "noon", "on", "monday", "with", "details", "of", "every", "open", "order", "status",
    "and", "price",
]  # fmt: skip
_PARAMETERS = {
    "type": "object",
    "properties": {"id": {"type": "string", "description": "an id"}},
    "required": ["id"],
}


def _text(draw: random.Random, num_words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(num_words))


def write_rollouts(path: Path, num_rollouts: int, *, has_tokens: bool = False) -> None:
    """Write rollouts in the layout of NeMo Gym, eight per task, with two calls each; `has_tokens` adds recorded ids."""
    draw = random.Random(0)
    tools = [{"name": f"tool_{n}", "parameters": _PARAMETERS, "strict": False, "type": "function"} for n in range(2)]
    with open(path, "w", encoding="utf-8") as file:
        for number in range(num_rollouts):
            words = random.Random(number // 8)
            prompt = [
                {"content": f"You are a workplace assistant. {_text(words, 30)}", "role": "system", "type": "message"},
                {"content": _text(words, 30), "role": "user", "type": "message"},
            ]
            output: list[dict[str, Any]] = []
            for turn in range(2):
                call_id = f"call_{draw.getrandbits(96):024x}"
                arguments = json.dumps({"id": f"{draw.getrandbits(40):x}"})
                result = json.dumps({"status": "ok", "text": _text(draw, 20)})
                output.append(
                    {"arguments": arguments, "call_id": call_id, "name": f"tool_{turn}", "type": "function_call"}
                )
                output.append({"call_id": call_id, "output": result, "type": "function_call_output"})
            part = {"annotations": [], "text": _text(draw, 30), "type": "output_text"}
            output.append({"id": f"msg_{number}", "content": [part], "role": "assistant", "type": "message"})
            if has_tokens:
                _add_token_ids(output, draw)
            rollout = {
                "responses_create_params": {"input": prompt, "tools": tools, "parallel_tool_calls": False},
                "response": {"id": f"resp_{number}", "model": "m", "object": "response", "output": output},
                "reward": round(draw.random(), 3),
                "_ng_task_index": number // 8,
                "_ng_rollout_index": number % 8,
                "agent_ref": {"type": "responses_api_agents", "name": "assistant"},
            }
            file.write(json.dumps(rollout) + "\n")


def _add_token_ids(output: list[dict[str, Any]], draw: random.Random) -> None:
    """Add recorded ids; each item of the model has the ids of its whole prompt, including earlier items."""
    ids = [draw.randrange(150_000) for _ in range(200)]
    for item in output:
        if item["type"] == "function_call_output":
            ids = ids + [draw.randrange(150_000) for _ in range(30)]
            continue
        new = [draw.randrange(150_000) for _ in range(40)]
        item["prompt_token_ids"], item["generation_token_ids"] = ids, new
        item["generation_log_probs"] = [-draw.random() for _ in new]
        ids = ids + new


def write_rollouts_with_tokens(path: Path, num_records: int) -> None:
    write_rollouts(path, num_records, has_tokens=True)


def write_chats(path: Path, num_records: int) -> None:
    """Write OpenAI chat rows with tools, two calls and a score each."""
    draw = random.Random(1)
    tools = [{"type": "function", "function": {"name": f"tool_{n}", "parameters": _PARAMETERS}} for n in range(2)]
    with open(path, "w", encoding="utf-8") as file:
        for number in range(num_records):
            words = random.Random(number // 8)
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": _text(words, 30)},
                {"role": "user", "content": _text(words, 30)},
            ]
            for turn in range(2):
                call_id = f"call_{draw.getrandbits(96):024x}"
                function = {"name": f"tool_{turn}", "arguments": json.dumps({"id": f"{draw.getrandbits(40):x}"})}
                call = {"id": call_id, "type": "function", "function": function}
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                messages.append({"role": "tool", "tool_call_id": call_id, "content": _text(draw, 20)})
            messages.append({"role": "assistant", "content": _text(draw, 30)})
            row = {"messages": messages, "tools": tools, "score": round(draw.random(), 3), "task_id": f"t{number // 8}"}
            file.write(json.dumps(row) + "\n")


def write_nat_steps(path: Path, num_records: int) -> None:
    """Write NAT's workflow_output.json: items of six turns with four scored candidates each."""
    draw = random.Random(2)
    items: list[dict[str, Any]] = []
    for number in range(max(1, num_records // 24)):
        steps: list[dict[str, Any]] = []
        for turn in range(6):
            prompt = [{"role": "system", "content": "You play."}, {"role": "user", "content": _text(draw, 40)}]
            for candidate in range(4):
                place = {"turn_id": f"t{turn}", "turn_index": turn, "candidate_index": candidate}
                payload = {"event_type": "TTC_END", "event_timestamp": 1.5, "span_event_timestamp": None,
                           "framework": None, "name": "pick", "tags": None, "metadata": None, "usage_info": None,
                           "data": {"input": prompt, "output": _text(draw, 20), "score": draw.random(), **place},
                           "UUID": f"{draw.getrandbits(128):032x}"}  # fmt: skip
                ancestry = {"function_id": "root", "function_name": "root", "parent_id": None, "parent_name": None}
                steps.append({"parent_id": "root", "function_ancestry": ancestry, "payload": payload})
        items.append({"id": f"game-{number}", "question": "Your move", "answer": "win", "intermediate_steps": steps})
    path.write_text(json.dumps(items))


def write_claude_session(path: Path, num_records: int) -> None:
    """Write Claude Code sessions with two calls each to one file."""
    draw = random.Random(3)
    parent: str | None = None
    session = ""
    with open(path, "w", encoding="utf-8") as file:

        def write(kind: str, message: dict[str, Any]) -> None:
            nonlocal parent
            uuid = f"{draw.getrandbits(128):032x}"
            line = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": session,
                    "isSidechain": False, "cwd": "/srv/shop", "version": "2.1.0", "gitBranch": "dev",
                    "timestamp": "2026-01-01T00:00:00Z", "userType": "external",
                    "message": {"role": kind, **message}}  # fmt: skip
            file.write(json.dumps(line) + "\n")
            parent = uuid

        for number in range(num_records):
            parent, session = None, f"s{number}"
            write("user", {"content": _text(draw, 40)})
            usage = {"input_tokens": 100, "output_tokens": 20}
            for turn in range(2):
                use = {"type": "tool_use", "id": f"toolu_{draw.getrandbits(64):x}", "name": "Read",
                       "input": {"path": f"{draw.getrandbits(40):x}.txt"}}  # fmt: skip
                answer = {"id": f"m{turn}", "model": "claude-x", "usage": usage}
                write("assistant", {**answer, "content": [{"type": "text", "text": _text(draw, 20)}]})
                write("assistant", {**answer, "content": [use]})
                result = {"type": "tool_result", "tool_use_id": use["id"], "content": _text(draw, 40)}
                write("user", {"content": [result]})
            write("assistant", {"id": "m9", "model": "claude-x", "usage": usage, "stop_reason": "end_turn",
                                "content": [{"type": "text", "text": _text(draw, 30)}]})  # fmt: skip


def write_langfuse_traces(path: Path, num_records: int) -> None:
    """Write Langfuse exports, one per line: two generations with a tool run between them, and a score."""
    draw = random.Random(4)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(num_records):
            words = random.Random(number // 8)
            opening = [{"role": "system", "content": _text(words, 30)}, {"role": "user", "content": _text(words, 30)}]
            call_id = f"call_{draw.getrandbits(96):024x}"
            function = {"name": "shelf", "arguments": json.dumps({"id": f"{draw.getrandbits(40):x}"})}
            call = {"id": call_id, "type": "function", "function": function}
            asked = {"role": "assistant", "content": "", "tool_calls": [call]}
            result = {"role": "tool", "content": _text(draw, 20), "tool_call_id": call_id}
            answer = {"role": "assistant", "content": _text(draw, 30)}
            trace_id = f"{draw.getrandbits(128):032x}"
            shared = {"traceId": trace_id, "parentObservationId": "root", "environment": "default", "level": "DEFAULT"}
            observations = [
                {"id": f"g1-{number}", "type": "GENERATION", "name": "m", "startTime": "2026-01-01T00:00:01Z",
                 "model": "m-3", "usageDetails": {"input": 20, "output": 2}, "input": json.dumps(opening),
                 "output": json.dumps(asked), **shared},
                {"id": f"t1-{number}", "type": "TOOL", "name": "shelf", "startTime": "2026-01-01T00:00:02Z",
                 "input": function["arguments"], "output": json.dumps(result), **shared},
                {"id": f"g2-{number}", "type": "GENERATION", "name": "m", "startTime": "2026-01-01T00:00:03Z",
                 "model": "m-3", "usageDetails": {"input": 60, "output": 9},
                 "input": json.dumps([*opening, asked, result]), "output": json.dumps(answer), **shared},
            ]  # fmt: skip
            score = {"name": "reward", "value": round(draw.random(), 3), "dataType": "NUMERIC", "observationId": None}
            trace = {"id": trace_id, "name": "bookshop", "sessionId": "s-1", "tags": [], "scores": [score],
                     "metadata": json.dumps({"task_id": f"book-{number // 8}"})}  # fmt: skip
            file.write(json.dumps({"trace": trace, "observations": observations}) + "\n")


def write_codex_sessions(folder: Path, num_sessions: int) -> None:
    """Write sessions of the Codex CLI, one per file: a question, a call, its result, an answer."""
    draw = random.Random(5)
    for number in range(num_sessions):
        time = f"2026-01-01T00:00:{number % 60:02d}Z"

        def line(kind: str, payload: dict[str, Any], time: str = time) -> str:
            return json.dumps({"timestamp": time, "type": kind, "payload": payload}) + "\n"

        call_id = f"call_{draw.getrandbits(64):x}"
        question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _text(draw, 30)}]}
        call = {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": call_id}
        result = {"type": "function_call_output", "call_id": call_id, "output": _text(draw, 20)}
        answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": _text(draw, 30)}]}
        lines = [line("session_meta", {"id": f"s-{number:06d}", "cwd": "/srv/shop", "cli_version": "0.42.0"})]
        lines += [line("response_item", item) for item in (question, call, result, answer)]
        path = folder / f"{number % 100:02d}" / f"rollout-{number:06d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")


# The most common formats: name in the table -> file name and the function that writes it.
FORMATS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "NeMo Gym with token ids": ("tokens.jsonl", write_rollouts_with_tokens),
    "OpenAI chat": ("chat.jsonl", write_chats),
    "NAT candidates": ("workflow_output.json", write_nat_steps),
    "Claude Code": ("session.jsonl", write_claude_session),
    "Langfuse": ("langfuse.jsonl", write_langfuse_traces),
}

"""Memory of smolagents (`agent.memory.get_full_steps()`, or a RunResult): one run, step by step.

    [{task}, {step_number, model_input_messages, model_output_message, tool_calls, error, observations}, ...]

Each step has the messages of its request. Requests with the prefix property (each repeats the previous request and its
answer) form one conversation; otherwise (tool-calling agents, whose calls are resent as text; plans) each step is a
separate experience, in order. As in smolagents' requests, messages of role `tool-call` are read as assistant turns that
were not generated, `tool-response` as user turns.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.sources.datasets.row_format import history, history_format, history_in
from pairwright.sources.fields import BadRecord, has, mapping, object_or_empty, objects, text_at
from pairwright.sources.identity import task_hash
from pairwright.sources.shapes.chat_messages import message_from_chat
from pairwright.sources.shapes.row_fields import run_of, task_of
from pairwright.sources.shapes.tool_errors import failure_kind

_KEYS = ("steps", "messages", "full_steps")
_ROLES = {"tool-call": "assistant", "tool-response": "user"}

# (request, answer)
Call = tuple[list[Message], Message]


def matches(value: Any) -> bool:
    steps = history_in(value, _KEYS)[0]
    return isinstance(steps, list) and any(has(step, "model_output_message") for step in steps)


def _take(row: Json) -> Iterator[Json]:
    steps, where = history_in(row, _KEYS)
    calls: list[Call] = []
    failures: list[str] = []
    for place, step in objects(steps, where):
        failure = text_at(step, "error.message")
        failures += [] if failure is None else [failure]
        if step.get("model_output_message") is not None:
            calls.append(_call(step, place))
    if not calls:
        raise BadRecord(f"{where}: no step with an answer of the model")
    # Later requests may start differently, so all share the task of the first one.
    task = task_of(row) or task_hash(tuple(calls[0][0]), (), None)
    for step_number, messages in enumerate(_conversations(calls)):
        num_prompt = next(n for n, message in enumerate(messages) if message.is_generated)
        yield history(
            messages,
            num_prompt,
            task=task,
            run=run_of(row),
            step=step_number,
            tools=(),
            errors=_failed_turns(messages, failures),
            info={"errors": failures} if failures else {},
        )


def _call(step: Json, where: str) -> Call:
    if step.get("model_input_messages") is None:
        raise BadRecord(f"{where}: no model_input_messages; write the memory with get_full_steps()")
    inputs = list(objects(step["model_input_messages"], f"{where}.model_input_messages"))
    at = f"{where}.model_output_message"
    answer = _message(mapping(step["model_output_message"], at), at, is_answer=True)
    return [_message(item, place) for place, item in inputs], answer


def _message(chat: Json, where: str, *, is_answer: bool = False) -> Message:
    fields = {key: chat.get(key) for key in ("role", "content", "tool_calls")}
    content = fields["content"]
    # Every text is wrapped in a list with one part.
    if isinstance(content, list) and len(content) == 1 and object_or_empty(content[0]).keys() == {"type", "text"}:
        fields["content"] = content[0]["text"]
    role = fields["role"] if isinstance(fields["role"], str) else None
    fields["role"] = "assistant" if is_answer else _ROLES.get(role or "", role)
    return message_from_chat(fields, where, generated=None if is_answer or fields["role"] != "assistant" else False)


def _failed_turns(messages: list[Message], failures: list[str]) -> list[ErrorSite]:
    sites = []
    for index, message in enumerate(messages):
        failure = next((text for text in failures if text in message.text), None) if message.role == "user" else None
        if failure is not None:
            sites.append(ErrorSite(index, failure_kind(failure, "tool_error"), failure))
    return sites


def _conversations(calls: list[Call]) -> Iterator[list[Message]]:
    """Join calls while each request repeats the conversation so far; yield the conversations."""
    current: list[Message] = []
    for request, answer in calls:
        known = len(current)
        texts = [(message.role, message.content) for message in request[:known]]
        if current and texts == [(message.role, message.content) for message in current] and not current[-1].tool_calls:
            current = [*current, *request[known:], answer]
            continue
        if current:
            yield current
        current = [*request, answer]
    yield current


FORMAT = history_format("smolagents", "Memory of smolagents runs", matches, _take, frozenset(_KEYS))

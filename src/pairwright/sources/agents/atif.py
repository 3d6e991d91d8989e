"""ATIF trajectories (Harbor, NAT): `{schema_version, session_id, agent{}, steps[]}`, one run per file.

A step is a system, user or agent message; an agent step has reasoning, tool calls and an observation with their
results. A result belongs to the call named by its source_call_id, or to the only call of the step. If the step has no
calls (agents that write commands as text), the result becomes the next user message. Steps with `is_copied_context`,
and agent steps with `llm_call_count` 0, were not written by the model in this run and are not generated.
`subagent_trajectories` inside the file are experiences of the same run with their own step; references to other files
stay in `extra`.

The reward is in `result.json` in the same folder or its parent: verifier_result.rewards, by default the component
"reward", else the only one. task = the result's task_name, else a hash of the prompt; run = a number derived from the
trial's name, else from session_id; step = `continuation_index`, so a continued run is one run. Recorded token ids are
kept if the steps have the prefix property.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pairwright.records.json_text import decode
from pairwright.records.messages import ErrorSite, Json, Message, ToolCall
from pairwright.sources.assemble import Parts, read_each
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    identifier,
    index,
    json_text,
    mapping,
    object_or_empty,
    objects,
    optional_items,
    optional_mapping,
    optional_objects,
    optional_text,
    text,
    text_at,
    text_or_none,
)
from pairwright.sources.format import Format, Options, Origin, PartOfAnother, Rejected
from pairwright.sources.shapes.chat_messages import content_from_chat, read_call, tools_from_chat
from pairwright.sources.shapes.recorded_tokens import tokens_of_turns, turn_tokens
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import run_of

NAME = "atif"
# Size limit of result.json, which is discovered next to the trace, not named by the user.
MAX_RESULT_BYTES = 16 * 2**20
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_FAILED = frozenset({"failed", "error", "timeout", "cancelled"})


def matches(value: Any) -> bool:
    return has(value, steps=list, schema_version=str) and value["schema_version"].upper().startswith("ATIF")


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    trajectory = mapping(value, "trajectory")
    result, note = _result_beside(origin.path)
    agent = optional_mapping(trajectory.get("agent"), "agent")
    # A continued run: the file holds the steps after a restart.
    step = index(optional_mapping(agent.get("extra"), "agent.extra").get("continuation_index")) or 0
    yield _experience(trajectory, result, note, origin, step)
    yield from read_each(
        NAME,
        origin,
        optional_items(trajectory.get("subagent_trajectories"), "subagent_trajectories"),
        "subagent_trajectories",
        lambda subagent, number: [_experience(subagent, result, note, origin, step + 1 + number, parent=trajectory)],
    )


def _experience(
    trajectory: Json,
    result: Json,
    note: str | None,
    origin: Origin,
    step: int,
    parent: Json | None = None,
) -> Parts:
    """Build the experience of one trajectory; `parent` is the enclosing trajectory of a subagent."""
    agent = optional_mapping(trajectory.get("agent"), "agent")
    steps = list(objects(trajectory.get("steps"), "steps"))
    tools = tools_from_chat(agent.get("tool_definitions"), "agent.tool_definitions")
    messages = [message for where, item in steps for message in _messages(item, where)]
    arrays, dropped = _tokens([item for _, item in steps])
    info = _info(trajectory, agent, result, parent)
    if dropped is not None:
        info["tokens_dropped"] = dropped
    if note is not None:
        info["result_json"] = note
    verdict = object_or_empty(result.get("verifier_result"))
    rewards = verdict.get("rewards", verdict.get("reward"))
    models = [agent.get("model_name"), *(item.get("model_name") for _, item in steps)]
    name, task_id = identifier(result.get("task_name")), result.get("task_id")
    task = json_text(task_id) if isinstance(task_id, dict) else identifier(task_id) or None
    # A subagent has the run of its parent, so that both can be found together.
    trial = identifier(result.get("trial_name")) or identifier((parent or trajectory).get("session_id"))
    return Parts(
        NAME,
        origin,
        task=task if name is None else name,
        run=run_of(trial, origin.ordinal),
        step=step,
        messages=messages,
        tools=tools,
        reward_components=rewards if isinstance(rewards, dict) else filled({"reward": rewards}),
        error_kind=_error_kind,
        errors=_exception(result, messages),
        info=info,
        metrics=optional_mapping(trajectory.get("final_metrics"), "final_metrics"),
        model_version=next((model for model in models if isinstance(model, str)), None),
        arrays=arrays,
    )


def _messages(step: Json, where: str) -> list[Message]:
    """Return the message of a step, followed by the results in its observation."""
    source = text(step.get("source"), f"{where}.source")
    if source not in _ROLES:
        raise BadRecord(f"{where}.source: expected system, user or agent, got {source!r}")
    listed = list(optional_objects(step.get("tool_calls"), f"{where}.tool_calls"))
    names = {"name": "function_name", "call_id": "tool_call_id"}
    calls = [read_call(call, place, **names) for place, call in listed]
    # Not generated: turns copied from another context, and steps of the agent's program without a model call.
    is_copied = step.get("is_copied_context") is True or (source == "agent" and step.get("llm_call_count") == 0)
    message = Message(
        role=_ROLES[source],
        content=content_from_chat(step.get("message"), f"{where}.message"),
        reasoning=optional_text(step.get("reasoning_content"), f"{where}.reasoning_content"),
        tool_calls=tuple(calls),
        generated=False if is_copied and source == "agent" else None,
        extra={"is_copied_context": True} if step.get("is_copied_context") is True else {},
    )
    observation = optional_mapping(step.get("observation"), f"{where}.observation")
    # Ids of failed calls, if NAT's exporter logged their status; results only have text.
    statuses = [text_at(call, "extra.invocation.status") for _, call in listed]
    failed = {call.id for call, status in zip(calls, statuses, strict=True) if status in _FAILED}
    found = optional_objects(observation.get("results"), f"{where}.observation.results")
    return [message, *(_result(result, calls, failed, place) for place, result in found)]


def _result(result: Json, calls: list[ToolCall], failed: set[str | None], where: str) -> Message:
    """Convert an observation result to a tool message, or to a user message if the step has no calls."""
    extra = dict(optional_mapping(result.get("extra"), f"{where}.extra"))
    references = result.get("subagent_trajectory_ref")
    if references is not None:
        extra["subagent_trajectory_ref"] = references
    content = result.get("content")
    if content is not None and not isinstance(content, str | list):
        content = json_text(content)
    content = content_from_chat(content, f"{where}.content")
    # Agents without tool calls read the output of their commands as the next user turn.
    if not calls:
        return Message("user", content, extra=extra)
    call_id = optional_text(result.get("source_call_id"), f"{where}.source_call_id")

    if call_id is None and len(calls) == 1:
        call_id = calls[0].id
    if call_id is not None and call_id in failed:
        extra["is_error"] = True
    return Message("tool", content, tool_call_id=call_id, extra=extra)


def _error_kind(position: int, message: Message) -> str | None:
    code = message.extra.get("exit_code", message.extra.get("return_code"))
    # bool is a subclass of int; True is not an exit code.
    if isinstance(code, int) and not isinstance(code, bool) and code != 0:
        return "nonzero_exit"
    if message.extra.get("is_error") is True or message.extra.get("status") == "error":
        return failure_kind(message.text, "tool_error")
    return None


def _exception(result: Json, messages: list[Message]) -> list[ErrorSite]:
    """Return an error site at the last message for the exception that ended the trial."""
    raised = result.get("exception_info")
    if not isinstance(raised, dict):
        return []
    kind, description = raised.get("exception_type"), text_or_none(raised.get("exception_message")) or ""
    error_kind = failure_kind(f"{kind} {description}", "exception")
    return [ErrorSite(len(messages) - 1, error_kind, description, meta={"exception_type": kind})]


def _tokens(steps: list[Json]) -> tuple[Json | None, str | None]:
    """Return the token fields, or the reason for dropping them; (None, None) if none were recorded."""
    turns = []
    recorded = False
    for step in steps:
        # Only generated steps have a recorded request.
        if step.get("source") != "agent" or step.get("is_copied_context") is True or step.get("llm_call_count") == 0:
            continue
        metrics = object_or_empty(step.get("metrics"))
        recorded = recorded or bool(metrics.get("completion_token_ids"))
        ids = metrics.get("prompt_token_ids"), metrics.get("completion_token_ids")
        turns.append(turn_tokens(*ids, metrics.get("logprobs")))
    if not recorded:
        return None, None
    if None in turns:
        return None, "not every step of the agent has valid token ids"
    arrays = tokens_of_turns(turns)
    return arrays, None if arrays is not None else "the prompt of a step does not continue the steps before it"


def _info(trajectory: Json, agent: Json, result: Json, parent: Json | None) -> Json:
    info: Json = {"agent": filled({key: agent.get(key) for key in ("name", "version")})}
    info |= {key: result.get(key) for key in ("trial_name", "source")}
    info["parent_session_id"] = parent.get("session_id") if parent else None
    for key in ("session_id", "trajectory_id", "notes", "continued_trajectory_ref", "extra"):
        info[key] = trajectory.get(key)
    return filled(info)


def _result_beside(path: Path) -> tuple[Json, str | None]:
    """Read the trial's result.json from the trajectory's folder or its parent; on failure return {} and a note."""
    for folder in (path.parent, path.parent.parent):
        candidate = folder / "result.json"
        try:
            # No symbolic links: the folder is untrusted, and a link may point anywhere.
            if not candidate.is_file() or candidate.is_symlink():
                continue
            with candidate.open("rb") as file:
                data = file.read(MAX_RESULT_BYTES + 1)
            if len(data) > MAX_RESULT_BYTES:
                return {}, f"not read: larger than {MAX_RESULT_BYTES} bytes"
            result = decode(data)
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            return {}, f"not readable: {error}"
        return (result, None) if isinstance(result, dict) else ({}, "not readable: not an object")
    return {}, None


def matches_result(value: Any) -> bool:
    is_result = has(value, "trial_name", "task_name", "agent_info") or has(value, "n_total_trials", "stats")
    return is_result and "steps" not in value


def read_result(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected | PartOfAnother]:
    """Count a result of Harbor, from which trajectories beside it read their rewards; refuse a trial without any."""
    folder = origin.path.parent
    trajectories = [*folder.glob("trajectory*.json"), *folder.glob("agent/trajectory*.json")]
    if "trial_name" in mapping(value, "result") and not trajectories:
        raise BadRecord("a trial of Harbor without a trajectory (agent/trajectory.json): only its result is known")
    yield PartOfAnother()


RESULT_FORMAT = Format(NAME, "record", matches_result, read_result, "results of Harbor's trials")
FORMAT = Format(NAME, "record", matches, read, "ATIF trajectories (Harbor, NAT)")

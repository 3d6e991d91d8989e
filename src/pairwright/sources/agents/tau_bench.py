"""Results of tau-bench and tau2-bench.

    tau     a list of {task_id, trial, reward, info, traj: [messages]}; `info` is kept in full
    tau2    {info, tasks[], simulations[]}, or one simulation {task_id, trial, reward_info, messages[]}

task = task_id (in tau2-bench after the domain), run = trial, reward = reward, in tau2-bench reward_info.reward; its
breakdown and the database check are components. Later turns of the simulated user stay in the completion, not
generated. The domain's policy, which tau2-bench puts into the system prompt, is the system message. The tools are those
of the domain. The initial greeting is not generated and belongs to the prompt. Calls of the simulated user and their
results (`requestor` user), which the agent does not see, are left out and counted in info. Voice simulations have no
messages and are rejected.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, read_each
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    identifier,
    index,
    items,
    mapping,
    object_or_empty,
    objects,
    optional_items,
    optional_mapping,
    optional_text,
    score,
    text,
    text_at,
    value_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import call_from_chat, messages_from_chat

NAME = "tau2-bench"
_ROLES = frozenset({"system", "user", "assistant", "tool"})


def matches(value: Any) -> bool:
    if has(value, "tasks", simulations=list):
        return any(map(_is_run, value["simulations"]))
    return _is_run(value) or (has(value) and _is_run(value.get("simulation_run")))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    record = mapping(value, "results")
    info = optional_mapping(record.get("info"), "info")
    runs = record.get("simulations", [record.get("simulation_run", record)])
    yield from read_each(NAME, origin, runs, "simulations", lambda run, _: [_experience(run, info, origin)])


def _experience(run: Json, info: Json, origin: Origin) -> Parts:
    environment = optional_mapping(info.get("environment_info"), "info.environment_info")
    agent = optional_mapping(info.get("agent_info"), "info.agent_info")
    policy = optional_text(run.get("policy"), "policy") or optional_text(environment.get("policy"), "policy")
    tools = []
    for item in optional_mapping(environment.get("tool_defs"), "tool_defs").values():
        tool = mapping(item, "tool_defs")
        function = {"name": tool.get("name"), "description": tool.get("doc"), "parameters": tool.get("params")}
        tools.append({"type": "function", "function": filled(function)})
    messages = [Message("system", policy)] if policy else []
    num_hidden = 0
    flat: list[Any] = []
    for turn in items(run.get("messages"), "messages"):  # the results of several calls may be in one message
        is_group = has(turn, "tool_messages")
        flat += optional_items(turn["tool_messages"], "tool_messages") if is_group else [turn]
    for number, (where, item) in enumerate(objects(flat, "messages")):
        message = _message(item, where, is_first=number == 0)
        num_hidden += message is None
        messages += [] if message is None else [message]
    domain, task = environment.get("domain_name"), identifier(run.get("task_id"))
    reward_info = optional_mapping(run.get("reward_info"), "reward_info")
    components = object_or_empty(reward_info.get("reward_breakdown"))
    components = {**components, "db_reward": value_at(reward_info, "db_check.db_reward")}
    details = {key: run.get(key) for key in ("id", "termination_reason", "seed", "mode")}
    return Parts(
        NAME,
        origin,
        task=f"{domain}/{task}" if isinstance(domain, str) and task is not None else task,
        run=index(run.get("trial")),
        messages=messages,
        tools=tools,
        reward=score(reward_info.get("reward")),
        reward_components={key: item for key, item in components.items() if score(item) is not None},
        info=filled({**details, "hidden_messages": num_hidden or None}),
        metrics={key: run[key] for key in ("agent_cost", "user_cost", "duration") if score(run.get(key)) is not None},
        model_version=text_at(agent, "llm"),
    )


def _message(message: Json, where: str, *, is_first: bool) -> Message | None:
    """Convert a message; None if the agent did not see it."""
    role = text(message.get("role"), f"{where}.role")
    if role not in _ROLES:
        raise BadRecord(f"{where}.role: expected user, assistant, system or tool, got {role!r}")
    content = optional_text(message.get("content"), f"{where}.content")
    if role == "tool":
        if message.get("requestor") == "user":
            return None
        extra = {"is_error": True} if message.get("error") is True else {}
        return Message("tool", content, tool_call_id=optional_text(message.get("id"), f"{where}.id"), extra=extra)
    calls = optional_items(message.get("tool_calls"), f"{where}.tool_calls")
    if role == "user" and calls and not content:
        return None
    # The agent's first turn is a fixed greeting, without a model request.
    is_greeting = is_first and role == "assistant" and not message.get("usage") and not message.get("raw_data")
    return Message(
        role,
        content,
        tool_calls=tuple(call_from_chat(call, f"{where}.tool_calls") for call in calls) if role == "assistant" else (),
        generated=False if is_greeting else None,
    )


def _is_run(value: Any) -> bool:
    return has(value, "task_id", "reward_info") and ("messages" in value or "ticks" in value)


TAU_FORMAT = RowFormat(
    "tau-bench",
    "tau-bench results",
    lambda value: has(value, "traj", "task_id"),
    lambda row: [
        {
            "messages": messages_from_chat(row.get("traj"), "traj"),
            "run": index(row.get("trial")),
            "error_kind": lambda _, message: "tool_error" if message.text.startswith("Error:") else None,
            "info": optional_mapping(row.get("info"), "info"),
        }
    ],
    frozenset({"task_id", "trial", "reward", "info", "traj"}),
).format
TAU2_FORMAT = Format(NAME, "record", matches, read, "tau2-bench results")

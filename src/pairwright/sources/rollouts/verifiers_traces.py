"""Traces of verifiers v1 (`traces.jsonl`), written by `verifiers` evals and prime-rl: message graphs with tokens.

    {task, env, traces: [trace], ...}                                                an episode: one or more agents
    {task{key, hash, data}, agent{name, config}, nodes[], calls[], rewards{}, metrics{}, ...}    a trace by itself
    nodes: {parent, message, sampled, tools, token_ids, mask, logprobs, advantages}

Each path from a root to a leaf is an experience; turns of an earlier path are context, and their tokens have mask 0. A
turn is generated if `sampled` is true. The tokens of a path are the concatenated tokens of its nodes; the prompt ends
before the first sampled token. The reward is the sum of score times weight.
task = key, else hash, id or idx of the task (with the agent's name if an episode has several traces).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts, read_each, split_at_answer
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    identifier,
    index,
    items,
    mapping,
    objects,
    objects_in,
    optional_mapping,
    score,
    small_fields,
    text_at,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.rollouts.verifiers_results import NAME, chat_with_calls, tools_as_functions
from pairwright.sources.shapes.chat_messages import as_context, message_from_chat
from pairwright.sources.shapes.recorded_tokens import are_ids
from pairwright.sources.shapes.traces import run_of

_MAX_BRANCHES = 1000
_READ = frozenset({"nodes", "calls", "tools", "rewards", "metrics", "task", "agent", "timing", "verifiers", "version"})
# Per-token values of a node without a field in Experience.
_UNUSED = ("reference_logprobs", "trainer_logprobs", "entropies", "loss_weights")


def matches(value: Any) -> bool:
    if has(value, traces=list, task=dict):
        return all(map(_is_trace, value["traces"])) and ("env" in value or "ok" in value)
    return _is_trace(value)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experiences of an episode or of a trace; unusable traces and paths are Rejected."""
    row = mapping(value, "row")
    if "traces" not in row:
        yield from _read_trace(row, origin, options, {}, has_peers=False)
        return
    traces = items(row["traces"], "traces")
    if not traces:
        raise BadRecord(f"traces: none; {_errors_of(row)}")
    episode = {f"episode_{key}": item for key, item in row.items() if key in ("id", "env", "group", "run")}
    has_peers = len(traces) > 1
    yield from read_each(
        NAME,
        origin,
        traces,
        "traces",
        lambda trace, _: _read_trace(trace, origin, options, episode, has_peers=has_peers),
    )


def _read_trace(
    trace: Json, origin: Origin, options: Options, episode: Json, *, has_peers: bool
) -> Iterator[Parts | Rejected]:
    nodes = [node for _, node in objects(trace.get("nodes"), "nodes")]
    messages = []
    for number, node in enumerate(nodes):
        where = f"nodes[{number}].message"
        chat = chat_with_calls(node.get("message"), where)
        # The role is not enough: a harness may put an assistant turn into the prompt.
        is_context = chat.get("role") == "assistant" and node.get("sampled") is not True
        messages.append(message_from_chat(chat, where, generated=False if is_context else None))
    if not any(message.is_generated for message in messages):
        raise BadRecord(f"nodes: no message that the model wrote; {_errors_of(trace)}")
    agent = optional_mapping(trace.get("agent"), "agent")
    reward, components, metrics = _rewards(trace)
    calls = {index(call.get("node")): call for call in objects_in(trace.get("calls"))}
    info = {**small_fields(trace, _READ), **episode, "agent": agent.get("name")}
    if agent.get("trainable") is False:
        info["trainable"] = False
    paths, num_leaves = _paths(nodes)
    if num_leaves > len(paths):
        yield origin.rejected(f"nodes: {num_leaves:,} paths, of which the first {len(paths):,} are read", NAME)
    shared: set[int] = set()
    for step, path in enumerate(paths):
        turns = [as_context(messages[number]) if number in shared else messages[number] for number in path]
        if not any(turn.is_generated for turn in turns):
            yield origin.rejected(f"nodes[{path[-1]}]: its path has no turn that the model wrote", NAME)
            continue
        prompt, completion = split_at_answer(turns)
        tools = tools_as_functions(nodes[path[0]].get("tools") or trace.get("tools"))
        call = calls.get(path[-1], {})
        details = {**info, **({"branch": step} if len(paths) > 1 else {})}
        yield Parts(
            NAME,
            origin,
            task=_task(trace, agent if has_peers else {}),
            run=run_of(identifier(trace.get("id")), origin.ordinal),
            step=step,
            prompt=prompt,
            completion=completion,
            tools=tools,
            reward=reward,
            reward_components=components,
            metrics=metrics,
            model_version=text_at(call, "model"),
            truncate_status="response_truncated" if call.get("finish_reason") == "length" else None,
            arrays=_arrays([nodes[number] for number in path], [number in shared for number in path], details),
            info=details,
        )
        shared.update(path)


def _is_trace(value: Any) -> bool:
    return has(value, "task", nodes=list) and all(has(node, message=dict) for node in value["nodes"])


def _paths(nodes: list[Json]) -> tuple[list[list[int]], int]:
    """Return the node numbers from root to leaf for the first leaves, and the number of all leaves."""
    parents: list[int | None] = [node.get("parent") for node in nodes]
    for number, parent in enumerate(parents):
        # A parent must precede its child, so that there are no cycles.
        if parent is not None and (type(parent) is not int or not 0 <= parent < number):
            raise BadRecord(f"nodes[{number}].parent: expected a node before it, got {parent!r}")
    leaves = sorted(set(range(len(nodes))) - set(parents))
    paths = []
    for leaf in leaves[:_MAX_BRANCHES]:
        path = [leaf]
        while (above := parents[path[-1]]) is not None:
            path.append(above)
        paths.append(path[::-1])
    return paths, len(leaves)


def _task(trace: Json, agent: Json) -> int | str | None:
    task = optional_mapping(trace.get("task"), "task")
    data = optional_mapping(task.get("data"), "task.data")
    names = (task.get("key"), task.get("hash"), data.get("id"), data.get("idx"))
    name = next((one for one in map(identifier, names) if one is not None), None)
    return f"{name}/{agent['name']}" if name is not None and isinstance(agent.get("name"), str) else name


def _rewards(trace: Json) -> tuple[float | None, Json, Json]:
    scores: Json = {}
    total: float | None = None
    for name, item in optional_mapping(trace.get("rewards"), "rewards").items():
        item = mapping(item, f"rewards.{name}") if item is not None else {}
        scores[name] = score(item.get("score"))
        weight = score(item.get("weight", 1.0))
        if scores[name] is not None and weight is not None:
            total = (total or 0.0) + scores[name] * weight
    metrics = filled(optional_mapping(trace.get("metrics"), "metrics"))
    # A null score was never computed, so the sum of the others is not the reward.
    return None if None in scores.values() else total, filled(scores), metrics


def _arrays(nodes: list[Json], is_shared: list[bool], info: Json) -> Json | None:
    """Return the token fields of a path, or None; `info` gets the reason if they are dropped."""
    if not any(node.get("token_ids") for node in nodes):
        return None
    ids: list[int] = []
    sampled: list[bool] = []  # per token: was it generated, in this path or an earlier one?
    mask: list[bool] = []
    for node, shared in zip(nodes, is_shared, strict=True):
        tokens, node_mask = node.get("token_ids") or [], node.get("mask") or []
        if not are_ids(tokens) or not _are_numbers(node_mask) or len(node_mask) != len(tokens):
            info["tokens_dropped"] = "token ids and mask of a turn do not fit"
            return None
        if (node.get("sampled") is True) != any(node_mask):
            info["tokens_dropped"] = "some turns have no token ids"
            return None
        ids += tokens
        sampled += map(bool, node_mask)
        mask += [bool(item) and not shared for item in node_mask]
    start = sampled.index(True)
    arrays: Json = {
        "tokens": np.array(ids, dtype=np.int32),
        "prompt_length": start,
        "action_mask": np.array(mask[start:], dtype=bool),
    }
    unused = [key for key in _UNUSED if any(node.get(key) for node in nodes)]
    for key in ("logprobs", "advantages"):
        values = [item for node in nodes if _are_numbers(node.get(key)) for item in node[key]]
        if len(values) == sum(sampled):
            # One value per generated token; 0.0 for the others.
            arrays[key] = np.zeros(len(ids) - start, dtype=np.float32)
            arrays[key][sampled[start:]] = values
        elif values:
            unused.append(key)
    if unused:
        info["not_read"] = [*info.get("not_read", []), *unused]
    return arrays


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(issubclass(kind, int | float) for kind in set(map(type, value)))


def _errors_of(row: Json) -> str:
    errors = objects_in(row.get("errors"))
    last = errors[-1] if errors else {}
    return f"it ended with {last.get('type')}: {str(last.get('message'))[:200]}" if last else "it names no error"


FORMAT = Format(NAME, "record", matches, read, "verifiers v1 traces, rollouts of prime-rl")

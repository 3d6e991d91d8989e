"""ShareGPT conversations and preferences, as LLaMA-Factory has them.

    v0   {conversations: [{from, value}], chosen: {from, value}, rejected: {from, value}, system, tools: JSON text}
    v1   {messages: [{role, content: [{type, value}], loss_weight}], tools}, or {chosen_messages, rejected_messages}

With `chosen` and `rejected` a row is a preference; else an experience whose completion begins at the first turn that
the model wrote, scored by `kto_tag`, `label` or a score where there is one. A call has no id in these files: calls are
numbered ("call_0", ...), and results answer the calls before them in order; one result may stand for several calls, and
then answers the first. An assistant turn with loss_weight 0 is not generated.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.messages import Json, Message
from pairwright.records import Experience
from pairwright.sources.boundary import guarded
from pairwright.sources.errors_seen import error_sites
from pairwright.sources.fields import BadRecord, mapping, optional_text, score
from pairwright.sources.format import Format, Options, Origin, Rejected, build, split_at_first_answer
from pairwright.sources.leftover import small_fields
from pairwright.sources.openai_chat import reward_of, task_of, tools_of
from pairwright.sources.preference import SCORES, preference_of_row
from pairwright.sources.result_text import result_error_kind
from pairwright.sources.sharegpt_turns import turns_of_parts, turns_of_values
from pairwright.sources.sides import split_sides

NAME = "sharegpt"
_READ = frozenset(
    {"conversations", "messages", "chosen", "rejected", "chosen_messages", "rejected_messages", "system", "tools",
     "kto_tag", "label", "reward", "score", "rating", *SCORES}
)  # fmt: skip


def matches(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    turns = value.get("conversations")
    if isinstance(turns, list) and turns:
        return all(isinstance(turn, dict) and "from" in turn and "value" in turn for turn in turns)
    for key in ("messages", "chosen_messages"):
        if isinstance(value.get(key), list) and value[key]:
            return all(map(_has_parts, value[key]))
    return False


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    row = mapping(value, "row")
    if "chosen_messages" in row or ("chosen" in row and "rejected" in row):
        yield _preference(row, origin)
        return
    messages = _conversation(row)
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("conversations: no turn that the model wrote, so there is no completion")
    tools = tools_of(row)
    reward, components = reward_of(row, options)
    for key in ("kto_tag", "label"):
        reward = score(row.get(key)) if reward is None and options.reward is None else reward
    yield build(
        NAME,
        origin,
        task=task_of(row),
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        errors=error_sites(messages, tools, result_error_kind),
        info=small_fields(row, _READ),
    )


def _preference(row: Json, origin: Origin) -> Experience:
    if "chosen_messages" in row:
        prompt, chosen, rejected = split_sides(
            turns_of_parts(row["chosen_messages"], "chosen_messages"),
            turns_of_parts(row.get("rejected_messages"), "rejected_messages"),
        )
    else:
        prompt = _conversation(row)
        chosen, rejected = _side(row["chosen"], "chosen", prompt), _side(row["rejected"], "rejected", prompt)
    return preference_of_row(NAME, origin, row, (prompt, chosen, rejected), small_fields(row, _READ))


def _conversation(row: Json) -> list[Message]:
    if "conversations" in row:
        messages = turns_of_values(row["conversations"], "conversations")
    else:
        messages = turns_of_parts(row.get("messages"), "messages")
    system = optional_text(row.get("system"), "system")
    return [Message("system", system), *messages] if system else messages


def _side(value: Any, where: str, prompt: list[Message]) -> list[Message]:
    """An answer: a turn, a list of turns, or text."""
    if isinstance(value, str):
        return [Message("assistant", value)]
    num_calls = sum(len(message.tool_calls) for message in prompt)
    answer = turns_of_values([value] if isinstance(value, dict) else value, where, num_calls=num_calls)
    if not answer:
        raise BadRecord(f"{where}: no turns, so there is no answer")
    return answer


def _has_parts(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and all(isinstance(part, dict) and "value" in part for part in content)


read = guarded(read_unit)

FORMAT = Format(name=NAME, unit="record", matches=matches, read=read, summary="ShareGPT and LLaMA-Factory data")

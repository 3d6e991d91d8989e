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

import msgspec

from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.datasets.openai_chat import reward_of, task_of, tools_of
from pairwright.sources.datasets.preference_rows import SCORES, preference_of_row, split_sides
from pairwright.sources.fields import BadRecord, items, json_text, mapping, optional_text, score, small_fields, text
from pairwright.sources.format import Format, Options, Origin, Rejected, build, guarded, split_at_first_answer
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind

# The turns of ShareGPT conversations as messages, with calls and their results matched.

_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "model": "assistant", "system": "system", "developer": "developer",
    "observation": "tool", "tool": "tool", "function_response": "tool", "function_call": "function_call",
}  # fmt: skip
# Raw: the arguments stay the bytes that stand in the file, with their spacing and order of keys.
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


class _Calls:
    """Numbers calls as they come, and knows which of them still await a result."""

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls
        self.waiting: list[str] = []

    def add(self, calls: list[ToolCall]) -> tuple[ToolCall, ...]:
        numbered = []
        for call in calls:
            numbered.append(ToolCall(call.name, call.arguments, f"call_{self.num_calls}"))
            self.num_calls += 1
        # A result answers the calls right before it; older ones without a result wait no longer.
        self.waiting = [call.id for call in numbered if call.id is not None]
        return tuple(numbered)

    def answered(self) -> str | None:
        return self.waiting.pop(0) if self.waiting else None


def turns_of_values(value: Any, where: str, *, num_calls: int = 0) -> list[Message]:
    """Messages of `{from, value}` turns; `num_calls` were made before them."""
    calls = _Calls(num_calls)
    messages: list[Message] = []
    for number, turn in enumerate(items(value, where)):
        turn = mapping(turn, f"{where}[{number}]")
        speaker = text(turn.get("from", turn.get("role")), f"{where}[{number}].from")
        value_text = turn.get("value", turn.get("content"))
        content = None if value_text is None else json_text(value_text)
        role = _ROLES.get(speaker.lower(), speaker)
        generated = False if role in ("assistant", "function_call") and score(turn.get("weight")) == 0 else None
        if role == "function_call":
            calls_in_text = calls_of_text(content or "")
            if calls_in_text is None:  # not what a call looks like: kept as the text that it is
                messages.append(Message("assistant", content, generated=generated, extra={"from": speaker}))
            else:
                messages.append(Message("assistant", tool_calls=calls.add(calls_in_text), generated=generated))
        elif role == "tool":
            messages.append(Message("tool", content, tool_call_id=calls.answered()))
        else:
            messages.append(Message(role, content, generated=generated))
    return messages


def turns_of_parts(value: Any, where: str) -> list[Message]:
    """Messages of `{role, content: [{type, value}], loss_weight}` turns."""
    calls = _Calls(0)
    messages: list[Message] = []
    for number, turn in enumerate(items(value, where)):
        path = f"{where}[{number}]"
        turn = mapping(turn, path)
        role = text(turn.get("role"), f"{path}.role")
        content, reasoning, calls_in_parts = _parts(turn.get("content"), f"{path}.content")
        weight = score(turn.get("loss_weight"))
        messages.append(
            Message(
                role,
                content,
                reasoning=reasoning,
                tool_calls=calls.add(calls_in_parts) if calls_in_parts else (),
                tool_call_id=calls.answered() if role == "tool" else None,
                generated=False if weight == 0 and role == "assistant" else None,
                # 0 and 1 are told by `generated`; another weight is kept, since nothing else would tell of it.
                extra={} if weight is None or weight in (0.0, 1.0) else {"loss_weight": weight},
            )
        )
    return messages


def calls_of_text(value: str) -> list[ToolCall] | None:
    """The calls of JSON text, {name, arguments} or a list of such; the arguments stay the text that stands there."""
    try:
        values = _decode_list(value) if value.lstrip().startswith("[") else [_decode_raw(value)]
        return [_call(item) for item in values] or None
    except (msgspec.MsgspecError, RecursionError, ValueError, KeyError):
        return None


def _call(item: dict[str, msgspec.Raw]) -> ToolCall:
    name = msgspec.json.decode(item["name"], type=str)
    raw = bytes(item["arguments"]).decode() if "arguments" in item else ""
    # Arguments that are JSON text inside JSON are decoded once; an object stays as it is written.
    return ToolCall(name, msgspec.json.decode(raw, type=str) if raw.startswith('"') else raw)


def _parts(value: Any, where: str) -> tuple[str | list[Json] | None, str | None, list[ToolCall]]:
    """Content, reasoning and calls of a turn's parts; one text is text, anything more stays parts."""
    if value is None or isinstance(value, str):
        return value, None, []
    content: list[Json] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for number, part in enumerate(items(value, where)):
        part = mapping(part, f"{where}[{number}]")
        kind, part_value = part.get("type"), part.get("value")
        parsed = calls_of_text(json_text(part_value)) if kind == "tool_call" else None
        if parsed is not None:
            calls += parsed
        elif kind == "reasoning" and isinstance(part_value, str):
            reasoning.append(part_value)
        elif kind == "text" and isinstance(part_value, str):
            content.append({"type": "text", "text": part_value})
        elif isinstance(kind, str):
            content.append(part)
        else:
            raise BadRecord(f"{where}[{number}]: a part without a type")
    thought = "\n".join(reasoning) if reasoning else None
    if len(content) == 1 and content[0].keys() == {"type", "text"}:
        return content[0]["text"], thought, calls
    return content or None, thought, calls


# ShareGPT conversations and preferences, as LLaMA-Factory has them.

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
    # KTO data: a boolean for good or bad, 1.0 or 0.0 as a reward.
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
    # Calls of the answer go on counting behind those of the prompt.
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

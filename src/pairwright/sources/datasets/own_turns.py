"""Turns of user data: recognise them in a value, and convert transcripts, agent steps and mapped messages to chat.

    "Customer: ...\\nAgent: ..."                                        a transcript; the labels are speakers
    [{thought, action, action_input, observation}, ...]                  steps of a ReAct agent
    [{who, said, tool, args, out}, ...]                                  messages whose fields the user's map names

A speaker with an unknown role is refused; the reason shows the map that assigns one.
"""

import re
from itertools import pairwise
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.datasets.row_names import PROMPTS, SPEAKERS, is_completion_name, plain_name, speaker_role
from pairwright.sources.field_map import FieldMap, parse_path, value_at_path
from pairwright.sources.fields import BadRecord, has, json_text, kind_of, list_or_empty, mapping, words
from pairwright.sources.shapes.any_messages import decode_json_text

# A label at the start of a line: "Customer:", "[10:02] Agent:", "**Bot**:", "お客様："
_LABEL = re.compile(r"^[ \t]*(?:\[[^\]\n]{1,30}\][ \t]*)?\**([^\W\d_][^:：\n*]{0,30}?)\**[ \t]*[:：]\**[ \t]*", re.M)
_LINE_LABEL = re.compile(r"(?:^|\s)([^\W\d_]{1,20}): ")  # the same inside a line
_MODEL = words("assistant gpt ai model bot chatgpt")
_ANSWERERS = frozenset(name for name, role in SPEAKERS.items() if role == "assistant")
_ITEMS = frozenset({"function_call", "function_call_output", "reasoning"})
_THOUGHTS = ("thought", "thoughts", "reasoning", "rationale", "think")
_ACTIONS = ("action", "tool", "tool_name", "function", "function_name")
_INPUTS = ("action_input", "tool_input", "arguments", "args", "action_args", "parameters", "input", "tool_args")
_RESULTS = ("observation", "observations", "result", "tool_output", "tool_result", "output", "action_output")
# Actions that end a run: their input is the answer.
_ENDS = words("""finish final final_answer answer submit done end respond reply complete stop return finalanswer""")


def turns_in(value: Any) -> list[Any] | None:
    """Return the turns of a value: a list of them, {messages: [...]}, or JSON text of either; None if it has none."""
    value = decode_json_text(value)
    if has(value, messages=list):
        value = value["messages"]
    return value if is_turns(value) else None


def talk_in(value: Any) -> list[Any] | None:
    """Return the turns of a field named like a conversation, which may also be a transcript."""
    turns = turns_in(value)
    return transcript_turns(value, {}) if turns is None and isinstance(value, str) else turns


def context_turns(value: Any) -> list[Any] | None:
    """Return the turns before a prompt: messages, or a transcript with known speakers."""
    return transcript_turns(value, {}) if is_transcript(value) else turns_in(value)


def is_transcript(value: Any) -> bool:
    try:
        return isinstance(value, str) and transcript_turns(value, {}) is not None
    except BadRecord:  # unknown speakers: arbitrary text may look like that
        return False


def is_turns(value: Any) -> bool:
    """Whether a value is a list of turns: messages of any shape, or pairs of question and answer."""
    is_filled = isinstance(value, list) and bool(value)
    return is_filled and (all(map(_is_turn, value)) or all(map(exchange_in, value)) or is_steps(value))


def is_steps(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_step, value))


def exchange_in(item: Any) -> tuple[str, str] | None:
    """Return a question and its answer: two texts, {input, output}, or {inputs: {...}, outputs: {...}}; else None."""
    pair = list_or_empty(item)
    if isinstance(item, dict) and len(item) == 2:
        first, second = (plain_name(key) for key in item)
        is_pair = first in PROMPTS and is_completion_name(second)
        pair = list(item.values()) if is_pair or item.keys() == {"inputs", "outputs"} else []
    pair = [next(iter(side.values())) if isinstance(side, dict) and len(side) == 1 else side for side in pair]
    return (pair[0], pair[1]) if len(pair) == 2 and all(isinstance(text, str) for text in pair) else None


def _is_turn(item: Any) -> bool:
    if not has(item):
        return False
    if (has(item, role=str) and len(item) > 1) or has(item, "value", **{"from": str}):
        return True
    if has(item, type=str) and ("content" in item or "kwargs" in item or item["type"] in _ITEMS):
        return True
    # {"human": ..., "assistant": ...} or {"q": ..., "a": ...}: one exchange.
    return len(item) > 1 and all(plain_name(key) in SPEAKERS and isinstance(text, str) for key, text in item.items())


def is_from_model(turn: Any) -> bool:
    """Whether a turn, or the end of an exchange, was written by the model."""
    if exchange_in(turn) is not None or is_step(turn):
        return True
    speaker = turn.get("role", turn.get("from", turn.get("type")))
    names = [speaker] if isinstance(speaker, str) else turn
    # A serialized LangChain message, {lc, type: constructor, id: [..., "AIMessage"]}, has its class in `id`.
    known = _MODEL if isinstance(speaker, str) else _ANSWERERS
    return any(plain_name(name) in known or name in ("constructor", "function_call") for name in names)


def transcript_turns(text: str, roles: dict[str, str]) -> list[Json] | None:
    """Return the turns of a transcript, or None for other text; BadRecord if a speaker's role is unknown.

    >>> transcript_turns("Customer: Hi\\nAgent: Hello,\\nwho is there?", {})
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello,\\nwho is there?'}]
    """
    if "\n" not in text and not roles:
        return _line_turns(text)
    labels, names = labels_of(text)
    if not labels:
        return None
    known = [roles.get(name.lower()) or (None if roles else speaker_role(name)) for name in names]
    if known[0] is None:
        # Two alternating names are speakers; other text with colons is not a transcript.
        repeated = len(names) > 1 and len(set(names)) == 2 and all(one != two for one, two in pairwise(names))
        if not repeated and not roles:
            return None
        raise BadRecord(f"{names[0]!r} has no known role; choose with {_roles_hint(names)}")
    # At least one of several turns is the model's; a label without a role is text of the previous turn.
    marks = [(match, role) for match, role in zip(labels, known, strict=True) if role is not None]
    if "assistant" not in {role for _, role in marks} or len(marks) < 2:
        return None
    # An unknown label is a speaker if it repeats, follows a time, or if no known speaker is the user.
    others = [(name, match) for name, match, role in zip(names, labels, known, strict=True) if role is None]
    is_alone = {role for _, role in marks} == {"assistant"}
    speakers = [name for name, match in others if is_alone or names.count(name) > 1 or "[" in match[0]]
    if speakers:
        raise BadRecord(f"{speakers[0]!r} has no known role; choose with {_roles_hint(names)}")
    return _cut(text, marks)


def labels_of(text: str) -> tuple[list[re.Match[str]], list[str]]:
    """Return the labels of a transcript, and the names of its possible speakers; nothing for other text."""
    labels = list(_LABEL.finditer(text))
    if not labels or text[: labels[0].start()].strip():
        return [], []
    return labels, [match[1].strip() for match in labels]


def _line_turns(text: str) -> list[Json] | None:
    """Return the turns of a transcript in one line: known, alternating speakers, the first at its start."""
    marks = [(match, role) for match in _LINE_LABEL.finditer(text) if (role := speaker_role(match[1])) is not None]
    if len(marks) < 2 or marks[0][0].start() > 0 or any(one[1] == two[1] for one, two in pairwise(marks)):
        return None
    return _cut(text, marks)


def _cut(text: str, marks: list[tuple[re.Match[str], str]]) -> list[Json]:
    ends = [match.start() for match, _ in marks[1:]] + [len(text)]
    return [
        {"role": role, "content": text[match.end() : end].strip()}
        for (match, role), end in zip(marks, ends, strict=True)
    ]


def _roles_hint(names: list[str]) -> str:
    table = ", ".join(f"{name}: {speaker_role(name) or 'user or assistant'}" for name in dict.fromkeys(names[:20]))
    return f"--map 'messages=FIELD,roles={{{table}}}'"


def is_step(item: Any) -> bool:
    """Whether an item is an agent step: an action with its input, result or thought."""
    if not isinstance(item, dict) or "role" in item:
        return False
    action = _key(item, _ACTIONS)
    beside = any(_key(item, names) is not None for names in (_THOUGHTS, _INPUTS, _RESULTS))
    return action is not None and isinstance(item[action], str) and beside


def step_turns(items: list[Json]) -> list[Json]:
    """Return the messages of an agent's steps: an action becomes a call, its observation becomes the result."""
    turns: list[Json] = []
    for number, item in enumerate(items):
        thought, action, given, result = (_value(item, names) for names in (_THOUGHTS, _ACTIONS, _INPUTS, _RESULTS))
        said: Json = {"role": "assistant", "content": None}
        if isinstance(thought, str) and thought:
            said["reasoning_content"] = thought
        if plain_name(action) in _ENDS and result is None:
            answer = decode_json_text(given)
            if isinstance(answer, dict) and len(answer) == 1:
                (answer,) = answer.values()
            turns.append({**said, "content": "" if answer is None else json_text(answer)})
            continue
        turns += call_turns(said, action, given, result, f"step_{number}")
    return turns


def call_turns(said: Json, name: Any, arguments: Any, result: Any, call_id: str) -> list[Json]:
    """Return an assistant message with one call, followed by the message of its result, if any."""
    turn = {**said, "tool_calls": [_chat_call(call_id, name, arguments)]}
    if result is None:
        return [turn]
    return [turn, {"role": "tool", "tool_call_id": call_id, "name": name, "content": json_text(result)}]


def mapped_turn(item: Any, fields: FieldMap, where: str, number: int) -> list[Json]:
    """Return a message with mapped or usual fields, followed by the result of its call if the map names one."""
    row = mapping(item, where)
    named = {target: _mapped(row, fields, target) for target in ("content", "calls", "arguments", "results")}
    usual_role = row.get("role", "assistant" if named["calls"] else None)
    role = _mapped(row, fields, "role") if "role" in fields else usual_role
    content = named["content"] if "content" in fields else row.get("content")
    turn: Json = {"role": _role(role, fields, where), "content": content}
    calls = decode_json_text(named["calls"])
    if calls in (None, "", []):
        if named["results"] is not None and content in (None, ""):
            turn = {**turn, "role": "tool", "content": named["results"]}
        return [turn]
    if isinstance(calls, str):
        return call_turns({**turn, "role": "assistant"}, calls, named["arguments"], named["results"], f"call_{number}")
    listed = calls if isinstance(calls, list) else [calls]
    turn["tool_calls"] = [_call(call, f"call_{number}_{index}", where) for index, call in enumerate(listed)]
    results = decode_json_text(named["results"])
    given = results if isinstance(results, list) and len(results) == len(listed) else [results]
    return [turn] + [
        {"role": "tool", "tool_call_id": call["id"], "content": json_text(result)}
        for call, result in zip(turn["tool_calls"], given, strict=False)
        if result is not None
    ]


def _call(value: Any, call_id: str, where: str) -> Json:
    call = mapping(value, f"{where}: a call")
    inner = call["function"] if isinstance(call.get("function"), dict) else call
    name = _value(inner, ("name", *_ACTIONS))
    if not isinstance(name, str):
        raise BadRecord(f"{where}: a call without a name among {', '.join(map(str, call))}")
    return _chat_call(str(call.get("id", call_id)), name, _value(inner, _INPUTS))


def _chat_call(call_id: str, name: Any, arguments: Any) -> Json:
    text = "{}" if arguments is None else json_text(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _role(value: Any, fields: FieldMap, where: str) -> str:
    if not isinstance(value, str | int):
        raise BadRecord(f"{where}: the role is {kind_of(value)}; name it with --map role=FIELD")
    text, roles = str(value).strip(), fields.roles
    role = roles.get(text.lower()) or speaker_role(text)
    if role is None:
        raise BadRecord(f"{where}: {text!r:.40} has no known role; assign one with --map 'roles={{{text[:40]}: user}}'")
    return role


def _mapped(row: Json, fields: FieldMap, target: str) -> Any:
    return value_at_path(row, parse_path(fields.fields[target])) if target in fields else None


def _key(item: Json, names: tuple[str, ...]) -> str | None:
    plain = {plain_name(key): key for key in item}
    return next((plain[name] for name in names if name in plain), None)


def _value(item: Json, names: tuple[str, ...]) -> Any:
    key = _key(item, names)
    return None if key is None else item[key]

"""The user's `--map`, applied to a row: the mapped fields get the usual names, which row_layout.py identifies."""

from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.datasets.own_turns import is_step, mapped_turn, transcript_turns
from pairwright.sources.datasets.row_layout import is_answer_name
from pairwright.sources.datasets.row_names import (
    CONTEXTS,
    CONVERSATIONS,
    PROMPTS,
    SYSTEMS,
    is_score_name,
    plain_name,
    words_of,
)
from pairwright.sources.field_map import REQUIRED, FieldMap, parse_map, remove_paths
from pairwright.sources.fields import BadRecord, has, index, items
from pairwright.sources.shapes.any_messages import decode_json_text
from pairwright.sources.shapes.row_fields import REWARD_KEYS, TASK_KEYS

# Targets of a map in the order of their fields, and usual names that differ; lists of completions use the plural.
_TARGETS = (
    *("prompt", "messages", "completion", "chosen", "rejected", "chosen_reward", "rejected_reward", "reward"),
    *("system", "tools", "task", "run", "model"),
)
_USUAL_NAMES = {"chosen_reward": "score_chosen", "rejected_reward": "score_rejected", "task": "task_id"}

# The names of OpenAI's summarize_from_feedback usually mean something else.
_SUMMARIES = parse_map("prompt=info.post+info.article,completion=summaries[].text,best=choice,task=info.id")


def apply_map(row: Json, fields: FieldMap) -> tuple[Json, Json]:
    """Return a row with the mapped fields under their usual names, and the rest of the row."""
    if not fields.names_fields:
        if not has(row, "info", "summaries", "choice"):
            return row, row
        fields = _SUMMARIES
    rest = remove_paths(row, fields.paths())
    renamed: Json = {key: value for key, value in rest.items() if not _is_replaced(key, fields)}
    for target in _TARGETS:
        name = _USUAL_NAMES.get(target, target)
        if target not in fields:
            continue
        if target in ("completion", "reward", "chosen_reward", "rejected_reward"):
            values = fields.candidates(row, target)
            is_list = len(values) > 1 or "[]" in fields.fields[target]
            renamed[f"{name}s" if is_list else name] = values if is_list else values[0]
        else:
            value = fields.value(row, target) if target in REQUIRED else fields.optional(row, target)
            if value is not None:
                renamed[name] = value
    if "messages" in fields and (fields.names_messages or isinstance(renamed["messages"], str)):
        renamed["messages"] = _mapped_messages(renamed["messages"], fields)
    if "best" in fields:
        renamed["best_index"] = _mapped_best(fields.value(row, "best"), fields, renamed)
    if "messages" in fields and ("completion" in fields or "chosen" in fields) and "prompt" not in fields:
        renamed["prompt"] = renamed.pop("messages")
    return renamed, rest


def _mapped_messages(value: Any, fields: FieldMap) -> Any:
    """Return the messages that the map names: a list with named fields, or a transcript."""
    where, value = f"--map messages={fields.fields['messages']}", decode_json_text(value)
    if isinstance(value, str):
        turns = transcript_turns(value, fields.roles)
        if turns is None:
            raise BadRecord(f"{where}: text without speakers such as 'Customer: ...'; add --map roles={{...}}")
        return turns
    listed = items(value, where)
    if all(map(is_step, listed)) and "content" not in fields and "calls" not in fields:
        return listed
    return [turn for n, item in enumerate(listed) for turn in mapped_turn(item, fields, f"{where}[{n}]", n)]


def _mapped_best(value: Any, fields: FieldMap, row: Json) -> int:
    """Return the index of the preferred candidate: a number counts from 0, text names a field or is the answer."""
    pieces = fields.fields.get("completion", "").split("|")
    listed = row.get("completions", ())
    if isinstance(value, str) and not value.strip().isdigit():
        words = set(words_of(value))
        found = [number for number, piece in enumerate(pieces) if words and words <= set(words_of(piece))]
        found = found or [number for number, answer in enumerate(listed) if answer == value]
    else:
        found = [int(value)] if index(value) is not None and int(value) < len(listed) else []
    if len(found) != 1:
        raise BadRecord(f"--map best={fields.fields['best']}: {value!r:.40} names none of the {len(listed)} candidates")
    return found[0]


def _is_replaced(key: str, fields: FieldMap) -> bool:
    """Whether a field would be read as a target that the map assigns to another field."""
    name = plain_name(key)
    if ("prompt" in fields or "messages" in fields) and (name in PROMPTS or name in CONTEXTS or name in CONVERSATIONS):
        return True
    if any(target in fields for target in ("completion", "chosen", "messages")) and is_answer_name(key):
        return True
    if "reward" in fields and (is_score_name(key) or name in REWARD_KEYS):
        return True
    return ("system" in fields and key in SYSTEMS) or ("task" in fields and key in TASK_KEYS)

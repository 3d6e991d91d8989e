"""TRL preference data, and other rows with the same keys.

    {prompt, chosen, rejected}        explicit: text or messages
    {chosen, rejected}                implicit: two conversations; the prompt is their common prefix
    {prompt, completion, label}       unpaired: an experience with reward 1.0 or 0.0
    {prompt, completions, labels}     stepwise: an experience whose answer has one part per step; the labels are in
                                      info["step_labels"], unscored, since the outcome was not judged

Rows whose prompt and answers are all text are TRL's standard rows: raw text, which TRL trains without a chat template.
They are read as messages of role text. Text is read as a chat turn (user or assistant), with info["form"] = "text", if
the prompt is under `question`, or `instruction` with `input`; if there is a `system` prompt or `tools`; if another
field contains messages; or if it is a transcript ("\\n\\nHuman: ..."), which is split into turns. For other text
without a prompt, the prompt is the common prefix, up to the last white space.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import TEXT, Json, Message
from pairwright.sources.datasets.preference_rows import (
    SCORES,
    answer_from,
    conversations_from,
    prompt_from,
    transcript_messages,
)
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.datasets.row_names import PROMPTS, SYSTEMS, plain_name
from pairwright.sources.fields import BadRecord, has, items, score, text
from pairwright.sources.shapes.row_fields import tools_of

_SIDES = ("prompt", "chosen", "rejected")
_PROMPTS = ("prompt", "question", "instruction")
_READ = frozenset(
    {*_PROMPTS, *SYSTEMS, "input", "chosen", "rejected", "completion", "completions", "label", "labels", "tools",
     "messages", *SCORES}
)  # fmt: skip
_CHAT_KEYS = frozenset((*_PROMPTS[1:], *SYSTEMS))  # fields specific to chat rows
_FOREIGN = ("conversations", "context", "eid", "chosen_response", "preferred_output", "trajectory")
_HUMAN = "\n\nHuman:"


def matches(value: Any) -> bool:
    """Whether a row has one of the four layouts and no key of another format."""
    if not has(value) or any(key in value for key in _FOREIGN):
        return False
    if "chosen" in value and "rejected" in value:
        # Two texts whose prompt has another name (`input`, `query`) are read by `rows`.
        sides = (value["chosen"], value["rejected"])
        is_elsewhere = not any(key in value for key in _PROMPTS) and any(plain_name(key) in PROMPTS for key in value)
        return all(map(_is_side, sides)) and not (is_elsewhere and all(isinstance(side, str) for side in sides))
    if not _is_side(value.get("prompt")):
        return False
    if "completion" in value and "label" in value:
        return _is_side(value["completion"])
    return has(value, completions=list, labels=list) and all(isinstance(step, str) for step in value["completions"])


def _take(row: Json) -> Iterator[Json]:
    is_pair = "chosen" in row and "rejected" in row
    yield _pair(row) if is_pair else _stepwise(row) if "completions" in row else _unpaired(row)


def _pair(row: Json) -> Json:
    info: Json = {}
    sides = [row["chosen"], row["rejected"]]
    is_transcript = all(isinstance(side, str) and side.startswith(_HUMAN) for side in sides)
    if _is_raw_text(row, *sides) and not is_transcript:
        shared = row.get("prompt")
        if shared is None:
            shared, *sides = _split_beginning(*sides)
        answers = ([Message(TEXT, side, generated=True)] for side in sides)
        return dict(zip(_SIDES, ([Message(TEXT, shared)], *answers), strict=True))
    prompt = _prompt(row)
    if isinstance(sides[0], str) and isinstance(sides[1], str):
        info["form"] = "text"
        if not prompt and not is_transcript:
            shared, *sides = _split_beginning(*sides)
            prompt = prompt_from(shared, "prompt")
    if is_transcript:
        chosen, rejected = (transcript_messages(side) or [] for side in sides)
        parts = conversations_from([], chosen, rejected)
    else:
        parts = conversations_from(prompt, answer_from(sides[0], "chosen"), answer_from(sides[1], "rejected"))
    return {**dict(zip(_SIDES, parts, strict=True)), "info": info}


def _unpaired(row: Json) -> Json:
    """Return the experience of an unpaired row, with its label as reward."""
    info: Json = {}
    completion = row.get("completion")
    if isinstance(completion, str) and _is_raw_text(row, completion):
        prompt, answer = [Message(TEXT, text(row.get("prompt"), "prompt"))], [Message(TEXT, completion, generated=True)]
    else:
        prompt, answer = _prompt(row), answer_from(completion, "completion")
        if isinstance(completion, str):
            info["form"] = "text"
    reward = score(row.get("label"))
    return {"prompt": prompt, "completion": answer, "reward": reward, "reward_components": None, "info": info}


def _stepwise(row: Json) -> Json:
    """Return the unscored experience of a stepwise row."""
    steps = [text(step, f"completions[{n}]") for n, step in enumerate(items(row["completions"], "completions"))]
    labels = items(row.get("labels"), "labels")
    if len(labels) != len(steps):
        raise BadRecord(f"labels: {len(labels)} for {len(steps)} steps")
    parts: list[Json] = [{"type": "text", "text": step} for step in steps]
    info: Json = {"step_labels": labels}
    if _is_raw_text(row, *steps):
        prompt, answer = [Message(TEXT, text(row.get("prompt"), "prompt"))], Message(TEXT, parts, generated=True)
    else:
        prompt, answer, info["form"] = _prompt(row), Message("assistant", parts), "text"
    unscored: Json = {"reward": None, "reward_components": None, "tools": ()}
    return {"prompt": prompt, "completion": [answer], **unscored, "info": info}


def _prompt(row: Json) -> list[Message]:
    """Return the prompt under any of its names, or []."""
    key = next((key for key in _PROMPTS if row.get(key) is not None), None)
    if key is None:
        return prompt_from(row["messages"], "messages") if _is_prompt(row.get("messages")) else []
    value = row[key]
    if key == "instruction" and isinstance(value, str) and isinstance(row.get("input"), str) and row["input"]:
        value = f"{value}\n{row['input']}"
    return prompt_from(value, key)


def _is_prompt(value: Any) -> bool:
    """Whether messages beside the answers are their prompt; usually they repeat the chosen conversation."""
    return _is_side(value) and isinstance(value, list) and value[-1]["role"] != "assistant"


def _is_raw_text(row: Json, *answers: Any) -> bool:
    """Whether a row is a TRL standard row: only text, and no field specific to chats."""
    if any(row.get(key) for key in _CHAT_KEYS) or tools_of(row) or _is_prompt(row.get("messages")):
        return False
    return isinstance(row.get("prompt"), str | None) and all(isinstance(answer, str) for answer in answers)


def _split_beginning(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Return the prompt of texts without one, which is their common beginning, and the rest of both."""
    cut, end = 0, min(len(chosen), len(rejected)) - 1  # leave at least one character for each answer
    while cut < end and chosen[cut] == rejected[cut]:
        cut += 1
    # Back to white space, so that no word is split.
    while cut > 0 and not chosen[cut - 1].isspace():
        cut -= 1
    prompt = chosen[:cut].rstrip()  # white space belongs to the answers, as in TRL
    if not prompt:
        raise BadRecord("chosen and rejected: texts without a prompt that begin differently")
    return prompt, chosen[len(prompt) :], rejected[len(prompt) :]


def _is_side(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and bool(value) and all(has(item, "role") for item in value)


FORMAT = RowFormat("trl-preference", "TRL preference data", matches, _take, _READ).format

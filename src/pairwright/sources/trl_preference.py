"""Preference data of TRL, and rows of the same keys.

    {prompt, chosen, rejected}        explicit: text or messages
    {chosen, rejected}                implicit: two conversations; the prompt is what both begin with
    {prompt, completion, label}       unpaired: an experience with reward 1.0 or 0.0
    {prompt, completions, labels}     stepwise: an experience whose answer has a part for each step; the labels are in
                                      info["step_labels"], and it is unscored, since no outcome was judged

`question`, or `instruction` with `input`, is a prompt too, and `system` a leading system message. Text becomes a user
and an assistant turn and leaves info["form"] = "text". Transcripts ("\\n\\nHuman: ...") are read turn by turn; of other
text without a prompt the prompt is the common beginning, up to the last white space.
"""

import re
from collections.abc import Iterator
from typing import Any

from pairwright.messages import Json, Message
from pairwright.records import Experience
from pairwright.sources.boundary import guarded
from pairwright.sources.fields import BadRecord, items, mapping, score, text
from pairwright.sources.format import Format, Options, Origin, Rejected, build
from pairwright.sources.leftover import small_fields
from pairwright.sources.openai_chat import task_of, tools_of
from pairwright.sources.preference import (
    SCORES,
    answer_from,
    conversations_from,
    preference_of_row,
    prompt_from,
)

NAME = "trl-preference"
_PROMPTS = ("prompt", "question", "instruction")
_READ = frozenset(
    {*_PROMPTS, "input", "system", "chosen", "rejected", "completion", "completions", "label", "labels", "tools",
     "messages", *SCORES}
)  # fmt: skip
_FOREIGN = ("conversations", "context", "eid", "chosen_response", "preferred_output", "trajectory")
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def matches(value: Any) -> bool:
    if not isinstance(value, dict) or any(key in value for key in _FOREIGN):
        return False
    if "chosen" in value and "rejected" in value:
        return _is_side(value["chosen"]) and _is_side(value["rejected"])
    if not _is_side(value.get("prompt")):
        return False
    if "completion" in value and "label" in value:
        return _is_side(value["completion"])
    steps = value.get("completions")
    return (
        isinstance(steps, list)
        and all(isinstance(step, str) for step in steps)
        and isinstance(value.get("labels"), list)
    )


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    row = mapping(value, "row")
    if "chosen" in row and "rejected" in row:
        yield _pair(row, origin)
    elif "completions" in row:
        yield _stepwise(row, origin)
    else:
        yield _unpaired(row, origin, options)


def _pair(row: Json, origin: Origin) -> Experience:
    prompt = _prompt(row)
    info = small_fields(row, _READ)
    if isinstance(row["chosen"], str) and isinstance(row["rejected"], str):
        info["form"] = "text"
        if not prompt or row["chosen"].startswith("\n\nHuman:"):
            prompt, chosen, rejected = _texts(row["chosen"], row["rejected"])
        else:
            chosen, rejected = answer_from(row["chosen"], "chosen"), answer_from(row["rejected"], "rejected")
    else:
        prompt, chosen, rejected = conversations_from(
            prompt, answer_from(row["chosen"], "chosen"), answer_from(row["rejected"], "rejected")
        )
    return preference_of_row(NAME, origin, row, (prompt, chosen, rejected), info)


def _unpaired(row: Json, origin: Origin, options: Options) -> Experience:
    info = small_fields(row, _READ)
    if isinstance(row.get("completion"), str):
        info["form"] = "text"
    return build(
        NAME,
        origin,
        task=task_of(row),
        prompt=_prompt(row),
        completion=answer_from(row.get("completion"), "completion"),
        tools=tools_of(row),
        reward=score(row.get(options.reward or "label")),
        info=info,
    )


def _stepwise(row: Json, origin: Origin) -> Experience:
    steps = [
        text(step, f"completions[{number}]") for number, step in enumerate(items(row["completions"], "completions"))
    ]
    labels = items(row.get("labels"), "labels")
    if len(labels) != len(steps):
        raise BadRecord(f"labels: {len(labels)} for {len(steps)} steps")
    answer = Message("assistant", [{"type": "text", "text": step} for step in steps])
    return build(
        NAME,
        origin,
        task=task_of(row),
        prompt=_prompt(row),
        completion=[answer],
        info={**small_fields(row, _READ), "form": "text", "step_labels": labels},
    )


def _prompt(row: Json) -> list[Message]:
    """The prompt under any of its names; [] where there is none."""
    key = next((key for key in _PROMPTS if row.get(key) is not None), None)
    if key is None:
        return []
    value = row[key]
    if key == "instruction" and isinstance(value, str) and isinstance(row.get("input"), str) and row["input"]:
        value = f"{value}\n{row['input']}"
    prompt = prompt_from(value, key)
    system = row.get("system")
    return [Message("system", system), *prompt] if isinstance(system, str) and system else prompt


def _texts(chosen: str, rejected: str) -> tuple[list[Message], list[Message], list[Message]]:
    """Prompt and answers of two texts that begin with their prompt."""
    if chosen.startswith("\n\nHuman:") and rejected.startswith("\n\nHuman:"):
        return conversations_from([], _transcript(chosen), _transcript(rejected))
    cut, end = 0, min(len(chosen), len(rejected)) - 1  # at least a character is left for each answer
    while cut < end and chosen[cut] == rejected[cut]:
        cut += 1
    while cut > 0 and not chosen[cut - 1].isspace():
        cut -= 1
    prompt = chosen[:cut].rstrip()  # the white space belongs to the answers, as in TRL
    if not prompt:
        raise BadRecord("chosen and rejected: texts without a prompt that begin differently")
    answers = [[Message("assistant", side[len(prompt) :])] for side in (chosen, rejected)]
    return [Message("user", prompt)], answers[0], answers[1]


def _transcript(value: str) -> list[Message]:
    pieces = _TURN.split(value)[1:]  # role, text, role, text, ...
    return [Message(_ROLES[role], said.strip()) for role, said in zip(pieces[::2], pieces[1::2], strict=True)]


def _is_side(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and "role" in item for item in value)


read = guarded(read_unit)

FORMAT = Format(name=NAME, unit="record", matches=matches, read=read, summary="TRL preference data")

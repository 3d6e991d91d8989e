"""Trinity's JSONL: experiences as its `to_dict` writes them, conversations for SFT, and answers that await a judgement.

    {eid, type, messages, reward, ...}             an experience; fields as in trinity_bytes.py, without the tensors
    {messages: JSON text, tools: JSON text}        a conversation; the prompt ends before the first assistant turn
    {prompt, answer1, answer2, ...}                unjudged answers: an unscored experience each, all of one task
    {system, prompt, chosen, rejected}             plaintext for DPO; only where the format is named, since TRL has rows
                                                   of these keys. Trinity renders the texts as turns of a chat

Trinity's bytes (TRXP) are read by `loads_trinity`.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from pairwright.messages import Json, Message
from pairwright.records import Experience, Source
from pairwright.sources.boundary import guarded
from pairwright.sources.chat import messages_from_chat
from pairwright.sources.embedded_json import json_value
from pairwright.sources.errors_seen import error_sites
from pairwright.sources.fields import BadRecord, mapping, optional_text, text
from pairwright.sources.format import Format, Options, Origin, Rejected, build, split_at_first_answer
from pairwright.sources.leftover import small_fields
from pairwright.sources.openai_chat import reward_of, task_of, tools_of
from pairwright.sources.preference import (
    SCORES,
    answer_from,
    conversations_from,
    is_preference_row,
    preference_of_row,
    prompt_from,
)
from pairwright.sources.result_text import result_error_kind
from pairwright.sources.trinity_bytes import experience_from_fields

NAME = "trinity"
_KINDS = ("single_turn", "multi_turn", "dpo")
_READ = frozenset({"system", "prompt", "chosen", "rejected", "tools", *SCORES})


def matches(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("eid"), dict):
        return value.get("type") in _KINDS
    messages = value.get("messages")
    if isinstance(messages, str):
        return messages.lstrip().startswith("[{")
    return isinstance(value.get("prompt"), str) and isinstance(value.get("answer1"), str)


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    row = mapping(value, "row")
    if "eid" in row:
        yield _from_dict(row, origin, options)
    elif is_preference_row(row):
        yield _plaintext(row, origin)
    elif "messages" in row:
        yield _conversation(row, origin, options)
    else:
        yield from _unjudged(row, origin)


def _from_dict(row: Json, origin: Origin, options: Options) -> Experience:
    if row.get("type") == "dpo" and not (row.get("chosen_messages") and row.get("rejected_messages")):
        raise BadRecord("a dpo experience without chosen_messages and rejected_messages: its answers were only tokens")
    return msgspec.structs.replace(
        experience_from_fields({**row, "reward": row.get(options.reward or "reward")}, {}),
        source=Source(origin.file, origin.line, NAME),
    )


def _conversation(row: Json, origin: Origin, options: Options) -> Experience:
    messages = messages_from_chat(json_value(row["messages"], "messages"), "messages")
    tools = tools_of(row)
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("messages: no assistant message, so there is no completion")
    reward, components = reward_of(row, options)
    return build(
        NAME,
        origin,
        task=task_of(row),
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        errors=error_sites(messages, tools, result_error_kind),
    )


def _plaintext(row: Json, origin: Origin) -> Experience:
    prompt, chosen, rejected = conversations_from(
        prompt_from(row["prompt"], "prompt"),
        answer_from(row["chosen"], "chosen"),
        answer_from(row["rejected"], "rejected"),
    )
    if system := optional_text(row.get("system"), "system"):
        prompt = [Message("system", system), *prompt]
    return preference_of_row(NAME, origin, row, (prompt, chosen, rejected), small_fields(row, _READ))


def _unjudged(row: Json, origin: Origin) -> Iterator[Experience | Rejected]:
    """The answers to one prompt, in the order of their numbers; which is better was not yet said."""
    prompt = [Message("user", text(row.get("prompt"), "prompt"))]
    number = 1
    while f"answer{number}" in row:
        answer = text(row[f"answer{number}"], f"answer{number}")
        yield build(
            NAME, origin, task=None, run=number - 1, prompt=prompt, completion=[Message("assistant", answer)]
        )  # fmt: skip
        number += 1
    if number == 1:
        raise BadRecord("neither messages nor answers")


read = guarded(read_unit)

FORMAT = Format(
    name=NAME, unit="record", matches=matches, read=read, summary="Trinity experiences and conversations",
    matches_named=is_preference_row,
)  # fmt: skip

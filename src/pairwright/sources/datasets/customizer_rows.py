"""NeMo Customizer datasets.

    customizer        {prompt, chosen_response, rejected_response}    a preference; scores are the rewards of its sides
    customizer-sft    {prompt, completion} or {messages}              a demonstration: an experience with reward 1.0, or
                                                                      with the score that `--reward` names

The prompt is text or messages with the full history; an answer is text, a message or messages. Other small fields go
to info. Rows are read as demonstrations only if the format is given by name: nothing in them says that the answers are
good. Without it they are unscored rows (datasets/rows.py).
"""

from collections.abc import Iterator
from typing import Any

from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.datasets.preference_rows import (
    SCORES,
    answer_from,
    conversations_from,
    preference_of_row,
    prompt_from,
)
from pairwright.sources.datasets.row_names import SYSTEMS, system_of
from pairwright.sources.fields import BadRecord, mapping, small_fields
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import messages_from_chat
from pairwright.sources.shapes.row_fields import task_of, tools_of

NAME, SFT_NAME = "customizer", "customizer-sft"
_READ_SFT = frozenset({"prompt", "completion", "messages", "tools", *SYSTEMS})
_READ = frozenset({"prompt", "chosen_response", "rejected_response", "tools", *SCORES, *SYSTEMS})


def matches(value: Any) -> bool:
    return isinstance(value, dict) and all(key in value for key in ("prompt", "chosen_response", "rejected_response"))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "row")
    if not matches(row):
        raise BadRecord(f"expected the keys prompt, chosen_response and rejected_response, got {sorted(row)[:10]}")
    prompt, chosen, rejected = conversations_from(
        prompt_from(row.get("prompt"), "prompt"),
        answer_from(row.get("chosen_response"), "chosen_response"),
        answer_from(row.get("rejected_response"), "rejected_response"),
    )
    yield preference_of_row(NAME, origin, row, (prompt, chosen, rejected), small_fields(row, _READ))


def read_sft_unit(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experience of a demonstration; raise BadRecord if prompt or answer is missing or empty."""
    row = mapping(value, "row")
    if "messages" in row:
        prompt, answer = split_at_first_answer(messages_from_chat(row["messages"], "messages"))
    elif "prompt" in row and "completion" in row:
        prompt, answer = prompt_from(row["prompt"], "prompt"), answer_from(row["completion"], "completion")
    else:
        raise BadRecord(f"expected the keys prompt and completion, or messages, got {sorted(row)[:10]}")
    # A demonstration has something to learn from: both parts are there, and the answer is the assistant's.
    prompt = [*system_of(row, prompt), *prompt]
    if not prompt or not answer or not answer[0].is_generated:
        raise BadRecord("expected a prompt and an answer of the assistant after it")
    if not any(message.text.strip() or message.tool_calls for message in answer):
        raise BadRecord("the answer is empty")
    yield Parts(
        SFT_NAME,
        origin,
        task=task_of(row),
        prompt=prompt,
        completion=answer,
        tools=tools_of(row),
        reward=1.0,  # the user has named it a demonstration: it is taken as correct
        info=small_fields(row, _READ_SFT),
    )


FORMAT = Format(NAME, "record", matches, read, "NeMo Customizer preference data", matches_named=lambda value: True)
SFT_FORMAT = Format(
    SFT_NAME,
    "record",
    lambda value: False,
    read_sft_unit,
    "NeMo Customizer fine-tuning data",
    matches_named=lambda value: True,
)

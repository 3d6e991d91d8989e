"""Preference data of NeMo Customizer: `{prompt, chosen_response, rejected_response}`.

The prompt is text or messages with the full history; a response is text, a message or messages. Scores of the
responses, where there are any, are the rewards of the sides; other small fields go to info.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.experience import Experience
from pairwright.sources.datasets.preference_rows import (
    SCORES,
    answer_from,
    conversations_from,
    preference_of_row,
    prompt_from,
)
from pairwright.sources.fields import mapping, small_fields
from pairwright.sources.format import Format, Options, Origin, Rejected, guarded

NAME = "customizer"
_READ = frozenset({"prompt", "chosen_response", "rejected_response", "tools", *SCORES})


def matches(value: Any) -> bool:
    return isinstance(value, dict) and all(key in value for key in ("prompt", "chosen_response", "rejected_response"))


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    row = mapping(value, "row")
    prompt, chosen, rejected = conversations_from(
        prompt_from(row.get("prompt"), "prompt"),
        answer_from(row.get("chosen_response"), "chosen_response"),
        answer_from(row.get("rejected_response"), "rejected_response"),
    )
    yield preference_of_row(NAME, origin, row, (prompt, chosen, rejected), small_fields(row, _READ))


read = guarded(read_unit)

FORMAT = Format(name=NAME, unit="record", matches=matches, read=read, summary="NeMo Customizer preference data")
